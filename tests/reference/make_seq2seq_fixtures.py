#!/usr/bin/env python3
"""Makes tests/reference/fixtures/hf_blenderbot and hf_bart with transformers: tiny random models as
save_pretrained() writes them, and what they compute. Not needed to run the tests; to make the files again, with
PyTorch and transformers 5:

    python3 tests/reference/make_seq2seq_fixtures.py

expected.safetensors has sources [3, 9] padded behind `lengths` [3], labels [3, 7] with -100 for padding, the
encoder's output [3, 9, C], the logits [3, 7, V], the mean loss, with label smoothing 0.1 ("smoothed") and without
("loss"), the gradient of `loss` for every parameter ("gradient.NAME"), the parameters after one step of AdamW on it
("updated.NAME": rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8, decay 0.1 of linear layers' weights), and the ids that
generate() gives greedily ("greedy") and with three beams ("beams"). hf_blenderbot is sharded.
"""
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import (BartConfig, BartForConditionalGeneration, BlenderbotConfig,
                          BlenderbotForConditionalGeneration)

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
LENGTHS, TARGET_LENGTHS = [9, 4, 6], [5, 7, 3]
DROPOUTS = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}
MODELS = {
    "hf_blenderbot": BlenderbotForConditionalGeneration(BlenderbotConfig(
        **DROPOUTS, vocab_size=37, max_position_embeddings=16, d_model=12, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=3, decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=28,
        scale_embedding=True)),
    "hf_bart": BartForConditionalGeneration(BartConfig(
        **DROPOUTS, vocab_size=41, max_position_embeddings=13, d_model=15, encoder_layers=2, decoder_layers=1,
        encoder_attention_heads=3, decoder_attention_heads=5, encoder_ffn_dim=17, decoder_ffn_dim=22,
        activation_function="gelu_new", forced_bos_token_id=0)),
}


def decays(name):
    return name.endswith(("proj.weight", "fc1.weight", "fc2.weight"))


def padded(rows, value):
    longest = max(len(row) for row in rows)
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def main():
    for name, model in MODELS.items():
        generator = torch.Generator().manual_seed(2020)
        config = model.config
        with torch.no_grad():
            for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
                noise = torch.randn(tensor.shape, generator=generator) * 0.3
                tensor.copy_(noise + 1 if tensor.dim() == 1 and "bias" not in key else noise)
        model.eval()
        config._attn_implementation = "eager"
        folder = FIXTURES / name
        shutil.rmtree(folder, ignore_errors=True)
        model.generation_config.num_beams = 3
        model.generation_config.max_length = 9
        model.generation_config.no_repeat_ngram_size = 2
        model.generation_config.length_penalty = 0.7
        model.save_pretrained(folder, max_shard_size="15KB" if name == "hf_blenderbot" else "1GB")

        def rows(lengths):
            return [torch.randint(3, config.vocab_size, (n - 1,), generator=generator).tolist() +
                    [config.eos_token_id] for n in lengths]

        source, labels = padded(rows(LENGTHS), config.pad_token_id), padded(rows(TARGET_LENGTHS), -100)
        lengths = torch.tensor(LENGTHS)
        mask = (torch.arange(source.shape[1]) < lengths[:, None]).long()
        output = model(input_ids=source, attention_mask=mask, labels=labels)
        output.loss.backward()
        smoothed = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(),
                                                     label_smoothing=0.1)
        expected = {"source": source, "lengths": lengths, "labels": labels,
                    "encoded": output.encoder_last_hidden_state, "logits": output.logits,
                    "loss": output.loss.reshape(1), "smoothed": smoothed.reshape(1)}
        with torch.no_grad():
            for key, beams in [("greedy", 1), ("beams", 3)]:
                expected[key] = model.generate(source, attention_mask=mask, num_beams=beams, do_sample=False,
                                               max_length=9)
        named = dict(model.named_parameters())
        expected |= {f"gradient.{key}": value.grad.clone() for key, value in named.items()}
        optimizer = torch.optim.AdamW(
            [{"params": [value for key, value in named.items() if decays(key)], "weight_decay": 0.1},
             {"params": [value for key, value in named.items() if not decays(key)], "weight_decay": 0.0}],
            lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
        optimizer.step()
        expected |= {f"updated.{key}": value for key, value in named.items()}
        save_file({key: value.detach().clone().contiguous() for key, value in expected.items()},
                  folder / "expected.safetensors")
        print(name, f"loss {output.loss.item():.6f}", expected["greedy"].tolist(), expected["beams"].tolist(),
              sorted(path.name for path in folder.iterdir()))


main()
