#!/usr/bin/env python3
"""Makes tests/reference/fixtures/experts.json with PyTorch: the gradients, in double, of the first step of
tools/examples/experts.cpp, summed over its four ranks. tests/zero/experts_test.cpp sets the same weights and inputs.
Not needed to run the tests.

    python3 tests/reference/make_experts_fixtures.py
"""
import json
import pathlib

import torch
from torch.nn import functional as F

OUT = pathlib.Path(__file__).parent / "fixtures" / "experts.json"
RANKS, TOKENS, WIDTH, HIDDEN, CAPACITY = 4, 24, 8, 32, 8


def wave(scale, phase, *shape):
    """As wave() of the test."""
    return (scale * torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + phase)).view(shape)


shared = {"input": wave(0.6, 0, WIDTH, WIDTH), "router": wave(0.9, 1, RANKS, WIDTH)}
experts = [{"up": wave(0.5, 2 + e, HIDDEN, WIDTH), "down": wave(0.5, 7 + e, WIDTH, HIDDEN)} for e in range(RANKS)]
for weights in (shared, *experts):
    for value in weights.values():
        value.requires_grad_()

total, passed = 0, 0
for rank in range(RANKS):
    x = wave(1.5, 11 + rank, TOKENS, WIDTH)
    h = x @ shared["input"].T
    p = F.softmax(h @ shared["router"].T, -1)
    best = p.topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > 1e-4, "a choice that rounding could change"
    queues, y = [0] * RANKS, []
    for token in range(TOKENS):
        expert = int(p[token].argmax())
        queues[expert] += 1
        answer = 0
        if queues[expert] <= CAPACITY:
            answer = F.gelu(h[token] @ experts[expert]["up"].T, approximate="tanh") @ experts[expert]["down"].T
        else:
            passed += 1
        y.append(h[token] + p[token].max() * answer)
    total = total + F.mse_loss(torch.stack(y), x.abs())
assert passed > 0, "no token is beyond the capacity"
total.backward()


def gradients(weights):
    return {name: [float(f"{g:.8g}") for g in value.grad.view(-1).tolist()] for name, value in weights.items()}


assert all(value.grad is not None for weights in experts for value in weights.values()), "an expert without tokens"
OUT.write_text(json.dumps({"passed": passed, "shared": gradients(shared), "experts": [gradients(e) for e in experts]})
               + "\n")
