#!/usr/bin/env python3
"""Makes tests/reference/fixtures/attention.json with PyTorch: scaled_dot_product_attention with
grouped queries and transformers' masks for sliding windows, packed documents and padding, and its
gradients in f64. Not needed to run the tests; run it to make the file again, with torch and
transformers installed:

    python3 tests/reference/make_attention_fixtures.py

Tensors are [B, tokens, heads * D], as projections give them.
"""
import json
import pathlib

import torch
import torch.nn.functional as F
from transformers import masking_utils as masks

OUT = pathlib.Path(__file__).parent / "fixtures" / "attention.json"
generator = torch.Generator().manual_seed(23)
B, D = 2, 3


def random(tokens, heads):
    values = torch.randint(-64, 65, (B, tokens, heads * D), generator=generator)
    return (values.double() / 64).requires_grad_()


def starts_of(lengths):
    return [sum(lengths[:i]) for i, length in enumerate(lengths) for _ in range(length)]


def case(heads, kv_heads, T, keys, causal=True, window=0, documents=None, key_lengths=None):
    q, k, v = random(T, heads), random(keys, kv_heads), random(keys, kv_heads)
    dout = random(T, heads).detach()
    starts = torch.tensor([starts_of(lengths) for lengths in documents]) if documents else None
    rules = [masks.causal_mask_function] if causal else []
    if window:
        rules.append(masks.sliding_window_overlay(window))
    if documents:
        rules.append(masks.packed_sequence_mask_function(starts))
    if key_lengths:
        valid = torch.arange(keys) < torch.tensor(key_lengths)[:, None]
        rules.append(masks.padding_mask_function(valid))
    sees = masks.and_masks(*rules) if rules else lambda b, h, i, j: torch.tensor(True)
    offset = keys - T if causal else 0
    mask = torch.stack([torch.stack([torch.stack([sees(b, 0, i + offset, j) for j in range(keys)])
                                     for i in torch.arange(T)]) for b in range(B)])[:, None]

    def apart(x, n):
        return x.unflatten(2, (n, D)).transpose(1, 2)

    out = F.scaled_dot_product_attention(apart(q, heads), apart(k, kv_heads), apart(v, kv_heads),
                                         attn_mask=mask, enable_gqa=True)
    out = out.transpose(1, 2).flatten(2)
    out.backward(dout)
    tensors = {"q": q, "k": k, "v": v, "dout": dout, "out": out, "dq": q.grad, "dk": k.grad,
               "dv": v.grad}
    assert all(torch.isfinite(x).all() for x in tensors.values())
    return {"heads": heads, "causal": causal, "window": window,
            "starts": starts.flatten().tolist() if documents else [],
            "key_lengths": key_lengths or [], "hidden_rows": int((~mask.any(-1)).sum()),
            **{name: {"shape": list(x.shape), "values": x.detach().flatten().tolist()}
               for name, x in tensors.items()}}


CASES = [case(5, 1, 3, 3), case(4, 2, 3, 5, window=2), case(2, 2, 6, 6, window=3),
         case(2, 1, 7, 7, documents=[[3, 4], [1, 5, 1]]),
         case(4, 2, 7, 7, window=2, documents=[[7], [2, 4, 1]]),
         case(2, 1, 3, 4, causal=False, key_lengths=[4, 2]),
         case(3, 3, 5, 5, key_lengths=[3, 5]),
         case(4, 2, 6, 6, window=2, key_lengths=[3, 6]),
         case(2, 1, 2, 3, causal=False, key_lengths=[0, 3])]
OUT.write_text("[\n" + ",\n".join(json.dumps(c) for c in CASES) + "\n]\n")
