#!/usr/bin/env python3
"""Makes JSON in tests/reference/fixtures/chat_templates with transformers: what the templates beside it render, and the
tokens. They are our own, in the manner of published ones, and mark with {% generation %} what an assistant writes. Not
needed to run the tests; to make the files again, with transformers 5 and xxhash:

    python3 tests/reference/make_chat_fixtures.py [FILE ROWS]

With FILE it writes an ids.json of ROWS rows for each template and of all tokenizers in tokenizer/families.

expected.json has for each template a list of
    row       a row of data: messages, and tools
    text      the rendered text
    prompt    the same with add_generation_prompt
    answers   bytes of the text that the template marks, for each message of the role assistant
    changed   indices of the messages whose thoughts the template leaves out, because a later turn asks again
ids.json has
    rows        for each template, rows of data
    tokenizers  names: a family, or a family and one of its variants
    tokens      for each tokenizer and template (unmarked: without its marks) the number of tokens and of targets of
                each row, and the XXH3-128 of ids and targets as little-endian int32
Ids are those of apply_chat_template, and targets those of return_assistant_tokens_mask, without messages in "changed".
"""
import datetime
import json
import pathlib
import random
import re
import struct
import sys

import tokenizers
import xxhash
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

FOLDER = pathlib.Path(__file__).parent / "fixtures" / "chat_templates"
MARK = re.compile(r"\{%-? (?:end)?generation -?%\}\n?")
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>"}
ROWS = 6
THOUGHTS = ("reasoning_content", "thinking", "reasoning")
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Weather <now> & \"soon\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1}}}}},
         {"type": "function", "function": {"name": "gr\u00f6\u00dfe", "parameters": {"type": "object"}}}]
PIECES = ["Hi", "Hello there.", " ", "  ", "\n", "\n\n", "\t", "\u00e4", "\u6f22\u5b57", "\U0001f642", "e\u0301", "a b", "1+1=2",
          "<|im_end|>", "</s>", "<think>", "{{ a }}", "don't", "\u00a0", "Zug um Zug", "0.5", "\u2026", "\u2581"]


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


chat_template_utils.datetime = FixedDate


def text(draws):
    """May be empty; white space at each border is frequent."""
    return "".join(draws.choice(PIECES) for _ in range(draws.randrange(6)))


def with_thoughts(message, draws):
    if message.get("content") is not None and draws.random() < 0.5:
        message["content"] = f"<think>\n{text(draws)}\n</think>\n\n" + message["content"]
    else:
        message[draws.choice(THOUGHTS)] = text(draws)


def row_of(template, draws):
    row, messages = {}, []
    has_tools = template in ("llama3", "qwen2", "qwen3", "mistral") and draws.random() < 0.4
    has_thoughts = template == "qwen3" and draws.random() < 0.6
    if has_tools:
        row["tools"] = TOOLS[:draws.randrange(1, 3)]
    if draws.random() < 0.4:
        messages.append({"role": "system", "content": text(draws)})
    for _ in range(draws.randrange(1, 5)):
        messages.append({"role": "user", "content": text(draws)})
        if has_tools and draws.random() < 0.5:
            call = {"type": "function", "id": "abcdefghi", "function": {"name": "weather", "arguments": {
                "city": text(draws), "days": draws.choice([1, 2.0, True, None, 1e300])}}}
            message = {"role": "assistant", "tool_calls": [call] * (1 if template == "llama3" else draws.randrange(1, 3))}
            if template != "mistral":
                message["content"] = draws.choice(["", None, "" if template == "llama3" else text(draws)])
            if has_thoughts and draws.random() < 0.5:
                with_thoughts(message, draws)
            messages.append(message)
            for _ in range(draws.randrange(1, 3)):
                messages.append({"role": "tool", "content": text(draws), "tool_call_id": "abcdefghi", "name": "weather"})
        messages.append({"role": "assistant", "content": text(draws)})
        if has_thoughts and draws.random() < 0.5:
            with_thoughts(messages[-1], draws)
    return row | {"messages": messages}


def changed_messages(template, messages):
    """In the manner of Qwen3, thoughts before the last question are left out."""
    def thinks(message):
        thoughts = next((message[key] for key in THOUGHTS if message.get(key) is not None), None)
        if thoughts is None:
            before, end, _ = (message.get("content") or "").partition("</think>")
            thoughts = before.split("<think>")[-1] if end else ""
        return thoughts.strip("\n") != ""  # the template strips line breaks

    last = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
    return [i for i, message in enumerate(messages[:last]) if template == "qwen3" and message["role"] == "assistant" and
            thinks(message)]


def rendered(template, row, prompt=False):
    messages = [chat_template_utils._normalize_chat_messages(row["messages"])]
    texts, marks = chat_template_utils.render_jinja_template(
        messages, tools=row.get("tools"), chat_template=template, return_assistant_tokens_mask=True,
        add_generation_prompt=prompt, **VARIABLES)
    return texts[0], [[len(texts[0][:place].encode()) for place in mark] for mark in marks[0]]


def cases(name, count):
    template = (FOLDER / f"{name}.jinja").read_text()
    draws = random.Random(name)
    for _ in range(count):
        row = row_of(name, draws)
        whole, answers = rendered(template, row)
        assert rendered(MARK.sub("", template), row)[0] == whole
        yield {"row": row, "text": whole, "prompt": rendered(template, row, prompt=True)[0], "answers": answers,
               "changed": changed_messages(name, row["messages"])}


def patched(file, patch):
    """As in tests/models/tokenizer/tokenizer_families_test.cpp."""
    return file | {key: patched(file[key], value) if isinstance(value, dict) and "type" not in value else value
                   for key, value in patch.items()}


def families(with_variants):
    for path in sorted((FOLDER.parent / "tokenizer" / "families").glob("*.json")):
        file = json.loads(path.read_text())
        if "variants" not in file:
            continue
        yield path.stem, file["tokenizer"]
        for name, variant in file["variants"].items() if with_variants else ():
            yield f"{path.stem}, {name}", patched(file["tokenizer"], variant["patch"])


def tokens_of(tokenizer, template, case, is_marked):
    """Numbers and hash of ids and targets. The targets of messages that change are left out of an unmarked template's."""
    messages, tools = case["row"]["messages"], case["row"].get("tools")
    made = tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, return_dict=True,
                                         return_assistant_tokens_mask=True, **VARIABLES)
    targets = made["assistant_masks"]
    if not is_marked and case["changed"]:
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        kept = [span for i, span in zip(answers, case["answers"]) if i not in case["changed"]]
        size = [len(case["text"][:end].encode()) for end in range(len(case["text"]) + 1)]
        targets = [int(any(size[end] > span[0] and size[begin] < span[1] for span in kept))
                   for begin, end in made.encodings[0].offsets]
    targets = [0, *targets[1:]]  # nothing predicts the first token
    hashed = xxhash.xxh3_128(struct.pack(f"<{2 * len(targets)}i", *made["input_ids"], *targets)).hexdigest()
    return [len(targets), sum(targets), hashed]


def tokens(with_variants, count):
    names = sorted(path.stem for path in FOLDER.glob("*.jinja"))
    all_cases = {name: list(cases(name, count)) for name in names}
    record = {"rows": {name: [case["row"] for case in all_cases[name]] for name in names}, "tokenizers": [], "tokens": {}}
    for kind, file in families(with_variants):
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(file)))
        assert json.loads(tokenizer.backend_tokenizer.to_str())["added_tokens"] == file["added_tokens"]
        record["tokenizers"].append(kind)
        for name in names:
            marked = (FOLDER / f"{name}.jinja").read_text()
            for is_marked in (True, False):
                record["tokens"][f"{kind}: {name}{'' if is_marked else ', unmarked'}"] = [
                    tokens_of(tokenizer, marked, case, is_marked) for case in all_cases[name]]
    return record


def main():
    if len(sys.argv) == 3:
        pathlib.Path(sys.argv[1]).write_text(json.dumps(tokens(True, int(sys.argv[2]))))
        return
    expected = {path.stem: list(cases(path.stem, ROWS)) for path in sorted(FOLDER.glob("*.jinja"))}
    (FOLDER / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")
    text = json.dumps(tokens(False, ROWS)).replace("]], ", "]],\n")
    (FOLDER / "ids.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
