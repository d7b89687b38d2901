#!/usr/bin/env python3
"""Measures PyTorch's kernels on a GPU, with the names and sizes of `zerograd bench kernels --device cuda`: medians
of CUDA events, as JSON. Exits with "SKIPPED: reason" where PyTorch sees no GPU.

usage: gpu.py [--rehearse]     --rehearse: tiny, on the CPU, to try the program itself"""
import json
import statistics
import sys
import time

import torch
from torch.nn import functional as F

REHEARSES = "--rehearse" in sys.argv[1:]
DEVICE = "cpu" if REHEARSES else "cuda"
BF16, F32 = torch.bfloat16, torch.float32


def median_seconds(run, samples=20):
    for _ in range(3):
        run()
    if REHEARSES:
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    times = []
    for _ in range(samples):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def tensor(*shape, dtype=BF16):
    return torch.empty(shape, dtype=dtype, device=DEVICE).uniform_(-1, 1)


def matmuls():
    sizes = [("NT", 16384, 2304, 768), ("NT", 16384, 3072, 768), ("NT", 16384, 768, 3072),
             ("NN", 16384, 768, 3072), ("TN", 768, 3072, 16384), ("NT", 16384, 50304, 768),
             ("NN", 8192, 8192, 8192)]
    if REHEARSES:
        sizes = [("NT", 64, 48, 48)]
    for form, M, N, K in sizes:
        a = tensor(K, M).t() if form[0] == "T" else tensor(M, K)
        b = tensor(N, K).t() if form[1] == "T" else tensor(K, N)
        out = torch.empty(M, N, dtype=BF16, device=DEVICE)
        yield (f"matmul {form} {M}x{N}x{K} bf16", lambda: torch.mm(a, b, out=out))


def attentions():
    sizes = [(4, 16, 4096, 128), (16, 16, 1024, 64), (4, 16, 1024, 96)]
    for B, H, T, D in [(1, 1, 16, 16)] if REHEARSES else sizes:
        q, k, v = (tensor(B, H, T, D).requires_grad_() for _ in range(3))
        dout, shape = tensor(B, H, T, D), f"B{B} H{H} T{T} d{D} bf16"

        def attend():
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        with torch.no_grad():
            yield f"attention forward {shape}", attend
        out = attend()
        yield (f"attention backward {shape}",
               lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))


def rows():
    N, C, vocabulary = (64, 32, 65) if REHEARSES else (65536, 1024, 50257)
    x, residual = tensor(N, C), tensor(N, C)
    gamma, beta = tensor(C), tensor(C)
    yield (f"layer_norm forward, residual {N}x{C} bf16",
           lambda: F.layer_norm(x + residual, (C,), gamma, beta))
    leaf = x.clone().requires_grad_()
    y = F.layer_norm(leaf, (C,), gamma.requires_grad_(), beta.requires_grad_())
    yield (f"layer_norm backward, residual {N}x{C} bf16",
           lambda: torch.autograd.grad(y, (leaf, gamma, beta), residual, retain_graph=True))
    M = 16 if REHEARSES else 8192
    logits = tensor(M, vocabulary).requires_grad_()
    targets = torch.randint(vocabulary, (M,), device=DEVICE)
    loss = F.cross_entropy(logits, targets)
    with torch.no_grad():
        yield f"cross_entropy forward {M}x{vocabulary} bf16", lambda: F.cross_entropy(logits, targets)
    yield (f"cross_entropy backward {M}x{vocabulary} bf16",
           lambda: torch.autograd.grad(loss, logits, retain_graph=True))


def elements():
    numel = 3072 if REHEARSES else 32768 * 3072
    x, shape = tensor(numel), f"{numel // 3072}x3072"
    yield f"gelu forward {shape} bf16", lambda: F.gelu(x, approximate="tanh")
    yield f"add {shape} bf16", lambda: x + x
    parameters = 1000 if REHEARSES else 800_000_000
    weight = torch.nn.Parameter(tensor(parameters, dtype=F32))
    weight.grad = tensor(parameters, dtype=F32)
    optimizer = torch.optim.AdamW([weight], lr=1e-3, fused=True)
    yield f"adamw {parameters} f32", optimizer.step


def main():
    if not REHEARSES and not torch.cuda.is_available():
        sys.exit("SKIPPED: this PyTorch sees no GPU")
    found = []
    for cases in (matmuls, attentions, rows, elements):
        for text, run in cases():
            found.append({"text": text, "median_s": median_seconds(run)})
    print(json.dumps({"torch": torch.__version__, "rows": found}))


main()
