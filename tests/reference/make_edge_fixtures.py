#!/usr/bin/env python3
"""Makes tests/reference/fixtures/edges.json with PyTorch: results and gradients, in float32, of element-wise ops for
NaN, infinities, zeros, subnormal and largest numbers, and at limits. Not needed to run the tests.

    python3 tests/reference/make_edge_fixtures.py
"""
import json
import pathlib

import torch
from torch.nn import functional as F

OUT = pathlib.Path(__file__).parent / "fixtures" / "edges.json"
LARGEST = torch.finfo(torch.float32).max
EDGES = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1e-40, -1e-40, LARGEST, -LARGEST, 0.25, 1.0, -1.0, 1.5, 2.0, 3.0,
         -3.0, 0.5, -0.5, 100.0, -100.0]
P, Q = 0.25, 1.5


def gelu_erf(x):
    """PyTorch's f32 is inexact at -3, and NaN at infinity."""
    return 0.5 * x.double() * (1.0 + torch.erf(x.double() * 0.5**0.5))


def remainder(a, b):
    """PyTorch's f32 is NaN where a / b overflows."""
    return torch.remainder(a.double(), b.double()).float()


UNARY = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "relu": F.relu, "silu": F.silu, "abs": torch.abs, "reciprocal": torch.reciprocal,
    "sin": torch.sin, "cos": torch.cos, "erf": torch.erf, "log1p": torch.log1p, "floor": torch.floor,
    "ceil": torch.ceil, "round": torch.round, "sign": torch.sign, "square": torch.square, "expm1": torch.expm1,
    "log2": torch.log2, "softplus": F.softplus, "hard_swish": F.hardswish, "tan": torch.tan, "asin": torch.asin,
    "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
    "clamp": lambda x: x.clamp(P, Q), "elu": lambda x: F.elu(x, P), "leaky_relu": lambda x: F.leaky_relu(x, P),
    "gelu": lambda x: F.gelu(x, approximate="tanh"), "gelu_erf": gelu_erf, "rsqrt": torch.rsqrt, "exp2": torch.exp2,
    "logsigmoid": lambda x: -F.softplus(-x),  # as ops.h defines it: -0 at infinity
    "add 1.5": lambda x: x + Q, "1.5 - x": lambda x: Q - x, "mul 1.5": lambda x: x * Q,
    "div 1.5": lambda x: x / Q, "1.5 / x": lambda x: Q / x, "pow 2.5": lambda x: x.pow(2.5), "pow 2": lambda x: x.pow(2),
    "pow -1": lambda x: x.pow(-1), "remainder 1.5": lambda x: remainder(x, torch.full_like(x, Q)),
}
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow,
    "maximum": torch.maximum, "minimum": torch.minimum, "logaddexp": torch.logaddexp, "remainder": remainder,
    "where": lambda a, b: torch.where(a < b, a, b),
    "huber": lambda a, b: F.huber_loss(a, b, reduction="none"), "mse": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "silu(a) * b": lambda a, b: F.silu(a) * b,
    "amax": lambda a, b: torch.stack([a, b]).amax(0), "amin": lambda a, b: torch.stack([a, b]).amin(0),
}


def text(values):
    return " ".join(f"{x:.9g}" for x in values.tolist())


def row(name, function, *inputs):
    """PyTorch has other code for the elements that fill no vector: the inputs are repeated 17 times."""
    inputs = [torch.tensor(x).repeat(17).requires_grad_() for x in inputs]
    y = function(*inputs)
    gradients = torch.autograd.grad(y, inputs, torch.ones_like(y))
    found = [part.detach().view(17, -1) for part in (y, *gradients)]
    if not all(torch.allclose(part, part[:1], equal_nan=True) for part in found):
        print(f"{name}: the code for vectors, which is taken, and that for other elements differ")
    return json.dumps({"name": name, "output": text(found[0][0]), "gradients": [text(g[0]) for g in found[1:]]})


def main():
    pairs = [(a, b) for a in EDGES[:16] for b in EDGES[:16]]
    rows = [row(name, f, EDGES) for name, f in UNARY.items()]
    rows += [row(name, f, *([p[side] for p in pairs] for side in (0, 1))) for name, f in BINARY.items()]
    OUT.write_text("[\n" + ",\n".join(rows) + "\n]\n")


if __name__ == "__main__":
    main()
