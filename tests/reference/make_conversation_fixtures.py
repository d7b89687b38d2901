#!/usr/bin/env python3
"""Makes tests/reference/fixtures/hf_chat with transformers: a tiny random Llama with a byte-level BPE tokenizer and a
chat template, conversations, and what transformers computes of them. Not needed to run the tests; to make the files
again, with PyTorch and transformers 5:

    python3 tests/reference/make_conversation_fixtures.py

chats.jsonl has conversations of both forms, chat_format.json says for zerograd what the template does.
expected.json has the ids of each conversation, which tokens are targets, and the mean loss of its targets. The ids of
a chat are those of apply_chat_template(), and its targets those between {% generation %} and {% endgeneration %}.
expected.safetensors has the mean loss of all targets in one batch, padded on the right with an attention mask, and
the gradient of every parameter.
"""
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
FOLDER = FIXTURES / "hf_chat"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """{% for message in messages %}{% if message['role'] == 'assistant' %}<|im_start|>assistant
{% generation %}{{ message['content'] }}<|im_end|>
{% endgeneration %}{% else %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endif %}{% endfor %}"""
FORMAT = {role: [f"<|im_start|>{role}\n", "<|im_end|>\n"] for role in ("system", "user", "assistant")}
CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}]},
    {"prompt": "2 + 2 = ", "response": "4"},
    {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"},
                  {"role": "assistant", "content": "A model."}, {"role": "user", "content": "Who made you?"},
                  {"role": "assistant", "content": "You did, with f\u00fcnf lines."}]},
    {"prompt": "The license says: ", "completion": " you may copy the software."},
    {"prompt": "\u4f60\u597d", "response": "hello"},
    {"messages": [{"role": "user", "content": "Say nothing."}, {"role": "assistant", "content": "No."}]},
]


def make_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    texts = [text for chat in CHATS for text in
             [m["content"] for m in chat.get("messages", [])] + [chat.get("prompt", "")]]
    tokenizer.train_from_iterator(texts + ["assistant system user you made the lines"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=SPECIAL[0], chat_template=TEMPLATE)


def tokens_of(chat, tokenizer):
    """The ids and, for each one, whether it is a target."""
    if "messages" in chat:
        made = tokenizer.apply_chat_template(chat["messages"], return_dict=True, return_assistant_tokens_mask=True)
        return list(made["input_ids"]), list(made["assistant_masks"])
    prompt = tokenizer(chat["prompt"])["input_ids"]
    response = tokenizer(chat.get("response") or chat["completion"])["input_ids"] + [tokenizer.eos_token_id]
    return prompt + response, [0] * len(prompt) + [1] * len(response)


def main():
    tokenizer = make_tokenizer()
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), num_hidden_layers=2, max_position_embeddings=128, hidden_size=12,
        intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=tokenizer.eos_token_id, pad_token_id=None))
    generator = torch.Generator().manual_seed(2023)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.copy_(noise + 1 if parameter.dim() == 1 else noise)
    model.config._attn_implementation = "eager"
    shutil.rmtree(FOLDER, ignore_errors=True)
    model.save_pretrained(FOLDER)
    tokenizer.save_pretrained(FOLDER)
    (FOLDER / "chats.jsonl").write_text("".join(json.dumps(chat, ensure_ascii=False) + "\n" for chat in CHATS))
    (FOLDER / "chat_format.json").write_text(json.dumps(FORMAT, indent=1) + "\n")

    rows = [tokens_of(chat, tokenizer) for chat in CHATS]
    longest = max(len(ids) for ids, _ in rows)
    padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows])
    attention = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows])
    labels = torch.tensor([[token if target else -100 for token, target in zip(ids, targets)] +
                           [-100] * (longest - len(ids)) for ids, targets in rows])
    loss = model(padded, attention_mask=attention, labels=labels).loss
    loss.backward()
    gradients = {f"gradient.{name}": value.grad.clone() for name, value in model.named_parameters()}
    save_file({"loss": loss.detach().reshape(1)} | gradients, FOLDER / "expected.safetensors")
    with torch.no_grad():
        losses = [model(padded[i:i + 1, :len(ids)], labels=labels[i:i + 1, :len(ids)]).loss.item()
                  for i, (ids, _) in enumerate(rows)]
    expected = [{"ids": ids, "is_target": targets, "loss": mean} for (ids, targets), mean in zip(rows, losses)]
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
