#!/usr/bin/env python3
"""A GPT in PyTorch, written as in minGPT and nanoGPT. Measures the time of a training step, or of generating
tokens with a cache of keys and values. Prints JSON. With --compile, torch.compile compiles the forward pass with the
loss; the compilation is part of the warm-up.

The model is the same as zerograd's, with a tied head and without dropout. It uses PyTorch's fused functions:
the tanh form of GELU in one call (with --gelu minGPT, minGPT's own formula, which is slower), and, where this
version of PyTorch has them, causal scaled_dot_product_attention and AdamW's fused=True.
usage: gpt.py step|generate [flags]"""
import argparse
import math
import resource
import time

import measured
import torch
from torch import nn
from torch.nn import functional as F

SIZES = {"gpt-nano": (3, 3, 48), "gpt-micro": (4, 4, 128), "gpt-mini": (6, 6, 192), "gpt2": (12, 12, 768), "gpt2-xl": (48, 25, 1600)}


class Block(nn.Module):

    def __init__(self, heads, width, block_size, gelu):
        super().__init__()
        self.heads, self.gelu = heads, gelu
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size)) == 0)

    def attend(self, q, k, v):
        first = k.shape[2] - q.shape[2]  # number of tokens that were in the cache before
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.shape[-1]))
        scores = scores.masked_fill(self.mask[first:k.shape[2], :k.shape[2]], float("-inf"))
        return F.softmax(scores, dim=-1) @ v

    def forward(self, x, cache=None):
        B, T, C = x.shape
        q, k, v = (part.view(B, T, self.heads, C // self.heads).transpose(1, 2)
                   for part in self.c_attn(self.ln_1(x)).split(C, dim=2))
        if cache is not None:
            length, keys, values = cache
            keys[:, :, length:length + T], values[:, :, length:length + T] = k, v
            k, v = keys[:, :, :length + T], values[:, :, :length + T]
        x = x + self.attn_proj(self.attend(q, k, v).transpose(1, 2).reshape(B, T, C))
        hidden = self.c_fc(self.ln_2(x))
        if self.gelu == "minGPT":  # its NewGELU
            hidden = 0.5 * hidden * (1.0 + torch.tanh(
                math.sqrt(2.0 / math.pi) * (hidden + 0.044715 * torch.pow(hidden, 3.0))))
        else:
            hidden = F.gelu(hidden, approximate="tanh")
        return x + self.mlp_proj(hidden)


class GPT(nn.Module):

    def __init__(self, flags):
        super().__init__()
        layers, self.heads, width = SIZES[flags.model]
        self.wte = nn.Embedding(flags.vocab_size, width)
        self.wpe = nn.Embedding(flags.block_size, width)
        self.blocks = nn.ModuleList(Block(self.heads, width, flags.block_size, flags.gelu)
                                    for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, flags.vocab_size, bias=False)
        self.head.weight = self.wte.weight
        for embedding in self.wte, self.wpe:
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))

    def next_logits(self, ids, length, caches):
        x = self.wte(ids) + self.wpe(torch.arange(length, length + ids.shape[1]))
        for block, (keys, values) in zip(self.blocks, caches):
            x = block(x, (length, keys, values))
        return self.head(self.ln_f(x[:, -1]))


def optimizer_of(model):
    options = {"lr": 5e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **options)
    except (TypeError, RuntimeError):  # this version has no fused AdamW, or none for the CPU
        return torch.optim.AdamW(model.parameters(), **options)


def step_times(flags):
    model = GPT(flags)
    optimizer = optimizer_of(model)
    shape = flags.batch_size, flags.block_size
    ids, targets = (torch.randint(0, flags.vocab_size, shape) for _ in range(2))
    forward = torch.compile(model) if flags.compile else model

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.precision == "bf16"):
            loss = forward(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return {"tokens": flags.batch_size * flags.block_size,
            **measured.times(step, flags.warm_up, flags.steps)}


@torch.no_grad()
def generate_times(flags):
    model = GPT(flags).eval()
    dtype = torch.float32
    if flags.precision == "bf16":
        dtype = torch.bfloat16
        model = model.to(dtype)
    width, layers = SIZES[flags.model][2], len(model.blocks)
    prompt = torch.randint(0, flags.vocab_size, (flags.batch_size, flags.prompt))
    shape = flags.batch_size, model.heads, flags.block_size, width // model.heads
    prefills, tokens = [], []
    for repeat in range(flags.repeats + 1):
        caches = [(torch.empty(shape, dtype=dtype), torch.empty(shape, dtype=dtype))
                  for _ in range(layers)]
        ids, length = prompt, 0
        for token in range(flags.tokens):
            start = time.perf_counter()
            logits = model.next_logits(ids, length, caches)
            length += ids.shape[1]
            ids = logits.argmax(dim=-1, keepdim=True)
            ids.tolist()
            if repeat > 0:  # repeat 0 is the warm-up
                (tokens if token else prefills).append(time.perf_counter() - start)
    return {"tokens": flags.batch_size, "prefill": measured.summary(prefills), "decode": measured.summary(tokens)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("step", "generate"))
    parser.add_argument("--model", choices=SIZES, default="gpt2")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--gelu", choices=("tanh", "minGPT"), default="tanh")
    for name, value in {"vocab-size": 50257, "block-size": 1024, "batch-size": 1, "threads": 1,
                        "warm-up": 2, "steps": 3, "prompt": 128, "tokens": 128,
                        "repeats": 1}.items():
        parser.add_argument("--" + name, type=int, default=value)
    flags = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(flags.threads)
    record = step_times(flags) if flags.work == "step" else generate_times(flags)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured.report({**record, "peak_resident_bytes": used * 1024})


if __name__ == "__main__":
    main()
