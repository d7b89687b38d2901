#!/usr/bin/env python3
"""Makes tests/reference/fixtures/tokenizer/families with Hugging Face's tokenizers: a small tokenizer for each family
of models, with every field that the family's tokenizer.json sets, and the ids of odd texts. Not needed to run the
tests; to make the files again:

    python3 -m venv VENV; VENV/bin/pip install tokenizers==0.23.3 xxhash
    VENV/bin/python tests/reference/make_tokenizer_fixtures.py

    texts.json    The texts.
    FAMILY.json   tokenizer   The content of a tokenizer.json.
                  ids         For each text its ids, without those that the post_processor adds.
                  decoded     For each text what its ids decode to; null: the text.
                  drawn       Pairs of random ids and what they decode to.
                  document    Texts by number, with their ids as the post_processor leaves them.
                  variants    Merge patches by name of the variant, with the number of ids of all texts, the XXH3-128
                              of these ids as little-endian int32, and of the texts that they decode to.
    spans.json    By family, or family and variant, the XXH3-128 of the spans of all tokens of all texts, in bytes, as
                  little-endian int32: the begin and the end of each. smollm2 is left out: where a byte has no token,
                  the offsets of Hugging Face's tokenizers behind it are wrong.
    nfc.json      The XXH3-128 of the NFC of each 4096 code points, each in several contexts.

--check compares with the folder instead of writing it.
"""
import copy
import json
import pathlib
import struct
import sys

import xxhash
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import tokenizer as mixed

OUT = mixed.OUT / "families"
LLAMA3 = mixed.LLAMA
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SPACE = "\u2581"


def split(regex=None, string=None, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": regex} if regex else {"String": string}, "behavior": behavior,
            "invert": invert}


def sequence(key, *members):
    return {"type": "Sequence", key: list(members)}


def byte_level(prefix=False, use_regex=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": False, "use_regex": use_regex}


def metaspace(scheme, split):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": split}


def template(name, token_id):
    special = lambda kind: {"SpecialToken": {"id": name, "type_id": kind}}
    text = lambda letter, kind: {"Sequence": {"id": letter, "type_id": kind}}
    return {"type": "TemplateProcessing", "single": [special(0), text("A", 0)],
            "pair": [special(0), text("A", 0), special(1), text("B", 1)],
            "special_tokens": {name: {"id": name, "ids": [token_id], "tokens": [name]}}}


def added(content, **flags):
    return {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": False} | flags


# "<l" hides in "<l>", "solo" in "solos"; NFC and the replacement of spaces change the contents of some.
ADDED = [added("<|eot|>", special=True), added("<l>", lstrip=True, special=True), added("<r>", rstrip=True, special=True),
         added("<lr>", lstrip=True, rstrip=True, normalized=True), added("solo", single_word=True),
         added("solos", single_word=True, normalized=True), added("<l"), added(" pad"), added(" fit", normalized=True),
         added("\u2581tok", normalized=True), added("e\u0301te\u0323\u0301", normalized=True), added("12", normalized=True),
         added("<w>", single_word=True, lstrip=True, rstrip=True), added("\U0001F642\u200D\u2640")]
GLUED = ["<|eot|>", "<l>", "<r>", "<lr>", "solo", "solos", "<l", " pad", " fit", "\u2581tok", "e\u0301te\u0323\u0301",
         "\u00e9t\u1eb9\u0301", "12", "<w>", "\U0001F642\u200D\u2640", "<s>", "</s>", "<unk>", "<0x41>", "<|begin_of_text|>"]
ODD = ["", " ", "  ", "   ", "\t", "\t\t ", "\n", "\n\n\n\n", "\r\n", "\r\n\r\n a", " \n ", "a\r\nb\rc\nd", "  two  spaces ",
       "x" * 80, " " * 70, "\n" * 40 + "x", "ab" * 60, "\u00a0\u00a0", "\u3000x\u3000", "\u2028\u2029", "\u0085", "\u180e a",
       "\u200b", "\x0b\x0c\x1c\x1d", "\x00", "a\x00b", "\x01\x02\x7f\x80\x9f", "\ufeff", "\ufffd", "\ufffe\uffff", "\U0010ffff",
       "\ue000\uf8ff", "\U000f0000", "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", "\U0001F1E9\U0001F1EA",
       "\U0001F44D\U0001F3FD!", "\u2764\ufe0f", "e\u0301", "\u00e9", "E\u0301\u0323", "\u1e69 s\u0323\u0307 s\u0307\u0323",
       "\u0344\u0301", "\u212b \u00c5 A\u030a", "\u2126", "\u1100\u1161\u11a8", "\uac01", "\uac00\u11a8", "\uac00\u11a7\u11a8",
       "\u1112\u1161\u11ab\u1100\u1173\u11af", "\ud55c\uae00", "\u0958\u0915\u093c", "\ufb1d\u05d9\u05b4", "\U0001d15e", "\ufa10\u585a",
       "\u0308\u0301", "a\u0898\u0301\u0323", "\U00011935\U00011930", "\u4e2d\u6587 \u65e5\u672c\u8a9e", "\u3053\u3093\u306b\u3061\u306f\u3002", "\u304b\u3099",
       "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u0639\u064e\u0631\u064e\u0628\u0650\u064a", "\u05e9\u05dc\u05d5\u05dd", "\u0e44\u0e17\u0e22", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
       "1", "12", "123", "1234", "1234567", "3.14159", "1,000,000", "0x1F", "12e-3", " 42 ", "a1b22c333d4444",
       "\u0661\u0662\u0663\u0664", "\u0967\u0968\u0969", "\u2160\u2161 \u2167", "\u00bd\u00b2\u00b3", "\u2460\u2461", "\U0001d7ce\U0001d7cf", "\u4e00\u4e8c\u4e09", "\uff11\uff12",
       "it's I'm you're we've they'll he'd can't", "IT'S I'M YOU'RE WE'VE THEY'LL HE'D CAN'T", "it\u2019s", "''s 's '", "'S'T'Re",
       "'\u017f 's", "o'clock", "don''t", " 'tis", "hello world", "Hello, World!", "HelloWorld", "hello_world", "snake_case and CamelCase",
       "foo(bar)[0] = {\"a\": 1};", "if (x<y && y>z) { return; }", "    indented\n\tcode\n", "https://example.com/a?b=c&d=%20", "a@b.c",
       "...", "?!?!", "---", "\u2014\u2026\u00ab\u00bb", "$5 \u20ac6 \u00a37", "na\u00efve caf\u00e9", "Stra\u00dfe", "\u0130\u0131", "\ufb01n", "\u01c4",
       "\u2581", "\u2581\u2581", "\u2581hello", "hello\u2581world", " \u2581 ", "\u2581 \u2581", "<0x0A>", "<0x41><0x42>", "<0xE2>\u20ac", "<unk>", "the the the",
       "the quick brown fox jumps over the lazy dog", "x" * 30 + "\u00e9" * 5, "\u00e9" * 60, "\U0001F600" * 12, "\u4e2d" * 40, "a b c d e f g", " a", "a ",
       "\u0915\u094d\u200d\u0937", "\u0e33", "z\u0351\u036b\u0343\u036a\u0302\u036b\u033d", "\u00ad soft", "\u2066x\u2069", "\U000e0041", "\ufdd0", "\U0001fffe"]
TEXTS, DRAWN = 500, 30
WORDS = ["the", " the", "of", " and", " in", "ing", "Hello", " world", "x", "1", "27", " ", "  ", "\n", "\t", ".", ", ", "'s", "\u00e9", "e\u0301",
         "\u4e2d\u6587", "\u0623", "\U0001F642", "\u200d", "\ud55c", "\u1100", "\u1161", "_", "-", "("]


def texts():
    all_texts = list(ODD)
    for mark in GLUED:
        all_texts += [mark, f"a{mark}b", f"a {mark} b", f"  {mark}  ", f"{mark}{mark}", f".{mark},", f"\u00e9{mark}\u4e2d", f"\n{mark}\t{mark}\n"]
    draws = mixed.Draws(77)
    while len(all_texts) < TEXTS:
        text = ""
        for _ in range(1 + draws.below(5)):
            kind = draws.below(4)
            if kind == 0:
                text += mixed.piece(draws)[:12]
            elif kind == 1:
                text += GLUED[draws.below(len(GLUED))]
            else:
                text += WORDS[draws.below(len(WORDS))]
        all_texts.append(text)
    return all_texts[:TEXTS]


def trained(size, alphabet, steps):
    """The vocabulary and the merges of a BPE trained on the mixed text, 64 blocks of which are shuffled scripts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = steps
    lines = [line for number in range(4) for line in mixed.block(number).split("\n")]
    lines += ["the quick brown fox jumps over the lazy dog", "hello world and the world of words in the world"] * 40
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=alphabet, limit_alphabet=len(alphabet) or 120))
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], model["merges"]


def bpe(vocabulary, merges, **fields):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": merges} | fields


def file_of(model, normalizer, pre_tokenizer, post_processor, decoder, tokens):
    """tokens: those that model.vocab lacks get the next ids."""
    listed, next_id = [], len(model["vocab"])
    for token in tokens:
        known = model["vocab"].get(token["content"])
        listed.append({"id": next_id if known is None else known} | token)
        next_id += known is None
    listed.sort(key=lambda token: token["id"])
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": listed, "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer, "post_processor": post_processor, "decoder": decoder, "model": model}


def bytes_model(**fields):
    """Tokens of bytes. The last 40 merges are left out, so that ignore_merges makes a difference."""
    vocabulary, merges = trained(420, pre_tokenizers.ByteLevel.alphabet(),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False))
    return bpe(vocabulary, merges[:-40], **fields)


def without(model, characters):
    """The model without the tokens that have one of the characters."""
    kept = [token for token in sorted(model["vocab"], key=model["vocab"].get) if not set(token) & set(characters)]
    merges = [pair for pair in model["merges"] if not set("".join(pair)) & set(characters)]
    return model | {"vocab": {token: number for number, token in enumerate(kept)}, "merges": merges}


def characters_model(split, byte_tokens, **fields):
    """Tokens of characters after <unk>, <s>, </s> and the tokens of bytes."""
    steps = pre_tokenizers.Metaspace(prepend_scheme="always", split=split)
    found, merges = trained(330, [], steps)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in byte_tokens]
    tokens += [token for token in sorted(found, key=found.get) if token not in tokens]
    return bpe({token: number for number, token in enumerate(tokens)}, merges, unk_token="<unk>", **fields)


SPECIAL = [added(name, special=True) for name in ("<unk>", "<s>", "</s>")]
LLAMA_DECODER = sequence("decoders", {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                         {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0})
TO_SPACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}


def families():
    begin = added("<|begin_of_text|>", special=True)
    every_byte = range(256)
    gpt2 = bytes_model()
    yield "gpt2", file_of(gpt2, None, byte_level(use_regex=True), byte_level(), byte_level(), ADDED), {}
    llama3 = bytes_model(ignore_merges=True)
    yield "llama3", file_of(
        llama3, None, sequence("pretokenizers", split(LLAMA3), byte_level()),
        sequence("processors", byte_level(prefix=True), template(begin["content"], len(llama3["vocab"]))),
        byte_level(prefix=True, use_regex=True), [begin, *ADDED]), {}
    behaviors = {f"{behavior}{', inverted' if invert else ''}": {"pre_tokenizer": sequence(
        "pretokenizers", split(r"\p{N}|\s|[aeiou]", behavior=behavior, invert=invert), byte_level())}
        for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous") for invert in (False, True)}
    yield "qwen", file_of(bytes_model(), {"type": "NFC"}, sequence("pretokenizers", split(QWEN), byte_level()),
                          byte_level(), byte_level(), ADDED), behaviors | {
        "digits in one piece": {"pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": False}, byte_level(use_regex=True))},
        "a prefix space": {"pre_tokenizer": byte_level(prefix=True, use_regex=True)},
        "a text as pattern": {"pre_tokenizer": sequence("pretokenizers", split(string=". ", behavior="MergedWithPrevious"), byte_level())},
        "digits, then a prefix space": {"pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(prefix=True))}}
    # As some trained vocabularies it lacks bytes: those of U+E000 to U+FFFF and of U+10000 on.
    smollm = without(bytes_model(), "\u00ee\u00ef\u00f0")
    yield "smollm2", file_of(smollm, None, sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)),
                             None, byte_level(prefix=True, use_regex=True), ADDED), {
        "bytes unknown": {"model": {"unk_token": "!"}}, "bytes unknown and fused": {"model": {"unk_token": "!", "fuse_unk": True}}}
    llama2 = characters_model(False, every_byte, byte_fallback=True, fuse_unk=True)
    yield "llama2", file_of(llama2, sequence("normalizers", PREPEND, TO_SPACE), None, template("<s>", 1), LLAMA_DECODER, SPECIAL + ADDED), {
        "words that are tokens": {"model": {"ignore_merges": True}},
        "spaces replaced, then a prefix": {"normalizer": sequence("normalizers", TO_SPACE, PREPEND)},
        "NFC first": {"normalizer": sequence("normalizers", {"type": "NFC"}, TO_SPACE)},
        "Gemma's split": {"normalizer": TO_SPACE, "pre_tokenizer": split(string=SPACE, behavior="MergedWithPrevious")}}
    mistral = characters_model(True, [byte for byte in every_byte if byte not in (0xE2, 0x80)], byte_fallback=True)
    spaces = {f"Metaspace, {scheme}, {'split' if cut else 'whole'}": {"pre_tokenizer": metaspace(scheme, cut), "decoder": metaspace(scheme, cut)}
              for scheme in ("first", "never", "always") for cut in (False, True)}
    yield "mistral", file_of(mistral, None, metaspace("first", False), template("<s>", 1), LLAMA_DECODER, SPECIAL + ADDED), spaces | {
        "no fallback, unknown fused": {"model": {"byte_fallback": False, "fuse_unk": True}},
        "no fallback": {"model": {"byte_fallback": False}},
        "fused fallback": {"model": {"fuse_unk": True}},
        "no unknown": {"model": {"byte_fallback": False, "unk_token": None}},
        "digits, then Metaspace first": {"pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, metaspace("first", True))},
        "strip at both ends": {"decoder": sequence("decoders", {"type": "Strip", "content": "e", "start": 1, "stop": 0},
                                                   {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0})}}


def decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False)


def record_of(file, variants, all_texts):
    tokenizer = Tokenizer.from_str(json.dumps(file))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in all_texts]
    decoded = [decode(tokenizer, row) for row in ids]
    draws = mixed.Draws(5)
    drawn = [[draws.below(tokenizer.get_vocab_size()) for _ in range(1 + draws.below(20))] for _ in range(DRAWN)]
    documents = [0, 3, 60, 130, 260, 400]
    record = {"tokenizer": file, "ids": ids,
              "decoded": [None if text == original else text for text, original in zip(decoded, all_texts)],
              "drawn": [[row, decode(tokenizer, row)] for row in drawn],
              "document": [[number, tokenizer.encode(all_texts[number]).ids] for number in documents], "variants": {}}
    for name, patch in variants.items():
        other = Tokenizer.from_str(json.dumps(mixed_patch(file, patch)))
        rows = [other.encode(text, add_special_tokens=False).ids for text in all_texts]
        words = "".join(decode(other, row) for row in rows)
        flat = [number for row in rows for number in row]
        record["variants"][name] = {"patch": patch, "ids": len(flat), "hash": mixed.ids_hash(flat),
                                    "text": xxhash.xxh3_128_hexdigest(words.encode())}
    return record


def mixed_patch(file, patch):
    """Applies a JSON merge patch in which null is a value of pre_tokenizer and unk_token."""
    if not isinstance(patch, dict) or not isinstance(file, dict) or "type" in patch:
        return copy.deepcopy(patch)
    return {**file, **{key: mixed_patch(file.get(key), value) for key, value in patch.items()}}


def spans_hash(file, all_texts):
    tokenizer, flat = Tokenizer.from_str(json.dumps(file)), []
    for text in all_texts:
        byte_at = [0]
        for character in text:
            byte_at.append(byte_at[-1] + len(character.encode()))
        for span in tokenizer.encode(text, add_special_tokens=False).offsets:
            flat += [byte_at[at] for at in span]
    return mixed.ids_hash(flat)


def nfc_hashes():
    nfc, rows = normalizers.NFC(), []
    for begin in range(0, 0x110000, 0x1000):
        codes = [chr(code) for code in range(begin, begin + 0x1000) if not 0xD800 <= code < 0xE000]
        text = "".join(f"{c}|a{c}\u0301|\u0344{c}\u0323|\uac00{c}\u11a8|{c}{c}\u0323|" for c in codes)
        rows.append(xxhash.xxh3_128_hexdigest(nfc.normalize_str(text).encode()))
    return rows


def compact(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def main():
    all_texts = texts()
    assert len(set(all_texts)) > TEXTS - 40, len(set(all_texts))
    files = {"texts.json": compact(all_texts) + "\n", "nfc.json": compact(nfc_hashes()) + "\n"}
    spans = {}
    for name, file, variants in families():
        if name != "smollm2":
            spans |= {f"{name}/{variant}".rstrip("/"): spans_hash(mixed_patch(file, patch), all_texts)
                      for variant, patch in ({"": {}} | variants).items()}
        files[f"{name}.json"] = compact(record_of(file, variants, all_texts)).replace(',"ids":', ',\n"ids":').replace('],"', '],\n"') + "\n"
    files["spans.json"] = json.dumps(spans, indent=0) + "\n"
    for name, content in files.items():
        path = OUT / name
        if "--check" in sys.argv:
            print(name, "as it was" if path.read_text(encoding="utf-8") == content else "DIFFERS")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
