#!/usr/bin/env python3
"""Makes tests/reference/fixtures/composed.json with PyTorch: values and gradients, in double, of ops and losses that
zerograd makes of other ops. Not needed to run the tests.

    python3 tests/reference/make_composed_fixtures.py
"""
import json
import pathlib

import torch
from torch.nn import functional as F

OUT = pathlib.Path(__file__).parent / "fixtures" / "composed.json"
ids = torch.tensor([[3, 0, 2], [1, 3, 3]])
ignored = torch.tensor([[3, -1, 2], [-1, 3, 0]])
torch.manual_seed(1)


def values(*shape, low=-2.0, high=2.0):
    return low + (high - low) * torch.rand(*shape, dtype=torch.float64)


def probabilities(*shape):
    found = values(*shape, low=0.0, high=1.0)
    found.view(-1)[1] = 0.0
    return found


def with_zeros(found):
    found[0, 1] = found[1, 2, 0] = found[1, 4, 0] = 0.0
    return found


def cross_entropy(logits, targets, **options):
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1), ignore_index=-1, **options)


def recurrence(a, b):
    state, states = torch.zeros_like(b[:, 0]), []
    for t in range(b.shape[1]):
        state = a[:, t] * state + b[:, t]
        states.append(state)
    return torch.stack(states, 1)


CASES = {
    "min": (lambda x: x.amin(1), [values(3, 4, 5)]),
    "var": (lambda x: x.var(1), [values(3, 4, 5)]),
    "logsumexp": (lambda x: x.logsumexp(1), [values(3, 4, 5)]),
    "rsqrt": (lambda x: x.rsqrt(), [values(7, low=0.1)]),
    "clamp": (lambda x: x.clamp(-1, 0.5), [values(3, 5)]),
    "masked_fill": (lambda x: x.masked_fill(x.detach() > 0, 7.0), [values(3, 5)]),
    "transpose": (lambda x: x.transpose(0, 2), [values(2, 3, 4)]),
    "stack": (lambda a, b: torch.stack([a, b], 1), [values(2, 3), values(2, 3)]),
    "repeat": (lambda x: x.repeat(2, 3), [values(2, 3)]),
    "tril": (lambda x: x.tril(1), [values(2, 4, 5)]),
    "triu": (lambda x: x.triu(-1), [values(2, 4, 5)]),
    "pad": (lambda x: F.pad(x, (2, 1), value=0.5), [values(2, 3)]),
    "cumsum": (lambda x: x.cumsum(1), [values(2, 11, 3)]),
    "sort": (lambda x: x.sort(1).values, [values(2, 9, 3)]),
    "cummax": (lambda x: x.cummax(0).values, [values(9, 3)]),
    "linear recurrence": (lambda a, b: recurrence(a, b), [values(2, 13, 3), values(2, 13, 3)]),
    "slice with steps": (lambda x: x[-3:].flip(1)[:, ::2], [values(4, 6)]),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 1, 1, None, 2), [values(3, 6), values(3, 3)]),
    "index_add": (lambda x, s: x.index_add(1, torch.tensor([3, 0, 3]), s), [values(2, 4, 3), values(2, 3, 3)]),
    "masked_select": (lambda x, m: x.masked_select(m.detach() > 0), [values(3, 5), values(5)]),
    "topk": (lambda x: x.topk(3, 1).values, [values(2, 5, 3)]),
    "topk, smallest": (lambda x: x.topk(4, largest=False).values, [values(3, 6)]),
    "one_hot": (lambda x: x * F.one_hot(ids, 4), [values(2, 3, 4)]),
    "cross_entropy, sum": (lambda x: cross_entropy(x, ignored, reduction="sum"), [values(2, 3, 4)]),
    "cross_entropy, none": (lambda x: cross_entropy(x, ignored, reduction="none").view(2, 3), [values(2, 3, 4)]),
    "cross_entropy, smoothed": (lambda x: cross_entropy(x, ignored, label_smoothing=0.2), [values(2, 3, 4)]),
    "cross_entropy, smoothed, none": (lambda x: cross_entropy(x, ignored, label_smoothing=0.2, reduction="none").view(
        2, 3), [values(2, 3, 4)]),
    "binary_cross_entropy": (lambda x, z: F.binary_cross_entropy_with_logits(x, z),
                             [torch.cat([values(9, low=-40, high=40), torch.zeros(1, dtype=torch.float64)]),
                              probabilities(10)]),
    "binary_cross_entropy, none": (lambda x, z: F.binary_cross_entropy_with_logits(x, z, reduction="none"),
                                   [values(2, 5), probabilities(2, 5)]),
    "kl_divergence": (lambda q, p: F.kl_div(q, p.detach(), reduction="sum"), [values(2, 5, low=-3, high=0),
                                                                             probabilities(2, 5)]),
    "kl_divergence, log_target": (lambda q, p: F.kl_div(q, p, reduction="mean", log_target=True),
                                  [values(2, 5, low=-3, high=0), values(2, 5, low=-3, high=0)]),
    "mse, sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), [values(2, 5), values(2, 5)]),
    "exp2": (lambda x: x.exp2(), [values(9, low=-9, high=9)]),
    "logsigmoid": (lambda x: F.logsigmoid(x), [values(9, low=-40, high=40)]),
    "elu": (lambda x: F.elu(x, 0.7), [torch.cat([values(9, low=-900, high=900), torch.zeros(1, dtype=torch.float64)])]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.2), [torch.cat([values(9), torch.zeros(1, dtype=torch.float64)])]),
    "logaddexp": (lambda a, b: torch.logaddexp(a, b), [values(9, low=-900, high=900), values(2, 9, low=-9, high=9)]),
    "remainder": (lambda a, b: torch.remainder(a, b), [values(2, 9, low=-900, high=900), values(9)]),
    "std": (lambda x: x.std((0, 2)), [values(3, 4, 5)]),
    "prod": (lambda x: x.prod(1), [with_zeros(values(3, 5, 2))]),
    "cumprod": (lambda x: x.cumprod(1), [with_zeros(values(3, 5, 2))]),
    "logcumsumexp": (lambda x: x.logcumsumexp(0), [values(7, 2, low=-90, high=90)]),
    "flip": (lambda x: x.flip(0, 2), [values(3, 4, 5)]),
    "roll": (lambda x: x.roll(-7, 1), [values(3, 4, 5)]),
    "diag": (lambda x: x.diag(-2), [values(4)]),
    "diag of a matrix": (lambda x: x.diag(1), [values(4, 3)]),
    "index_select": (lambda x: x.index_select(1, ids.flatten()), [values(2, 4, 3)]),
    "take": (lambda x: x.take(ids), [values(2, 3)]),
    "tensordot": (lambda a, b: torch.tensordot(a, b, ([0, 2], [2, 0])), [values(3, 4, 2), values(2, 5, 3)]),
    "outer": (lambda a, b: torch.outer(a, b), [values(3), values(4)]),
    **{f"einsum {equation}": (lambda *in_, equation=equation: torch.einsum(equation, *in_), [values(*s) for s in shapes])
       for equation, *shapes in (("bthd,bshd->bhts", (2, 3, 4, 5), (2, 6, 4, 5)), ("ij,j", (3, 4), (4,)),
                                 ("...ik,kj->...ji", (2, 3, 4), (4, 5)), ("iij->j", (3, 3, 2)),
                                 ("bn,anm,bm->ba", (2, 3), (5, 3, 4), (2, 4)), ("i->", (3,)))},
    "norm, 1": (lambda x: torch.linalg.vector_norm(x, 1, 1), [with_zeros(values(3, 5, 2))]),
    "norm, 2": (lambda x: torch.linalg.vector_norm(x, 2, (1, 2)), [torch.cat([values(2, 3, 2), torch.zeros(1, 3, 2).double()])]),
    "norm, infinity": (lambda x: torch.linalg.vector_norm(x, torch.inf, 1, True), [values(4, 3).round()]),
    "dot": (lambda a, b: torch.dot(a, b), [values(5), values(5)]),
    "einsum abcd,efgh,efgha->bcdh": (lambda *in_: torch.einsum("abcd,efgh,efgha->bcdh", *in_),
                                     [values(2, 1, 2, 3), values(2, 3, 1, 2), values(2, 3, 1, 2, 2)]),
    "einsum hij,jkl->ik": (lambda a, b: torch.einsum("hij,jkl->ik", a, b), [values(2, 3, 4), values(4, 2, 3)]),
    "einsum ...i,...i": (lambda a, b: torch.einsum("...i,...i", a, b), [values(2, 1, 3), values(4, 3)]),
}


def case_of(inputs, y):
    """Inputs, an output, and the gradients of the inputs for an output weighted by -0.5, 0.5, 0, ..."""
    weights = torch.arange(y.numel(), dtype=torch.float64).mul(7).remainder(5).sub(2).div(4).view(y.shape)
    weights = weights if y.numel() > 1 else torch.ones_like(y)
    gradients = torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True)
    return {"inputs": [{"shape": list(x.shape), "values": x.flatten().tolist()} for x in inputs],
            "output": {"shape": list(y.shape), "values": y.flatten().tolist()},
            "gradients": [None if g is None else g.flatten().tolist() for g in gradients]}


def write(path, cases):
    path.write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


def main():
    cases = []
    for name, (function, inputs) in CASES.items():
        inputs = [x.clone().requires_grad_() for x in inputs]
        cases.append({"name": name, **case_of(inputs, function(*inputs))})
    write(OUT, cases)


if __name__ == "__main__":
    main()
