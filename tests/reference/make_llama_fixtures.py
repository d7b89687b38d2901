#!/usr/bin/env python3
"""Makes tests/reference/fixtures/hf_llama, hf_mistral and the others of MODELS with transformers: tiny
random models as save_pretrained() writes them, and what they compute. Not needed to run the tests; to make the
files again, with PyTorch and transformers 5:

    python3 tests/reference/make_llama_fixtures.py

expected.safetensors has ids [2, 12], the logits [2, 12, V] of all tokens, the mean loss of predicting tokens 1 to
11 from tokens 0 to 10 (of some models also the logits of bf16), the gradient of every parameter ("gradient.NAME") and the parameters after one step of
AdamW on it ("updated.NAME": rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1 of linear layers' weights).
hf_mistral and hf_qwen2 have a config.json in the keys of transformers 4; hf_llama is sharded. With names as
arguments only these are made.
"""
import copy
import json
import pathlib
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig,
                          LlamaForCausalLM, MistralConfig, MistralForCausalLM, Olmo2Config, Olmo2ForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
VOCABULARY, TOKENS = 61, 12
SIZES = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 32, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": None}
# Llama 3.1's rule with all three kinds of frequencies; 5 query heads on 1 key-value head, 5 x 6 != 20.
LLAMA3 = {"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 8}
MODELS = {
    "hf_llama": LlamaForCausalLM(LlamaConfig(
        **SIZES, hidden_size=20, intermediate_size=28, num_attention_heads=5, num_key_value_heads=1, head_dim=6,
        rms_norm_eps=1e-5, tie_word_embeddings=False, rope_parameters=LLAMA3)),
    "hf_smollm2": LlamaForCausalLM(LlamaConfig(
        **SIZES, hidden_size=36, intermediate_size=20, num_attention_heads=9, num_key_value_heads=3,
        rms_norm_eps=1e-5, tie_word_embeddings=True)),
    "hf_mistral": MistralForCausalLM(MistralConfig(
        **SIZES, hidden_size=24, intermediate_size=20, num_attention_heads=4, num_key_value_heads=2,
        sliding_window=5, rms_norm_eps=1e-5, tie_word_embeddings=False)),
    "hf_qwen2": Qwen2ForCausalLM(Qwen2Config(
        **SIZES, hidden_size=24, intermediate_size=20, num_attention_heads=6, num_key_value_heads=2,
        tie_word_embeddings=True, rope_parameters=YARN)),
    "hf_qwen3": Qwen3ForCausalLM(Qwen3Config(
        **SIZES, hidden_size=20, intermediate_size=28, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
        tie_word_embeddings=True)),
    # 4 of a head's 8 elements are turned.
    "hf_gpt_neox": GPTNeoXForCausalLM(GPTNeoXConfig(
        **SIZES, hidden_size=24, intermediate_size=28, num_attention_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5})),
    "hf_gpt_neox_serial": GPTNeoXForCausalLM(GPTNeoXConfig(
        **SIZES, hidden_size=24, intermediate_size=20, num_attention_heads=3, use_parallel_residual=False,
        hidden_act="gelu_new", tie_word_embeddings=True)),
    "hf_olmo2": Olmo2ForCausalLM(Olmo2Config(
        **SIZES, hidden_size=36, intermediate_size=20, num_attention_heads=9, num_key_value_heads=3)),
    # Layer 2 has no window, and rotary positions of its own.
    "hf_gemma3": Gemma3ForCausalLM(Gemma3TextConfig(
        **SIZES | {"num_hidden_layers": 3}, hidden_size=20, intermediate_size=28, num_attention_heads=5,
        num_key_value_heads=1, head_dim=6, query_pre_attn_scalar=7, sliding_window=5, sliding_window_pattern=2,
        rope_parameters={"full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}})),
    # 6 of a head's 10 elements are turned; 12 tokens are more than the 8 of the first training.
    "hf_phi3": Phi3ForCausalLM(Phi3Config(
        **SIZES, hidden_size=30, intermediate_size=20, num_attention_heads=3, num_key_value_heads=1, sliding_window=5,
        original_max_position_embeddings=8,
        rope_parameters={"rope_type": "longrope", "rope_theta": 100.0, "partial_rotary_factor": 0.6,
                         "short_factor": [1.0, 1.25, 1.5], "long_factor": [1.0, 2.5, 7.0],
                         "original_max_position_embeddings": 8})),
}


def to_transformers4(config):
    """The keys that transformers 4 writes in place of rope_parameters and dtype."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.30.2"
    config.pop("layer_types", None)
    return config


def main():
    for name, model in MODELS.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        generator = torch.Generator().manual_seed(2023)
        with torch.no_grad():
            for parameter in model.parameters():
                # Gemma adds 1 itself; its embeddings are multiplied, so that less noise gives the same rounding.
                noise = torch.randn(parameter.shape, generator=generator) * (0.1 if name == "hf_gemma3" else 0.3)
                parameter.copy_(noise + 1 if parameter.dim() == 1 and name != "hf_gemma3" else noise)
        model.config._attn_implementation = "eager"
        folder = FIXTURES / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, max_shard_size="12KB" if name == "hf_llama" else "1GB")
        if name in ("hf_mistral", "hf_qwen2"):
            path = folder / "config.json"
            path.write_text(json.dumps(to_transformers4(json.loads(path.read_text())), indent=2) + "\n")
        ids = torch.randint(VOCABULARY, (2, TOKENS), generator=generator)
        logits = model(ids).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        expected = {"ids": ids, "logits": logits.detach(), "loss": loss.detach().reshape(1)}
        if name in ("hf_gpt_neox", "hf_gpt_neox_serial", "hf_olmo2", "hf_gemma3", "hf_phi3"):
            expected["logits_of_bf16"] = copy.deepcopy(model).to(torch.bfloat16)(ids).logits.detach().float()
        # Names in files: transformers 5 calls the head of GPT-NeoX lm_head.
        in_file = (lambda key: key.replace("lm_head", "embed_out")) if "neox" in name else str
        named = {in_file(key): value for key, value in model.named_parameters()}
        expected |= {f"gradient.{key}": value.grad.clone() for key, value in named.items()}
        tables = ("model.embed_tokens.weight", "gpt_neox.embed_in.weight")
        decays = [value for key, value in named.items() if value.dim() == 2 and key not in tables]
        others = [value for key, value in named.items() if value.dim() == 1 or key in tables]
        optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": 0.1},
                                       {"params": others, "weight_decay": 0.0}],
                                      lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        optimizer.step()
        expected |= {f"updated.{key}": value.detach().clone() for key, value in named.items()}
        save_file(expected, folder / "expected.safetensors")
        print(name, f"loss {loss.item():.6f}", sorted(path.name for path in folder.iterdir()))


main()
