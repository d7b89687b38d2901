#!/usr/bin/env python3
"""Times a training step of a Llama model in Hugging Face transformers on the CPU. Prints JSON.

The model has the sizes of zerograd's preset of the same name (--model): grouped-query attention by
scaled_dot_product_attention, RMSNorm, gated SiLU, rotary positions, tied embeddings. The optimizer is AdamW with
fused=True. With --compile, torch.compile compiles the forward pass with the loss; the compilation is part of the
warm-up.
usage: llama.py step [flags]"""
import argparse
import resource

import measured
import torch
from transformers import LlamaConfig, LlamaForCausalLM

# layers, heads, key-value heads, width, feed-forward width, tokens, rope theta
SIZES = {"smollm2-135m": (30, 9, 3, 576, 1536, 49152, 1e5), "smollm2-360m": (32, 15, 5, 960, 2560, 49152, 1e5)}


def model_of(flags):
    layers, heads, kv_heads, width, hidden, vocabulary, base = SIZES[flags.model]
    sizes = dict(num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=width,
                 intermediate_size=hidden, vocab_size=vocabulary, max_position_embeddings=flags.block_size,
                 rms_norm_eps=1e-5, tie_word_embeddings=True, use_cache=False, attn_implementation="sdpa")
    try:  # transformers 5
        config = LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": base}, **sizes)
    except TypeError:
        config = LlamaConfig(rope_theta=base, **sizes)
    return LlamaForCausalLM(config).train()


def step_times(flags):
    model = model_of(flags)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    shape = flags.batch_size, flags.block_size
    ids, targets = (torch.randint(0, model.config.vocab_size, shape) for _ in range(2))

    def loss_of(ids, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.precision == "bf16"):
            logits = model(input_ids=ids).logits
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))

    forward = torch.compile(loss_of) if flags.compile else loss_of

    def step():
        loss = forward(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return {"tokens": flags.batch_size * flags.block_size, **measured.times(step, flags.warm_up, flags.steps)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("step",), help="the measurement")
    parser.add_argument("--model", choices=SIZES, default="smollm2-135m")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--compile", action="store_true")
    for name, value in {"block-size": 256, "batch-size": 4, "threads": 1, "warm-up": 1, "steps": 2}.items():
        parser.add_argument("--" + name, type=int, default=value)
    flags = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(flags.threads)
    record = step_times(flags)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured.report({**record, "peak_resident_bytes": used * 1024})


if __name__ == "__main__":
    main()
