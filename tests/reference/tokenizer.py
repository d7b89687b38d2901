#!/usr/bin/env python3
"""Makes tests/reference/fixtures/tokenizer with Hugging Face's tokenizers: two small byte-level BPE
tokenizers, and hashes of the ids that they give for a megabyte of text in mixed scripts. Not needed to
run the tests; to make the files again:

    python3 -m venv VENV; VENV/bin/pip install tokenizers==0.23.3 xxhash
    VENV/bin/python tests/reference/tokenizer.py

    gpt2/   tokenizer.json, vocab.json, merges.txt   GPT-2's settings, 2000 tokens
    bloom/  tokenizer.json                           BLOOM's settings, 2500 tokens
    expected.json   For each tokenizer and block of the text: the number of ids, the XXH3-128 of the ids
                    as little-endian int32, and the XXH3-128 of the UTF-8 text that 500 random ids decode
                    to. For each variant (gpt2 with other settings and few merges): its patch, and the
                    number and the hash of the ids of the first block.

The text is made of seed.txt by a recipe, which tests/models/tokenizer/tokenizer_text.h has too: 64 blocks of
16 KiB and a little more. Tokenizers are trained on the first 16. --check compares with the folder
instead of writing it; --text writes nothing but the text, to stdout.
"""
import json
import pathlib
import struct
import sys
import tempfile

import tokenizers
import xxhash
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).parent / "fixtures" / "tokenizer"
SEED = (OUT / "seed.txt").read_text(encoding="utf-8")
BLOCKS, BLOCK_BYTES, TRAINING_BLOCKS = 64, 16384, 16
MASK = (1 << 64) - 1
SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\x0b", "\x0c",
          "\x1c", "\r", "\u2009"]
ODD = [0xFEFF, 0x200D, 0xFFFD, 0xFFFE, 0x0, 0x7F, 0xE000, 0x10FFFF, 0x2060, 0xAD, 0x61C, 0xFFF9, 0xE0041, 0x1F, 0x80,
       0xFDD0]
RANGES = [(0x41, 0x5A), (0xC0, 0x24F), (0x370, 0x3E1), (0x400, 0x52F), (0x621, 0x64A), (0x905, 0x939), (0x93E, 0x94D),
          (0xE01, 0xE3A), (0x3041, 0x3096), (0x30A1, 0x30FA), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x300, 0x36F),
          (0x2190, 0x22FF), (0x1F600, 0x1F64F), (0x20000, 0x2A6D6), (0x660, 0x669), (0x2160, 0x2188), (0x1D400, 0x1D454),
          (0x1F1E6, 0x1F1FF)]
MARKS = ["<|endoftext|>", "<s>", "</s>", "<unk>", "<pad>", "<|endoftext", "<s", "<<s>>"]
CONTRACTIONS = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'LL", "\u2019s", "''s", " 's"]


class Draws:
    """SplitMix64 (Steele 2014)."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound):
        return self.next() % bound


def piece(draws):
    kind = draws.below(16)
    if kind <= 8:  # a part of the seed, cut anywhere
        begin = draws.below(len(SEED))
        return SEED[begin:begin + 1 + draws.below(48)]
    if kind == 9:
        space = SPACES[draws.below(len(SPACES))]
        return space * (1 + draws.below(6))
    if kind == 10:
        number = str(draws.next())
        return number[:1 + draws.below(len(number))]
    if kind == 11:
        first, last = RANGES[draws.below(len(RANGES))]
        count = 1 + draws.below(10)
        return "".join(chr(first + draws.below(last - first + 1)) for _ in range(count))
    if kind == 12:
        return chr(ODD[draws.below(len(ODD))])
    if kind == 13:
        return MARKS[draws.below(len(MARKS))]
    if kind == 14:
        return CONTRACTIONS[draws.below(len(CONTRACTIONS))]
    character = SEED[draws.below(len(SEED))]
    return character * (1 + draws.below(30))


def block(number):
    draws, text, size = Draws(number), [], 0
    while size < BLOCK_BYTES:
        text.append(piece(draws))
        size += len(text[-1].encode())
    return "".join(text)


def gpt2():
    """Returns the untrained tokenizer, its vocabulary size, the minimum frequency of a merge and the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, 2000, 2, ["<|endoftext|>"]


def bloom():
    """Returns the same for BLOOM."""
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?[^(\s|[.,!?…。，、।۔،])]+"), "isolated", invert=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, 2500, 0, ["<unk>", "<s>", "</s>", "<pad>"]


def train(settings, text):
    tokenizer, vocabulary_size, min_frequency, special_tokens = settings
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=vocabulary_size, min_frequency=min_frequency, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in special_tokens]))
    return tokenizer


def ids_hash(ids):
    return xxhash.xxh3_128_hexdigest(struct.pack(f"<{len(ids)}i", *ids))


def expected(tokenizer, blocks):
    rows = []
    for number, text in enumerate(blocks):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        draws = Draws(1000 + number)
        drawn = [draws.below(tokenizer.get_vocab_size()) for _ in range(500)]
        decoded = tokenizer.decode(drawn, skip_special_tokens=False).encode()
        rows.append([len(ids), ids_hash(ids), xxhash.xxh3_128_hexdigest(decoded)])
    return rows


LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")


FEW_MERGES = 300


def variants():
    """Returns a JSON merge patch by name of the variant. merged() applies it to GPT-2's tokenizer.json, which has only
    its first FEW_MERGES BPE merges then."""
    byte_level = lambda prefix, use_regex: {
        "type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}
    split = lambda regex: {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    sequence = lambda *members: {"pre_tokenizer": {"type": "Sequence", "pretokenizers": list(members)}}
    added = lambda id, content, normalized: {
        "id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": normalized, "special": not normalized}
    return {
        "prefix space": {"pre_tokenizer": byte_level(True, True)},
        "no split": {"pre_tokenizer": byte_level(False, False)},
        "Llama 3's split": sequence(split(LLAMA), byte_level(False, False)),
        "a split, then GPT-2's regex and a prefix space": sequence(split(r"[^\d,]+|\d{1,2}"), byte_level(True, True)),
        "added tokens that contain one another": {"added_tokens": [
            added(0, "<|endoftext|>", True), added(2000, "<s", False), added(2001, "<s>", True),
            added(2002, "e ", True), added(2003, "er ", True), added(2004, "\u3002", False), added(2005, "<<s>", False)]},
        "words that are tokens": {"model": {"ignore_merges": True}},
    }


def merged(target, patch):
    """Applies a JSON merge patch (RFC 7396); no patch here deletes a key by null."""
    if not isinstance(patch, dict) or not isinstance(target, dict):
        return patch
    return {**target, **{key: merged(target.get(key), value) for key, value in patch.items()}}


def main():
    blocks = [block(number) for number in range(BLOCKS)]
    text = "".join(blocks).encode()
    if "--text" in sys.argv:
        return sys.stdout.buffer.write(text)
    record = {"tokenizers": tokenizers.__version__, "bytes": len(text), "text": xxhash.xxh3_128_hexdigest(text)}
    files = {}
    for name, settings in (("gpt2", gpt2()), ("bloom", bloom())):
        tokenizer = train(settings, "".join(blocks[:TRAINING_BLOCKS]))
        files[f"{name}/tokenizer.json"] = tokenizer.to_str() + "\n"
        record[name] = expected(tokenizer, blocks)
        if name == "gpt2":
            with tempfile.TemporaryDirectory() as folder:
                tokenizer.model.save(folder)
                for file in ("vocab.json", "merges.txt"):
                    files[f"{name}/{file}"] = (pathlib.Path(folder) / file).read_text(encoding="utf-8")
    few = json.loads(files["gpt2/tokenizer.json"])
    few["model"]["merges"] = few["model"]["merges"][:FEW_MERGES]
    record["merges of variants"] = FEW_MERGES
    record["variants"] = {}
    for name, patch in variants().items():
        tokenizer = Tokenizer.from_str(json.dumps(merged(few, patch)))
        ids = tokenizer.encode(blocks[0], add_special_tokens=False).ids
        record["variants"][name] = {"patch": patch, "ids": len(ids), "hash": ids_hash(ids)}
    rows = json.dumps(record, ensure_ascii=False).replace("[[", "[\n[").replace("], [", "],\n[")
    files["expected.json"] = rows + "\n"
    for name, content in files.items():
        path = OUT / name
        if "--check" in sys.argv:
            print(name, "as it was" if path.read_text(encoding="utf-8") == content else "DIFFERS")
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
