#!/usr/bin/env python3
"""Parts of a step in PyTorch: products of matrices, causal attention forward and backward, AdamW.
Prints JSON.
usage: ops.py gemm|onednn|attention|grouped-attention|adamw [--precision f32|bf16] [--threads N]

gemm is torch.mm, which calls MKL in f32. onednn calls oneDNN's product of NT operands, as compiled inference does."""
import argparse
import math
import time

import measured
import torch
from torch.nn import functional as F

# The cases of `bench kernels` with more than one row: the operand that is transposed (N: neither), M, N, K.
GEMM = [("NT", 1024, 768, 768), ("NN", 1024, 768, 768), ("TN", 768, 768, 1024), ("NT", 1024, 3072, 768),
        ("NT", 1024, 768, 3072), ("NN", 1024, 768, 3072), ("TN", 768, 3072, 1024), ("NT", 512, 50257, 768),
        ("NN", 2048, 2048, 2048), ("NT", 64, 48, 48), ("NT", 704, 48, 48), ("NT", 704, 192, 48), ("TN", 48, 192, 704)]


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


def gemm(dtype, is_onednn):
    rows = []
    for kind, M, N, K in GEMM:
        if is_onednn and kind != "NT":
            continue
        a = torch.randn(K, M).to(dtype).t() if kind[0] == "T" else torch.randn(M, K).to(dtype)
        b = torch.randn(N, K).to(dtype).t() if kind[1] == "T" else torch.randn(K, N).to(dtype)
        out = torch.empty(M, N, dtype=dtype)
        product = ((lambda: torch.ops.mkldnn._linear_pointwise(a, b.t(), None, "none", [], "")) if is_onednn else
                   (lambda: torch.mm(a, b, out=out)))
        with torch.no_grad():
            rows.append({"case": f"matmul {kind}", "shape": f"{M}x{N}x{K}",
                         "dtype": "f32" if dtype == torch.float32 else "bf16",
                         **effort(product)})
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
    works = {"gemm": lambda: gemm(dtype, False), "onednn": lambda: gemm(dtype, True), "attention": attention,
             "grouped-attention": grouped_attention, "adamw": adamw}
    parser.add_argument("work", choices=works)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=int, default=1)
    flags = parser.parse_args()
    dtype = torch.float32 if flags.precision == "f32" else torch.bfloat16
    torch.manual_seed(0)
    torch.set_num_threads(flags.threads)
    measured.report(works[flags.work]())


if __name__ == "__main__":
    main()
