#!/usr/bin/env python3
"""Makes tests/reference/fixtures/hf_bloom with transformers: a tiny random BLOOM, and what it answers.
Not needed to run the tests; to make the files again, with torch and transformers installed:

    python3 tests/reference/bloom.py
    python3 tests/reference/bloom.py --check DIR     what `zerograd export ... --hf DIR` wrote of it

12 heads give slopes of ALiBi that are no powers of two. answers.safetensors has ids [2, 12], logits
[2, 12, 97], and some gradients of the mean loss of 4 x 16 tokens, which expected.json has.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY, WIDTH = 97, 24
OUT = pathlib.Path(__file__).parent / "fixtures" / "hf_bloom"
GRADIENTS = ("word_embeddings_layernorm.weight", "h.0.input_layernorm.bias",
             "h.0.self_attention.query_key_value.bias", "h.1.self_attention.query_key_value.bias",
             "h.1.self_attention.dense.bias", "h.1.mlp.dense_h_to_4h.bias", "ln_f.weight")


def make_model():
    config = transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, n_layer=2, n_head=12)
    model = transformers.BloomForCausalLM(config)
    generator = torch.Generator().manual_seed(2022)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + noise if "norm.weight" in name or "ln_f.weight" in name else noise)
    return model.eval()


def check(directory):
    model = transformers.BloomForCausalLM.from_pretrained(directory).double().eval()
    answers = load_file(OUT / "answers.safetensors")
    with torch.no_grad():
        difference = (model(answers["ids"]).logits - answers["logits"]).abs().max().item()
    print(f"largest difference of logits: {difference:.3g}")
    return 0 if difference < 1e-6 else 1


def main():
    if sys.argv[1:2] == ["--check"]:
        return check(sys.argv[2])
    OUT.mkdir(parents=True, exist_ok=True)
    model = make_model()
    model.save_pretrained(OUT)
    (OUT / "generation_config.json").unlink()
    # In f64: what is left of a difference is the other side's rounding.
    model = model.double()
    ids = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
    logits = model(ids).logits.detach()
    tokens = torch.tensor([(i * i + 3 * i) % VOCABULARY for i in range(65)])
    inputs = torch.stack([tokens[s:s + 16] for s in range(0, 64, 16)])
    targets = torch.stack([tokens[s + 1:s + 17] for s in range(0, 64, 16)])
    loss = F.cross_entropy(model(inputs).logits.view(-1, VOCABULARY), targets.reshape(-1))
    loss.backward()
    gradients = {"gradient." + name: model.transformer.get_parameter(name).grad.float()
                 for name in GRADIENTS}
    save_file({"ids": ids, "logits": logits.float(), **gradients}, OUT / "answers.safetensors")
    (OUT / "expected.json").write_text(json.dumps(
        {"torch": torch.__version__, "transformers": transformers.__version__,
         "tokens": "(i * i + 3 * i) % 97 for i in 0 .. 64", "loss": loss.item(),
         "largest_logit": logits.abs().max().item()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
