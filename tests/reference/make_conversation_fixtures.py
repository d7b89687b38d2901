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

tokenizer/configs.json has files to put beside hf_chat/tokenizer.json, and what AutoTokenizer makes of them: the ids of
TEXT, those of the named tokens, the chat template and the added tokens. tokenizer/borders.json has chats with white
space at every border, the ids of apply_chat_template() with a tokenizer of each family and the assistant's masks.
"""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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


TEXT = "<|im_start|>user hi<|im_end|>  <new>\n<|endoftext|><pad>you the<|im_end|>the e\u0301"


def sentencepiece():
    """As the tokenizer.json of Llama 2: a space before each text between special tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    trainer = trainers.BpeTrainer(vocab_size=50, special_tokens=["<unk>", "<|im_end|>"], show_progress=False)
    tokenizer.train_from_iterator(["user hi you the <new> <|im_start|>", " the  you <pad> endoftext"], trainer)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer.to_str()


def of_class(model_type, name, tokens, **more):
    """Files of a class that takes no steps from tokenizer.json."""
    named = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), tokens))
    return {"config.json": {"model_type": model_type},
            "tokenizer_config.json": {"tokenizer_class": name, "chat_template": "C", **named, **more}}
PLAIN = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
NEW = {"content": "<new>", "lstrip": True, "rstrip": True, "normalized": False, "single_word": False}
CONFIGS = {
    "a decoder adds and changes tokens, and names find or add theirs": {"tokenizer_config.json": {
        "added_tokens_decoder": {"301": {"content": "<pad>", "special": False, **PLAIN}, "300": NEW | {"special": True},
                                 "2": {"content": "<|im_end|>", "special": True, **PLAIN, "lstrip": True}},
        "eos_token": "<|im_end|>", "pad_token": "<pad>", "bos_token": None, "unk_token": "<unk>", "add_bos_token": True,
        "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}},
    "older files": {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "pad_token": "you", "chat_template": "C"},
        "special_tokens_map.json": {"eos_token": NEW, "additional_special_tokens": ["<pad>"]},
        "added_tokens.json": {"hi": 301, "the": 300, "<|im_end|>": 2}},
    "special tokens of all kinds, and a template of its own": {
        "tokenizer_config.json": {"bos_token": NEW | {"__type": "AddedToken", "special": False}, "image_token": "you",
                                  "extra_special_tokens": ["the", "<pad>"], "chat_template": "C", "add_eos_token": True},
        "chat_template.jinja": "J"},
    "Llama's class": of_class("llama", "LlamaTokenizerFast", ["<unk>"] + 2 * ["<|im_end|>"]) | {
        "tokenizer.json": sentencepiece()},
    "Llama's class as it was": of_class("llama", "LlamaTokenizer", ["<unk>"] + 2 * ["<|im_end|>"], legacy=True) | {
        "tokenizer.json": sentencepiece()},
    "Llama's class under Mistral": of_class("mistral", "LlamaTokenizer", ["<unk>"] + 2 * ["<|im_end|>"]) | {
        "tokenizer.json": sentencepiece()},
    "Qwen2's class": of_class("qwen2", "PreTrainedTokenizerFast", SPECIAL[:1] * 4, add_prefix_space=True),
    "GPT-2's class": of_class("gpt2", None, SPECIAL[:1] * 3, add_prefix_space=True),
}


def read_config(tokenizer_json, files):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "tokenizer.json").write_text(tokenizer_json)
        for name, content in files.items():
            if name == "tokenizer_config.json":
                content = {"tokenizer_class": "PreTrainedTokenizerFast"} | content
            (pathlib.Path(folder) / name).write_text(content if isinstance(content, str) else json.dumps(content))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    template = tokenizer.chat_template
    return {"files": files, "ids": tokenizer(TEXT)["input_ids"],
            "named": {key: getattr(tokenizer, key + "_id") for key in ("bos_token", "eos_token", "pad_token", "unk_token")},
            "template": template["default"] if isinstance(template, dict) else template,
            "added": [[number, token.content, token.special, token.normalized, token.lstrip, token.rstrip]
                      for number, token in sorted(tokenizer.added_tokens_decoder.items())]}


SPACES = ["", " ", "  ", "\n", " \n", "\t"]
FORMATS = {"chatml": FORMAT, "zephyr": {role: [f"<|{role}|>\n", "</s>\n"] for role in ("system", "user", "assistant")},
           "mistral": {"first": "<s>", "user": ["[INST] ", " [/INST]"], "assistant": [" ", "</s>"]}}


def template_of(form):
    """The chat template that does what a format says."""
    text = lambda value: "{{ " + json.dumps(value) + " }}"
    parts = [text(form.get("first", "")), "{% for m in messages %}"]
    for role in sorted(set(form) - {"first"}):
        content = "{{ m['content'] }}" + text(form[role][1])
        if role == "assistant":
            content = "{% generation %}" + content + "{% endgeneration %}"
        parts.append("{% if m['role'] == '" + role + "' %}" + text(form[role][0]) + content + "{% endif %}")
    return "".join(parts) + "{% endfor %}"


def borders():
    words = ["the", "Hello world", "\u4e2d", "e\u0301", "1", ""]
    chats = []
    for number in range(6):
        turn = lambda at: SPACES[(number + at) % 6] + words[(number + 2 * at) % 6] + SPACES[(number * 5 + at) % 6]
        chats.append([{"role": role, "content": turn(at)} for at, role in
                      enumerate(["user", "assistant", "user", "assistant"])])
    rows = {}
    for family in ("gpt2", "llama3", "qwen", "llama2", "mistral"):
        record = json.loads((FIXTURES / f"tokenizer/families/{family}.json").read_text())
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(record["tokenizer"])))
        for name, form in FORMATS.items():
            made = [tokenizer.apply_chat_template(chat, chat_template=template_of(form), return_dict=True,
                                                  return_assistant_tokens_mask=True) for chat in chats]
            rows[f"{family}/{name}"] = [[row["input_ids"], "".join(map(str, row["assistant_masks"]))] for row in made]
    return {"formats": FORMATS, "chats": chats, "rows": rows}


def write_more():
    tokenizer_json = (FOLDER / "tokenizer.json").read_text()
    compact = lambda value: json.dumps(value, separators=(",", ":"))
    for name, value in (("configs", {"text": TEXT, "cases": {name: read_config(tokenizer_json, files)
                                                             for name, files in CONFIGS.items()}}),
                        ("borders", borders())):
        (FIXTURES / f"tokenizer/{name}.json").write_text(compact(value).replace('],["', '],\n["').replace("]],", "]],\n") + "\n")


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
    write_more()


if __name__ == "__main__":
    main()
