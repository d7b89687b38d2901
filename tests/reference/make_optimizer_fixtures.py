#!/usr/bin/env python3
"""Makes tests/reference/fixtures/optimizers.json with PyTorch: a parameter after five steps of each optimizer of
torch.optim, and of Lion as Chen et al. 2023 (arXiv:2302.06675) write it, which torch.optim lacks. muon.json has matrices
after five steps of torch.optim.Muon, whose Newton-Schulz iteration runs in float32 here instead of bfloat16.
adafactor.json has parameters and second moments after five steps of torch.optim.Adafactor in float64. Not needed to run
the tests.

    python3 tests/reference/make_optimizer_fixtures.py [adafactor]   all files, or adafactor.json alone
"""
import json
import pathlib
import sys

import torch
import torch.optim._muon as torch_muon

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
    # A parameter in a group of its own: 0.3 of the rate, another weight decay.
    "adamw, group": lambda p: torch.optim.AdamW([{"params": [p], "lr": 0.3 * RATE, "weight_decay": 0.4}], lr=RATE,
                                                betas=(0.9, 0.95), eps=1e-8, weight_decay=DECAY),
    "sgd, group": lambda p: torch.optim.SGD([{"params": [p], "lr": 0.3 * RATE, "weight_decay": 0.4}], lr=RATE,
                                            momentum=0.9, weight_decay=DECAY),
}


class InFloat32:
    """The module torch for torch.optim.Muon, in which bfloat16 means float32."""

    bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(torch, name)


def floats(tensor):
    """The elements with nine digits, which are enough for every float32."""
    return [float(f"{x:.9g}") for x in tensor.flatten().tolist()]


MUON_SHAPES = [(6, 10), (10, 6), (12, 16), (1, 12)]
MUONS = {
    "original": {"adjust_lr_fn": "original"},
    "match_rms_adamw": {"adjust_lr_fn": "match_rms_adamw"},
    "plain": {"adjust_lr_fn": "original", "nesterov": False, "momentum": 0.5},
}


def muon_results(starts, gradients, in_float32):
    torch_muon.torch = InFloat32() if in_float32 else torch
    results = {}
    for name, options in MUONS.items():
        parameters = [torch.nn.Parameter(start.clone()) for start in starts]
        optimizer = torch.optim.Muon(parameters, lr=RATE, weight_decay=DECAY, **options)
        for of_step in gradients:
            for parameter, gradient in zip(parameters, of_step):
                parameter.grad = gradient.clone()
            optimizer.step()
        results[name] = [floats(parameter) for parameter in parameters]
        moments = [floats(optimizer.state[p]["momentum_buffer"]) for p in parameters]
        results[name + ", moments"] = moments
    torch_muon.torch = torch
    return results


def write_muon():
    starts = [torch.randn(shape) for shape in MUON_SHAPES]
    gradients = [[torch.randn(shape) for shape in MUON_SHAPES] for _ in range(STEPS)]
    fixture = {"rate": RATE, "weight_decay": DECAY, "shapes": MUON_SHAPES,
               "starts": [floats(start) for start in starts],
               "gradients": [[floats(g) for g in of_step] for of_step in gradients],
               "results": muon_results(starts, gradients, in_float32=True),
               "bfloat16": muon_results(starts, gradients, in_float32=False)}
    OUT.with_name("muon.json").write_text(json.dumps(fixture) + "\n")


# Shape, and the factor of each gradient: the second parameter's lie below epsilon1.
ADAFACTOR_PARAMETERS = [((6, 10), 1.0), ((10, 6), 1e-8), ((1, 12), 1.0), ((24,), 1.0), ((7, 1), 1.0), ((5,), 1.0)]
ADAFACTOR_GROWTH = [1.0, 3.0, 0.2, 5.0, 1.0]  # by step, so that some updates are clipped
EPSILON1 = 2.0 ** -23  # what None means for float32
ADAFACTORS = {
    "default": {"lr": 0.05},
    "decay": {"lr": 0.05, "weight_decay": 0.1},
    "large rate": {"lr": 2.0, "weight_decay": 0.1},
    "options": {"lr": 0.05, "beta2_decay": -0.5, "eps": (0.01, 0.1), "d": 1.5},
}


def write_adafactor():
    torch.manual_seed(8)
    starts = [0.5 * torch.randn(shape) for shape, _ in ADAFACTOR_PARAMETERS]
    starts[-1].zero_()
    gradients = [[growth * factor * torch.randn(shape) for shape, factor in ADAFACTOR_PARAMETERS]
                 for growth in ADAFACTOR_GROWTH]
    results = {}
    for name, options in ADAFACTORS.items():
        parameters = [torch.nn.Parameter(start.double()) for start in starts]
        optimizer = torch.optim.Adafactor(parameters, **{"eps": (EPSILON1, 1e-3)} | options)
        for of_step in gradients:
            for parameter, gradient in zip(parameters, of_step):
                parameter.grad = gradient.double()
            optimizer.step()
        moments = []
        for parameter in parameters:
            state = optimizer.state[parameter]
            kept = [state[key] for key in ("row_var", "col_var", "variance") if key in state]
            moments.append([x for tensor in kept for x in floats(tensor)])
        results[name] = {"parameters": [floats(parameter) for parameter in parameters], "moments": moments}
    fixture = {"shapes": [shape for shape, _ in ADAFACTOR_PARAMETERS],
               "starts": [floats(start) for start in starts],
               "gradients": [[floats(g) for g in of_step] for of_step in gradients], "results": results}
    OUT.with_name("adafactor.json").write_text(json.dumps(fixture) + "\n")


def main():
    write_adafactor()
    if sys.argv[1:] == ["adafactor"]:
        return
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
    write_muon()


if __name__ == "__main__":
    main()
