#!/usr/bin/env python3
"""Writes into tests/reference/fixtures/published_configs.json what DeepSpeed and accelerate read from each config there.
The configs have the keys and values of published ones. Each entry is

    {"from": project and file, "json" | "yaml": the config, then one of
     "reads": DeepSpeed's values, under the names of tests/zero/deepspeed/deepspeed_case.h, without those that are
              "auto"; of YAML also "ranks"
     "refused": the error of DeepSpeed or accelerate; that of DeepSpeed's engine was copied by hand
     "lacks": the key that switches on what zerograd does not do, by hand}

"older" is a key that only older versions have. They are asked without it.

Not needed to run the tests. DeepSpeed's sources suffice; its C++ ops are not built.

    PYTHONPATH=DEEPSPEED_SOURCES python3 tests/reference/make_config_fixtures.py
"""
import copy
import json
import pathlib
import tempfile

from accelerate.commands.config.config_args import load_config_from_file
from deepspeed.runtime.config import DeepSpeedConfig

FILE = pathlib.Path(__file__).parent / "fixtures" / "published_configs.json"
SPACES = {"none": "device", "cpu": "host", "nvme": "file"}


def filled(config):
    """As transformers fills in "auto", where the value decides whether DeepSpeed accepts the rest."""
    config = copy.deepcopy(config)
    for key, value in {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1,
                       "gradient_clipping": 1.0}.items():
        if config.get(key) == "auto":
            config[key] = value
    if config.get("train_batch_size") == "auto":
        del config["train_batch_size"]
    if "train_batch_size" not in config:
        config.setdefault("train_micro_batch_size_per_gpu", 8)
    return config


def values(config):
    read = DeepSpeedConfig(filled(config))
    zero, half = read.zero_config, read.float16_config
    found = {"stage": int(zero.stage), "overlap_comm": bool(zero.overlap_comm), "clip_norm": read.gradient_clipping,
             "compute": "f16" if half.enabled is True else "bf16" if read.bfloat16_config.enabled is True else "f32",
             "allgather_bucket_size": zero.allgather_bucket_size, "reduce_bucket_size": zero.reduce_bucket_size,
             "prefetch_bucket_size": zero.prefetch_bucket_size,
             "param_persistence_threshold": zero.param_persistence_threshold, "kind": read.scheduler_name or "none"}
    if half.enabled is True:
        found |= {"loss_scale": half.loss_scale, "initial_scale_power": half.initial_scale_power,
                  "window": half.loss_scale_window, "hysteresis": half.hysteresis, "min_loss_scale": half.min_loss_scale}
    offload = {"optimizer": zero.offload_optimizer, "parameter": zero.offload_param if zero.stage == 3 else None}
    found |= {f"offload.{what}": SPACES[of.device if of else "none"] for what, of in offload.items()}
    for key, name in {"train_batch_size": "batch.train", "train_micro_batch_size_per_gpu": "batch.micro",
                      "gradient_accumulation_steps": "batch.accumulation"}.items():
        found[name] = config.get(key, -1)
    params = read.optimizer_params or {}
    found |= {name: params[key] for key, name in {"lr": "rate", "eps": "epsilon", "weight_decay": "weight_decay"}.items()
              if key in params}
    if isinstance(params.get("betas"), list):
        found["beta1"], found["beta2"] = params["betas"]
    if config.get("gradient_clipping") == "auto":
        found["clip_norm"] = "auto"
    for key, name in {"reduce_bucket_size": "reduce_bucket_size", "stage3_prefetch_bucket_size": "prefetch_bucket_size",
                      "stage3_param_persistence_threshold": "param_persistence_threshold"}.items():
        if config.get("zero_optimization", {}).get(key) == "auto":
            found[name] = "auto"
    return {name: value for name, value in found.items() if value != "auto"}


def launched(config):
    """What accelerate launch starts, and DeepSpeed's values."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(config, file)  # JSON is YAML
        file.flush()
        read = load_config_from_file(file.name)
    ranks = 1 if read.distributed_type == "NO" else read.num_processes
    compute = {"fp16": "f16", "bf16": "bf16"}.get(read.mixed_precision, "f32")
    if read.distributed_type != "DEEPSPEED":
        return {"ranks": ranks, "compute": compute, "stage": 0}
    own = read.deepspeed_config
    if "deepspeed_config_file" in own:
        return {"ranks": ranks} | values(json.loads(own["deepspeed_config_file"]))
    found = {"ranks": ranks, "compute": compute, "stage": own.get("zero_stage", 2)}
    return found | {f"offload.{what}": SPACES[own.get(f"offload_{key}_device") or "none"]
                    for what, key in {"optimizer": "optimizer", "parameter": "param"}.items()}


def outcome(entry):
    config = {key: value for key, value in entry.get("json", entry.get("yaml")).items() if key != entry.get("older")}
    try:
        return {"reads": values(config) if "json" in entry else launched(config)}
    except (Exception, SystemExit) as error:
        return {"refused": " ".join(str(error).split())[:160]}


def main():
    entries = json.loads(FILE.read_text())
    for entry in entries:
        if "lacks" in entry or "engine" in entry.get("refused", ""):
            continue
        entry.pop("reads", None), entry.pop("refused", None)
        entry.update(outcome(entry))
    FILE.write_text("[\n" + ",\n".join(map(json.dumps, entries)) + "\n]\n")


main()
