#!/usr/bin/env python3
"""Makes tests/reference/fixtures/optimizers.json with PyTorch: a parameter after five steps of each optimizer of
torch.optim, and of Lion as Chen et al. 2023 (arXiv:2302.06675) write it, which torch.optim lacks. Not needed to run
the tests.

    python3 tests/reference/make_optimizer_fixtures.py
"""
import json
import pathlib

import torch

ELEMENTS, STEPS, RATE, DECAY = 24, 5, 0.05, 0.1
OUT = pathlib.Path(__file__).parent / "fixtures" / "optimizers.json"


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(torch.sign(beta1 * m + (1 - beta1) * p.grad), alpha=group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def sgd(**options):
    return lambda p: torch.optim.SGD([p], lr=RATE, weight_decay=DECAY, **options)


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW([p], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY),
    "adam": lambda p: torch.optim.Adam([p], lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY),
    "lion": lambda p: Lion([p], lr=RATE, betas=(0.9, 0.99), weight_decay=DECAY),
    "sgd": sgd(),
    "sgd, momentum": sgd(momentum=0.9),
    "sgd, dampening": sgd(momentum=0.9, dampening=0.25),
    "sgd, nesterov": sgd(momentum=0.9, nesterov=True),
}


def main():
    torch.manual_seed(7)
    start = torch.randn(ELEMENTS)
    gradients = [torch.randn(ELEMENTS) for _ in range(STEPS)]
    results = {}
    for name, make in OPTIMIZERS.items():
        parameter = torch.nn.Parameter(start.clone())
        optimizer = make(parameter)
        for gradient in gradients:
            parameter.grad = gradient.clone()
            optimizer.step()
        results[name] = parameter.tolist()
    fixture = {"rate": RATE, "weight_decay": DECAY, "start": start.tolist(),
               "gradients": [g.tolist() for g in gradients], "results": results}
    OUT.write_text(json.dumps(fixture) + "\n")


if __name__ == "__main__":
    main()
