#!/usr/bin/env python3
"""Makes tests/reference/fixtures with PyTorch: what a GPT of gpt-micro's shape does on given
weights and batches. Not needed to run the tests; run it to make the files again:

    /usr/bin/python3 tests/reference/make_fixtures.py      (Debian's python3-torch)

Writes weights.safetensors, tokens.bin (llm.c's format), gradients.safetensors (of the first step,
after the mean over the batch, before clipping) and losses.json (20 steps of AdamW with clipping).
The model follows minGPT: pre-LayerNorm, tanh-GELU, learned positions, untied head; no dropout.
"""
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

LAYERS, HEADS, WIDTH, VOCABULARY, BLOCK = 4, 4, 128, 256, 64
BATCH, STEPS, RATE, BETAS, DECAY, CLIP = 8, 20, 5e-4, (0.9, 0.95), 0.1, 1.0
OUT = pathlib.Path(__file__).parent / "fixtures"


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, tensor in tensors.items():
        size = tensor.numel() * 4
        header[name] = {"dtype": "F32", "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().float().contiguous().numpy().tobytes())


def make_weights():
    generator = torch.Generator().manual_seed(1234)
    normal = lambda shape, std: torch.randn(shape, generator=generator) * std
    weights = {"transformer.wte.weight": normal((VOCABULARY, WIDTH), 0.02),
               "transformer.wpe.weight": normal((BLOCK, WIDTH), 0.02)}
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}."
        for norm in ("ln_1", "ln_2"):
            # Off their usual 1 and 0, so that a gradient of the wrong place shows.
            weights[block + norm + ".weight"] = 1 + normal((WIDTH,), 0.1)
            weights[block + norm + ".bias"] = normal((WIDTH,), 0.1)
        for linear, rows, columns in (("attn.c_attn", 3 * WIDTH, WIDTH),
                                      ("attn.c_proj", WIDTH, WIDTH),
                                      ("mlp.c_fc", 4 * WIDTH, WIDTH),
                                      ("mlp.c_proj", WIDTH, 4 * WIDTH)):
            weights[block + linear + ".weight"] = normal((rows, columns), 0.05)
            weights[block + linear + ".bias"] = normal((rows,), 0.05)
    weights["transformer.ln_f.weight"] = 1 + normal((WIDTH,), 0.1)
    weights["transformer.ln_f.bias"] = normal((WIDTH,), 0.1)
    weights["lm_head.weight"] = normal((VOCABULARY, WIDTH), 0.02)
    return weights


def forward(weights, ids, targets):
    batch, tokens = ids.shape
    linear = lambda x, name: F.linear(x, weights[name + ".weight"], weights[name + ".bias"])
    norm = lambda x, name: F.layer_norm(x, (WIDTH,), weights[name + ".weight"],
                                        weights[name + ".bias"], 1e-5)
    split = lambda x: x.view(batch, tokens, HEADS, WIDTH // HEADS).transpose(1, 2)
    mask = torch.tril(torch.ones(tokens, tokens)) == 0
    x = weights["transformer.wte.weight"][ids] + weights["transformer.wpe.weight"][:tokens]
    for layer in range(LAYERS):
        block = f"transformer.h.{layer}."
        q, k, v = map(split, linear(norm(x, block + "ln_1"), block + "attn.c_attn").split(WIDTH, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(WIDTH // HEADS)
        y = F.softmax(scores.masked_fill(mask, float("-inf")), -1) @ v
        x = x + linear(y.transpose(1, 2).reshape(batch, tokens, WIDTH), block + "attn.c_proj")
        h = linear(norm(x, block + "ln_2"), block + "mlp.c_fc")
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h ** 3)))
        x = x + linear(h, block + "mlp.c_proj")
    logits = F.linear(norm(x, "transformer.ln_f"), weights["lm_head.weight"])
    return F.cross_entropy(logits.view(-1, VOCABULARY), targets.reshape(-1))


def main():
    OUT.mkdir(exist_ok=True)
    weights = {name: value.requires_grad_() for name, value in make_weights().items()}
    write_safetensors(OUT / "weights.safetensors", weights)

    # A text with structure: a drifting walk over the vocabulary, so that there is something to learn.
    generator = torch.Generator().manual_seed(5678)
    steps = torch.randint(-3, 4, (16384,), generator=generator)
    tokens = (torch.cumsum(steps, 0) % VOCABULARY).tolist()
    with open(OUT / "tokens.bin", "wb") as file:
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), *([0] * 253)))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))

    decayed = [w for name, w in weights.items()
               if w.dim() == 2 and "wte" not in name and "wpe" not in name]
    others = [w for w in weights.values() if not any(w is d for d in decayed)]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": DECAY},
                                   {"params": others, "weight_decay": 0.0}], lr=RATE, betas=BETAS)
    stream = torch.tensor(tokens)
    losses, norms = [], []
    for step in range(STEPS):
        starts = [(step * BATCH + i) * BLOCK for i in range(BATCH)]
        ids = torch.stack([stream[s:s + BLOCK] for s in starts])
        targets = torch.stack([stream[s + 1:s + BLOCK + 1] for s in starts])
        loss = forward(weights, ids, targets)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            write_safetensors(OUT / "gradients.safetensors",
                              {name: w.grad for name, w in weights.items()})
        norms.append(torch.nn.utils.clip_grad_norm_(list(weights.values()), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    (OUT / "losses.json").write_text(json.dumps(
        {"torch": torch.__version__, "layers": LAYERS, "heads": HEADS, "width": WIDTH,
         "vocabulary": VOCABULARY, "block_size": BLOCK, "batch_size": BATCH, "rate": RATE,
         "losses": losses, "gradient_norms": norms}, indent=1) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
