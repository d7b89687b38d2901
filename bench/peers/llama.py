#!/usr/bin/env python3
"""Times a Llama model in Hugging Face transformers on the CPU: a training step, or generating tokens greedily with a
cache of keys and values. Prints JSON.

The model has the sizes of zerograd's preset of the same name (--model): grouped-query attention by
scaled_dot_product_attention, RMSNorm, gated SiLU, rotary positions, tied embeddings. The optimizer is AdamW with
fused=True. With --compile, torch.compile compiles the forward pass with the loss; the compilation is part of the
warm-up. With --lora R, PEFT adds adapters of rank R to all linear layers of the blocks, which alone are trained.
usage: llama.py step|generate [flags]"""
import argparse
import resource
import time

import measured
import torch
from transformers import LlamaConfig, LlamaForCausalLM

# layers, heads, key-value heads, width, feed-forward width, tokens, rope theta
SIZES = {"smollm2-135m": (30, 9, 3, 576, 1536, 49152, 1e5), "smollm2-360m": (32, 15, 5, 960, 2560, 49152, 1e5),
         "llama-3.2-1b": (16, 32, 8, 2048, 8192, 128256, 5e5)}


def model_of(flags):
    layers, heads, kv_heads, width, hidden, vocabulary, base = SIZES[flags.model]
    sizes = dict(num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=width,
                 intermediate_size=hidden, vocab_size=vocabulary, max_position_embeddings=flags.block_size,
                 rms_norm_eps=1e-5, tie_word_embeddings=True, use_cache=flags.work == "generate",
                 attn_implementation="sdpa")
    try:  # transformers 5
        config = LlamaConfig(rope_parameters={"rope_type": "default", "rope_theta": base}, **sizes)
    except TypeError:
        config = LlamaConfig(rope_theta=base, **sizes)
    return LlamaForCausalLM(config).train()


def with_adapters(model, rank):
    from peft import LoraConfig, get_peft_model
    return get_peft_model(model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def step_times(flags):
    model = model_of(flags)
    vocabulary = model.config.vocab_size
    if flags.lora:
        model = with_adapters(model, flags.lora)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    shape = flags.batch_size, flags.block_size
    ids, targets = (torch.randint(0, vocabulary, shape) for _ in range(2))

    def loss_of(ids, targets):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=flags.precision == "bf16"):
            logits = model(input_ids=ids).logits
        return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))

    forward = torch.compile(loss_of) if flags.compile else loss_of

    def step():
        loss = forward(ids, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        return loss.item()

    return {"tokens": flags.batch_size * flags.block_size, **measured.times(step, flags.warm_up, flags.steps)}


@torch.no_grad()
def generate_times(flags):
    model = model_of(flags).eval()
    if flags.precision == "bf16":
        model = model.to(torch.bfloat16)
    prompt = torch.randint(0, model.config.vocab_size, (flags.batch_size, flags.prompt))
    prefills, tokens = [], []
    for repeat in range(2):  # the first one is the warm-up
        ids, cache = prompt, None
        for token in range(flags.tokens):
            start = time.perf_counter()
            out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, ids = out.past_key_values, out.logits[:, -1].argmax(dim=-1, keepdim=True)
            ids.tolist()
            if repeat:
                (tokens if token else prefills).append(time.perf_counter() - start)
    return {"tokens": flags.batch_size, "prefill": measured.summary(prefills), "decode": measured.summary(tokens)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    works = {"step": step_times, "generate": generate_times}
    parser.add_argument("work", choices=works, help="the measurement")
    parser.add_argument("--model", choices=SIZES, default="smollm2-135m")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--compile", action="store_true")
    for name, value in {"vocab-size": 49152, "block-size": 256, "batch-size": 4, "threads": 1, "warm-up": 1,
                        "steps": 2, "lora": 0, "prompt": 128, "tokens": 128}.items():
        parser.add_argument("--" + name, type=int, default=value)
    flags = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(flags.threads)
    record = works[flags.work](flags)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measured.report({**record, "peak_resident_bytes": used * 1024})


if __name__ == "__main__":
    main()
