#!/usr/bin/env python3
"""Makes tests/reference/fixtures/schedules.json: the rates of get_scheduler() of transformers at every step, as the
optimizer has them. Each case has the arguments of the scheduler. Not needed to run the tests.

    python3 tests/reference/make_schedule_fixtures.py
"""
import json
import pathlib
import warnings

import torch
from transformers import get_scheduler

RATE, STEPS = 3e-4, 17
OUT = pathlib.Path(__file__).parent / "fixtures" / "schedules.json"
KWARGS = {
    "linear": [{}],
    "cosine": [{}, {"num_cycles": 1.25}],
    "cosine_with_restarts": [{}, {"num_cycles": 3}],
    "polynomial": [{}, {"power": 2.5, "lr_end": 1e-5}],
    "constant": [{}],
    "constant_with_warmup": [{}],
    "inverse_sqrt": [{}, {"timescale": 40}],
    "warmup_stable_decay": [{"num_decay_steps": 6}, {"num_decay_steps": 3, "num_stable_steps": 4, "min_lr_ratio": 0.1},
                            {"num_decay_steps": 5, "warmup_type": "cosine", "decay_type": "linear"},
                            {"num_decay_steps": 5, "warmup_type": "1-sqrt", "decay_type": "1-sqrt", "min_lr_ratio": 0.2}],
}


def rates(name, warmup, kwargs):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    schedule = get_scheduler(name, optimizer, num_warmup_steps=warmup, num_training_steps=STEPS,
                             scheduler_specific_kwargs=kwargs)
    found = []
    for _ in range(STEPS + 2):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


warnings.simplefilter("ignore")
cases = [{"name": name, "warmup": warmup, "kwargs": kwargs, "rates": rates(name, warmup, kwargs)}
         for name, choices in KWARGS.items() for kwargs in choices for warmup in (0, 5)]
OUT.write_text(json.dumps({"rate": RATE, "steps": STEPS, "cases": cases}) + "\n")
