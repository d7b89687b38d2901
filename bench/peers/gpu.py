#!/usr/bin/env python3
"""Measures PyTorch on a GPU: its kernels, with the names and sizes of `zerograd bench kernels --device cuda`,
and steps of GPT-2 124M as nanoGPT takes them. Prints a line of JSON for each as it is measured: the median,
or the problem that it met. Exits with "SKIPPED: reason" where PyTorch sees no GPU.

usage: gpu.py steps|kernels [--rehearse]
       gpu.py --names
--rehearse: tiny, on the CPU, to try the program itself
--names: prints the names of the kernels, without PyTorch"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch.nn import functional as F
except ImportError:  # --names needs neither
    torch = F = None


class Bench:
    """Makes each case's operands when the case is measured. A case is (name, function that makes the
    function to time)."""

    def __init__(self, rehearses):
        self.rehearses = rehearses
        self.device = "cpu" if rehearses else "cuda"

    def tensor(self, *shape, dtype=None):
        return torch.empty(shape, dtype=dtype or torch.bfloat16, device=self.device).uniform_(-1, 1)

    def median_seconds(self, run, samples=20):
        if self.rehearses:
            run()
            began = time.perf_counter()
            run()
            return time.perf_counter() - began
        for _ in range(3):
            run()
        times = []
        for _ in range(samples):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)

    def cases(self):
        return [*self.matmuls(), *self.attentions(), *self.rows(), *self.elements()]

    def matmuls(self):
        sizes = [("NT", 16384, 2304, 768), ("NT", 16384, 3072, 768), ("NT", 16384, 768, 3072),
                 ("NN", 16384, 768, 3072), ("TN", 768, 3072, 16384), ("NT", 4096, 50257, 768),
                 ("NN", 4096, 768, 50257), ("TN", 50257, 768, 4096), ("NN", 8192, 8192, 8192)]

        def rows(count, length):  # each begins at a multiple of 16 bytes
            return self.tensor(count, (length + 7) // 8 * 8)[:, :length]

        def make(form, M, N, K):
            a = rows(K, M).t() if form[0] == "T" else rows(M, K)
            b = rows(N, K).t() if form[1] == "T" else rows(K, N)
            out = rows(M, N)
            return lambda: torch.mm(a, b, out=out)

        for form, M, N, K in [("NT", 64, 48, 48)] if self.rehearses else sizes:
            yield f"matmul {form} {M}x{N}x{K} bf16", lambda of=(form, M, N, K): make(*of)

    def attentions(self):
        sizes = [(4, 16, 4096, 128), (16, 16, 1024, 64), (4, 16, 1024, 96)]

        def operands(B, H, T, D):
            return [self.tensor(B, H, T, D).requires_grad_() for _ in range(3)]

        def attend(q, k, v):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward(*size):
            q, k, v = (x.detach() for x in operands(*size))
            return lambda: attend(q, k, v)

        def backward(*size):
            q, k, v = operands(*size)
            out, dout = attend(q, k, v), self.tensor(*size)
            return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        for size in [(1, 1, 16, 16)] if self.rehearses else sizes:
            shape = "B{} H{} T{} d{} bf16".format(*size)
            yield f"attention forward {shape}", lambda of=size: forward(*of)
            yield f"attention backward {shape}", lambda of=size: backward(*of)

    def rows(self):
        N, C, vocabulary = (64, 32, 65) if self.rehearses else (65536, 1024, 50257)
        M = 16 if self.rehearses else 8192

        def norm_forward():
            x, residual, gamma, beta = (self.tensor(*shape) for shape in ((N, C), (N, C), (C,), (C,)))
            return lambda: F.layer_norm(x + residual, (C,), gamma, beta)

        def norm_backward():
            leaf, gamma, beta = (self.tensor(*shape).requires_grad_() for shape in ((N, C), (C,), (C,)))
            y, dy = F.layer_norm(leaf, (C,), gamma, beta), self.tensor(N, C)
            return lambda: torch.autograd.grad(y, (leaf, gamma, beta), dy, retain_graph=True)

        def loss_forward():
            logits, targets = self.tensor(M, vocabulary), self.targets(M, vocabulary)
            return lambda: F.cross_entropy(logits, targets)

        def loss_backward():
            logits = self.tensor(M, vocabulary).requires_grad_()
            loss = F.cross_entropy(logits, self.targets(M, vocabulary))
            return lambda: torch.autograd.grad(loss, logits, retain_graph=True)

        yield f"layer_norm forward, residual {N}x{C} bf16", norm_forward
        yield f"layer_norm backward, residual {N}x{C} bf16", norm_backward
        yield f"cross_entropy forward {M}x{vocabulary} bf16", loss_forward
        yield f"cross_entropy backward {M}x{vocabulary} bf16", loss_backward

    def targets(self, count, vocabulary):
        return torch.randint(vocabulary, (count,), device=self.device)

    def elements(self):
        rows = 1 if self.rehearses else 32768
        parameters = 1000 if self.rehearses else 800_000_000

        def unary(function):
            x = self.tensor(rows * 3072)
            return lambda: function(x)

        def adamw():
            weight = torch.nn.Parameter(self.tensor(parameters, dtype=torch.float32))
            weight.grad = self.tensor(parameters, dtype=torch.float32)
            return torch.optim.AdamW([weight], lr=1e-3, fused=True).step

        yield (f"gelu forward {rows}x3072 bf16",
               lambda: unary(lambda x: F.gelu(x, approximate="tanh")))
        yield f"add {rows}x3072 bf16", lambda: unary(lambda x: x + x)
        yield f"adamw {parameters} f32", adamw

    def steps(self):
        """Training steps of bench/peers/gpt.py: as they are, then compiled."""
        import gpt

        def make(model, batch, block_size, vocabulary, compiled):
            torch.set_default_device(self.device)
            torch.set_float32_matmul_precision("high")
            flags = {"model": model, "vocab_size": vocabulary, "block_size": block_size, "gelu": "tanh"}
            module = gpt.GPT(argparse.Namespace(**flags))
            optimizer = gpt.optimizer_of(module)
            forward = torch.compile(module) if compiled else module
            ids, targets = (torch.randint(vocabulary, (batch, block_size)) for _ in range(2))

            def step():
                with torch.autocast(self.device, dtype=torch.bfloat16):
                    loss = forward(ids, targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
                optimizer.step()

            return step

        sizes = [("gpt2", 16, 1024, 50257, False), ("gpt2-xl", 8, 1024, 50257, False), ("gpt2", 16, 1024, 50257, True)]
        for model, batch, block_size, vocabulary, compiled in [("gpt-nano", 2, 8, 65, False)] if self.rehearses else sizes:
            yield (f"step{', torch.compile' if compiled else ''} {model} B{batch} T{block_size} bf16",
                   lambda of=(model, batch, block_size, vocabulary, compiled): make(*of))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", nargs="?", choices=["steps", "kernels"])
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--names", action="store_true")
    flags = parser.parse_args()
    bench = Bench(flags.rehearse)
    if flags.names:
        return print("\n".join(name for name, _ in bench.cases()))
    if torch is None:
        sys.exit("SKIPPED: this Python has no PyTorch")
    if not flags.rehearse and not torch.cuda.is_available():
        sys.exit("SKIPPED: this PyTorch sees no GPU")
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for name, make in bench.steps() if flags.kind == "steps" else bench.cases():
        try:
            row = {"text": name, "median_s": bench.median_seconds(make())}
        except Exception as problem:  # the others are still worth measuring
            row = {"text": name, "problem": f"{type(problem).__name__}: {str(problem)[:200]}"}
        print(json.dumps(row), flush=True)
        if not flags.rehearse:
            torch.cuda.empty_cache()


main()
