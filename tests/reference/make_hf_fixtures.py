#!/usr/bin/env python3
"""Makes tests/reference/fixtures/hf_gpt2 with PyTorch: a tiny GPT-2 with random weights, in the files
that Hugging Face's transformers saves, and its logits and loss. The tests need only the files, not
this script. To make the files again:

    /usr/bin/python3 tests/reference/make_hf_fixtures.py      (Debian's python3-torch)

logits_of() computes what transformers' GPT2LMHeadModel computes, without that package: the same
parameter names, Conv1D's [in, out] weights, gelu_new, and the head tied to wte. The weights include
attn.bias (the causal mask) and attn.masked_bias (not used), buffers that files of older versions
have. logits.safetensors has ids [2, 12] and logits [2, 12, 61]. expected.json has the mean loss of
4 x 16 tokens, the formula of these tokens, the largest absolute logit, and the version of PyTorch.
"""
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, POSITIONS = 2, 2, 8, 61, 16
OUT = pathlib.Path(__file__).parent / "fixtures" / "hf_gpt2"
CONFIG = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": POSITIONS, "n_embd": WIDTH,
    "n_head": HEADS, "n_inner": None, "n_layer": LAYERS, "n_positions": POSITIONS,
    "reorder_and_upcast_attn": False, "resid_pdrop": 0.1, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "summary_type": "cls_index", "torch_dtype": "float32",
    "transformers_version": "4.30.2", "use_cache": True, "vocab_size": VOCABULARY}
DTYPES = {torch.float32: "F32", torch.int64: "I64", torch.bool: "BOOL"}


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.contiguous().numpy().tobytes())


def make_weights():
    generator = torch.Generator().manual_seed(2019)
    normal = lambda *shape, std=0.3: torch.randn(shape, generator=generator) * std
    weights = {"transformer.wte.weight": normal(VOCABULARY, WIDTH),
               "transformer.wpe.weight": normal(POSITIONS, WIDTH)}
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}."
        for name in ("ln_1", "ln_2"):
            weights[block + name + ".weight"] = 1 + normal(WIDTH)
            weights[block + name + ".bias"] = normal(WIDTH)
        mask = torch.tril(torch.ones(POSITIONS, POSITIONS)).bool()
        weights[block + "attn.bias"] = mask.view(1, 1, POSITIONS, POSITIONS)
        weights[block + "attn.masked_bias"] = torch.tensor(-1e4)
        for name, inputs, outputs in (("attn.c_attn", WIDTH, 3 * WIDTH), ("attn.c_proj", WIDTH, WIDTH),
                                      ("mlp.c_fc", WIDTH, 4 * WIDTH), ("mlp.c_proj", 4 * WIDTH, WIDTH)):
            weights[block + name + ".weight"] = normal(inputs, outputs)
            weights[block + name + ".bias"] = normal(outputs)
    weights["transformer.ln_f.weight"] = 1 + normal(WIDTH)
    weights["transformer.ln_f.bias"] = normal(WIDTH)
    return weights


def logits_of(weights, ids):
    batch, tokens = ids.shape
    get = lambda name: weights["transformer." + name]
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), get(name + ".weight"), get(name + ".bias"), 1e-5)

    def conv1d(x, name):
        weight = get(name + ".weight")
        return torch.addmm(get(name + ".bias"), x.view(-1, x.size(-1)), weight).view(
            batch, tokens, weight.size(1))

    split = lambda x: x.view(batch, tokens, HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)
    x = get("wte.weight")[ids] + get("wpe.weight")[:tokens]
    for layer in range(LAYERS):
        block = f"h.{layer}."
        query, key, value = map(split, conv1d(norm(x, block + "ln_1"), block + "attn.c_attn")
                                .split(WIDTH, dim=2))
        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        mask = get(block + "attn.bias")[:, :, :tokens, :tokens]
        scores = torch.where(mask, scores, torch.tensor(torch.finfo(scores.dtype).min))
        mixed = torch.matmul(F.softmax(scores, dim=-1), value).permute(0, 2, 1, 3)
        x = x + conv1d(mixed.reshape(batch, tokens, WIDTH), block + "attn.c_proj")
        hidden = conv1d(norm(x, block + "ln_2"), block + "mlp.c_fc")
        hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) *
                                                (hidden + 0.044715 * torch.pow(hidden, 3))))
        x = x + conv1d(hidden, block + "mlp.c_proj")
    return torch.matmul(norm(x, "ln_f"), get("wte.weight").t())


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    weights = make_weights()
    write_safetensors(OUT / "model.safetensors", weights)
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=2, sort_keys=True) + "\n")
    ids = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
    # Computed in f64, so that a difference from zerograd's f32 result is zerograd's rounding error.
    double = {name: w.double() if w.is_floating_point() else w for name, w in weights.items()}
    logits = logits_of(double, ids)
    write_safetensors(OUT / "logits.safetensors", {"ids": ids, "logits": logits.float()})
    tokens = torch.tensor([(i * i + 3 * i) % VOCABULARY for i in range(65)])
    inputs = torch.stack([tokens[s:s + 16] for s in range(0, 64, 16)])
    targets = torch.stack([tokens[s + 1:s + 17] for s in range(0, 64, 16)])
    loss = F.cross_entropy(logits_of(double, inputs).view(-1, VOCABULARY), targets.reshape(-1))
    (OUT / "expected.json").write_text(json.dumps(
        {"torch": torch.__version__, "tokens": "(i * i + 3 * i) % 61 for i in 0 .. 64",
         "loss": loss.item(), "largest_logit": logits.abs().max().item()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
