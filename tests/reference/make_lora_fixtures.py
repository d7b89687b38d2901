#!/usr/bin/env python3
"""Makes tests/reference/fixtures/lora_llama, lora_qwen3 and lora_gpt2 with Hugging Face's PEFT 0.21: random adapters of
the tiny models in hf_llama, hf_qwen3 and hf_gpt2, and what they compute. Not needed to run the tests; to make the files
again, with PyTorch, transformers 5 and peft:

    python3 tests/reference/make_lora_fixtures.py

expected.safetensors has ids [2, 12], the logits [2, 12, V] of all tokens, the mean loss of predicting tokens 1 to 11
from tokens 0 to 10, the gradient of every adapter matrix ("gradient.NAME"), the matrices after one step of AdamW
("updated.NAME": rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1) and the logits of merge_and_unload()
("merged", before that step).

To check adapters that zerograd wrote, give the base, the folder of `zerograd export --peft` and that of
`zerograd export --merge --hf`; PEFT's logits with the adapters must be those of the merged model:

    python3 tests/reference/make_lora_fixtures.py --check BASE PEFT_FOLDER MERGED_FOLDER
"""
import json
import pathlib
import shutil
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
TOKENS = 12
ADAPTERS = {
    "llama": {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]},
    "qwen3": {"r": 2, "lora_alpha": 3, "use_rslora": True, "target_modules": "all-linear"},
    "gpt2": {"r": 3, "lora_alpha": 3, "fan_in_fan_out": True, "target_modules": ["c_attn", "c_proj"]},
}


def base_of(folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config._attn_implementation = "eager"
    return model.eval()


def our_name(name):
    return name.removeprefix("base_model.model.").replace(".default.", ".")


def make(name, options):
    model = base_of(FIXTURES / f"hf_{name}")
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(2106)
    model = get_peft_model(model, LoraConfig(lora_dropout=0.0, task_type="CAUSAL_LM", **options)).eval()
    adapters = {key: value for key, value in model.named_parameters() if "lora_" in key}
    with torch.no_grad():
        for value in adapters.values():
            value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    folder = FIXTURES / f"lora_{name}"
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = f"hf_{name}"
    config["target_modules"] = sorted(config["target_modules"])
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    ids = torch.randint(vocabulary, (2, TOKENS), generator=generator)
    logits = model(ids).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, vocabulary), ids[:, 1:].reshape(-1))
    loss.backward()
    expected = {"ids": ids, "logits": logits.detach().clone(), "loss": loss.detach().reshape(1)}
    expected |= {f"gradient.{our_name(key)}": value.grad.clone() for key, value in adapters.items()}
    frozen = [value for key, value in model.named_parameters() if "lora_" not in key]
    assert not any(value.requires_grad for value in frozen)
    before = {key: value.detach().clone() for key, value in adapters.items()}
    torch.optim.AdamW(adapters.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).step()
    expected |= {f"updated.{our_name(key)}": value.detach().clone() for key, value in adapters.items()}
    with torch.no_grad():
        for key, value in adapters.items():
            value.copy_(before[key])
        expected["merged"] = model.merge_and_unload()(ids).logits.clone()
    save_file(expected, folder / "expected.safetensors")
    print(name, f"loss {loss.item():.6f}", sorted(path.name for path in folder.iterdir()))


def check(base, adapters, merged):
    model = base_of(base)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(model.config.vocab_size, (2, TOKENS), generator=generator)
    with torch.no_grad():
        plain = model(ids).logits.clone()
        adapted = PeftModel.from_pretrained(model, adapters).eval()(ids).logits
        ours = base_of(merged)(ids).logits
    largest = adapted.abs().max().item()
    difference = (adapted - ours).abs().max().item() / largest
    change = (adapted - plain).abs().max().item() / largest
    print(f"largest logit {largest:.4f}; merged differs by {difference:.2e} of it, the base by {change:.2e}")
    assert difference < 1e-5 < change


if sys.argv[1:2] == ["--check"]:
    check(*sys.argv[2:])
else:
    for name, options in ADAPTERS.items():
        make(name, options)
