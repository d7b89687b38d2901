#!/usr/bin/env python3
"""Times the greedy generation of llama.cpp (pip install llama-cpp-python gguf) with random weights: the prompt in one
pass, then token by token. Prints JSON.

The GGUF file has the sizes of llama.py's model and its matrices in --precision. The cache of keys and values is f16,
llama.cpp's default.
usage: llamacpp.py generate [flags]"""
import argparse
import ctypes
import os
import tempfile
import time

import gguf
import llama
import measured
import numpy as np
from llama_cpp import llama_cpp as api


def write_model(path, name, precision, block_size):
    layers, heads, kv_heads, width, hidden, vocabulary, base = llama.SIZES[name]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(block_size)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(base)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(0)

    def matrix(name, rows, columns):
        values = random.standard_normal((rows, columns), dtype=np.float32) * 0.02
        if precision == "bf16":
            writer.add_tensor(name, gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, values)

    def norm(name):
        writer.add_tensor(name, np.ones(width, np.float32))

    matrix("token_embd.weight", vocabulary, width)
    norm("output_norm.weight")
    kv_width = width // heads * kv_heads
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        norm(f"blk.{i}.ffn_norm.weight")
        for part, rows, columns in (("attn_q", width, width), ("attn_k", kv_width, width), ("attn_v", kv_width, width),
                                    ("attn_output", width, width), ("ffn_gate", hidden, width),
                                    ("ffn_up", hidden, width), ("ffn_down", width, hidden)):
            matrix(f"blk.{i}.{part}.weight", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return vocabulary


class Context:
    def __init__(self, model, flags):
        parameters = api.llama_context_default_params()
        parameters.n_ctx = flags.prompt + flags.tokens
        parameters.n_batch = parameters.n_ubatch = flags.prompt
        parameters.n_threads = parameters.n_threads_batch = flags.threads
        self.context = api.llama_init_from_model(model, parameters)
        if not self.context:
            raise RuntimeError("llama.cpp makes no context")
        self.batch, self.length = api.llama_batch_init(flags.prompt, 0, 1), 0

    def next_token(self, ids, vocabulary):
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i], self.batch.pos[i], self.batch.n_seq_id[i] = token, self.length + i, 1
            self.batch.seq_id[i][0], self.batch.logits[i] = 0, i + 1 == len(ids)
        if api.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        self.length += len(ids)
        logits = np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, len(ids) - 1), (vocabulary,))
        return int(logits.argmax())

    def close(self):
        api.llama_batch_free(self.batch)
        api.llama_free(self.context)


def generate_times(flags, path):
    vocabulary = write_model(path, flags.model, flags.precision, flags.prompt + flags.tokens)
    model = api.llama_model_load_from_file(path.encode(), api.llama_model_default_params())
    if not model:
        raise RuntimeError(f"llama.cpp does not load {path}")
    prompt = [int(token) for token in np.random.default_rng(1).integers(vocabulary, size=flags.prompt)]
    prefills, tokens = [], []
    for repeat in range(2):  # the first one is the warm-up
        context, ids = Context(model, flags), prompt
        for token in range(flags.tokens):
            start = time.perf_counter()
            ids = [context.next_token(ids, vocabulary)]
            if repeat:
                (tokens if token else prefills).append(time.perf_counter() - start)
        context.close()
    return {"tokens": 1, "prefill": measured.summary(prefills), "decode": measured.summary(tokens)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", choices=("generate",))
    parser.add_argument("--model", choices=llama.SIZES, default="smollm2-135m")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    for name, value in {"batch-size": 1, "threads": 1, "prompt": 128, "tokens": 128}.items():
        parser.add_argument("--" + name, type=int, default=value)
    flags = parser.parse_args()
    silent = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(silent, ctypes.c_void_p(0))
    api.llama_backend_init()
    with tempfile.TemporaryDirectory() as folder:
        measured.report(generate_times(flags, os.path.join(folder, "model.gguf")))


if __name__ == "__main__":
    main()
