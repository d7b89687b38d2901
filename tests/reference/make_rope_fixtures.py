#!/usr/bin/env python3
"""Makes tests/reference/fixtures/rope.json: the frequencies of rotary positions that transformers
computes, to the bit. Not needed to run the tests; run it to make the file again, with torch and
transformers installed, on a processor with AVX-512: a vector is raised to powers 32 elements at a
time there, and the remainder by the C library, so that the bits differ with AVX2 in heads whose
size 64 does not divide.

    python3 tests/reference/make_rope_fixtures.py
"""
import json
import pathlib

import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

OUT = pathlib.Path(__file__).parent / "fixtures" / "rope.json"
assert torch.backends.cpu.get_cpu_capability() == "AVX512"

LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
CASES = [(size, {"rope_type": "default", "rope_theta": theta})
         for size, theta in [(2, 1e4), (14, 1e6), (64, 1e4), (96, 1e4), (112, 2.5e5), (128, 5e5),
                             (160, 1.5e5), (192, 1234.567), (256, 1e6)]]
CASES += [(size, {"rope_type": "linear", "rope_theta": 1e4, "factor": factor})
          for size, factor in [(64, 3.3), (80, 4.0)]]
CASES += [(size, {**LLAMA3, "rope_theta": 5e5, "factor": factor,
                  "original_max_position_embeddings": longest})
          for size, factor, longest in [(64, 32.0, 8192), (128, 8.0, 8192), (48, 3.3, 64)]]
CASES += [(size, {"rope_type": "yarn", "rope_theta": theta, "factor": factor, "truncate": truncate,
                  "beta_fast": fast, "beta_slow": 1.0, "original_max_position_embeddings": longest})
          for size, theta, factor, truncate, fast, longest in [
              (128, 1e6, 4.0, True, 32.0, 32768), (64, 1e4, 40.0, False, 16.0, 2048)]]

rows = []
for size, rope in CASES:
    config = LlamaConfig(hidden_size=2 * size, num_attention_heads=2, head_dim=size,
                         max_position_embeddings=131072, rope_parameters=rope)
    bits = LlamaRotaryEmbedding(config).inv_freq.view(torch.int32).tolist()
    rows.append({"head_dim": size, "rope_parameters": rope, "bits": bits})
OUT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
