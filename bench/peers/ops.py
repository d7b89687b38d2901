#!/usr/bin/env python3
"""Parts of a step in PyTorch: products of matrices, causal attention forward and backward, AdamW.
Prints JSON.
usage: ops.py gemm|attention|grouped-attention|adamw [--threads N]"""
import argparse
import math
import time

import measured
import torch
from torch.nn import functional as F

GEMM = [(1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (512, 50257, 768),
        (2048, 2048, 2048), (64, 48, 48)]


def effort(run, seconds=0.3):
    """Takes samples for about this many seconds, with several calls in each if one call is short."""
    run()
    start = time.perf_counter()
    run()
    once = time.perf_counter() - start
    calls = max(1, int(2e-4 / once))

    def sample():
        for _ in range(calls):
            run()

    found = measured.times(sample, 1, min(50, max(3, int(seconds / (once * calls)))))
    return {**found, "median_s": found["median_s"] / calls, "best_s": found["best_s"] / calls}


def gemm():
    rows = []
    for name, dtype in ("f32", torch.float32), ("bf16", torch.bfloat16):
        for M, N, K in GEMM:
            a, b = torch.randn(M, K).to(dtype), torch.randn(N, K).to(dtype)
            out = torch.empty(M, N, dtype=dtype)
            with torch.no_grad():
                rows.append({"shape": f"{M}x{N}x{K}", "dtype": name,
                             **effort(lambda: torch.mm(a, b.t(), out=out))})
    return {"rows": rows}


def attention(H=12, T=1024, D=64):
    q, k, v = (torch.randn(1, H, T, D, requires_grad=True) for _ in range(3))
    mask, gradient = torch.tril(torch.ones(T, T)) == 0, torch.randn(1, H, T, D)

    def attend():
        if hasattr(F, "scaled_dot_product_attention"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(D))
        return F.softmax(scores.masked_fill(mask, float("-inf")), dim=-1) @ v

    return effort(lambda: torch.autograd.grad(attend(), (q, k, v), gradient), 2.0)


def grouped_attention(B=4, H=9, groups=3, T=256, D=64):
    q, gradient = torch.randn(B, H, T, D, requires_grad=True), torch.randn(B, H, T, D)
    k, v = (torch.randn(B, groups, T, D, requires_grad=True) for _ in range(2))

    def attend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    return effort(lambda: torch.autograd.grad(attend(), (q, k, v), gradient), 2.0)


def adamw(numel=100_000_000):
    parameter = torch.nn.Parameter(torch.zeros(numel))
    parameter.grad = torch.full((numel,), 1e-3)
    try:
        optimizer = torch.optim.AdamW([parameter], lr=1e-4, fused=True)
    except (TypeError, RuntimeError):  # this version has no fused AdamW, or none for the CPU
        optimizer = torch.optim.AdamW([parameter], lr=1e-4)
    return measured.times(optimizer.step, 2, 5)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    works = {"gemm": gemm, "attention": attention, "grouped-attention": grouped_attention, "adamw": adamw}
    parser.add_argument("work", choices=works)
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(flags.threads)
    measured.report(works[flags.work]())


if __name__ == "__main__":
    main()
