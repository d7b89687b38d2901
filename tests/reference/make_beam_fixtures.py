#!/usr/bin/env python3
"""Makes tests/reference/fixtures/beam_search.json with transformers: what generate() returns for an encoder-decoder
model whose logits are a function that C++ can repeat exactly; and beam_models.json: what it returns for the models of
make_seq2seq_fixtures.py. Not needed to run the tests; to make the files again, with PyTorch and transformers 5.24:

    python3 tests/reference/make_beam_fixtures.py

A case of beam_search.json has `vocabulary`, `seed`, `scale`, `bias` (token: added to its logit), `banned` (tokens with
a logit of -infinity), `sources` (padded), `start` (the decoder's first tokens), `options` of generate(), and its
results: `rows` and, with beams, `scores`. logits_of() has the model. A case of beam_models.json has `model` and the
sources' `lengths` in place of seed, scale, bias and banned. Its ids are those of the model in f64 too, so rounding
does not change them.
"""
import itertools
import json
import pathlib
import random
import warnings

import torch
import transformers
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

OUT = pathlib.Path(__file__).parent / "fixtures" / "beam_search.json"
PAD, START, EOS = 1, 2, 3


def mix(h):
    """A 32-bit hash (Chris Wellons' lowbias32)."""
    h = (h ^ h >> 16) * 0x7feb352d & 0xffffffff
    h = (h ^ h >> 15) * 0x846ca68b & 0xffffffff
    return h ^ h >> 16


def logits_of(case, source, tokens):
    """A function of the source's first token and of the last two tokens. Exact in f32."""
    before = tokens[-2] if len(tokens) > 1 else case["vocabulary"]
    state = mix(mix(mix(case["seed"] + source[0]) + before) + tokens[-1])
    values = [(mix(state + token) >> 16) / 65536 * case["scale"] for token in range(case["vocabulary"])]
    for token, bias in case["bias"].items():
        values[int(token)] += bias
    for token in case["banned"]:
        values[token] = -float("inf")
    return values


class Config(PreTrainedConfig):
    model_type = "table"


class Encoder(torch.nn.Module):
    main_input_name = "input_ids"

    def forward(self, input_ids, **_):
        return BaseModelOutput(last_hidden_state=input_ids[..., None].float())


class Model(PreTrainedModel, GenerationMixin):
    config_class = Config
    main_input_name = "input_ids"

    def __init__(self, config, case):
        super().__init__(config)
        self.case, self.encoder, self.unused = case, Encoder(), torch.nn.Parameter(torch.zeros(1))
        self.post_init()

    def get_encoder(self, modality=None):
        return self.encoder

    def forward(self, input_ids=None, encoder_outputs=None, decoder_input_ids=None, **_):
        sources = encoder_outputs.last_hidden_state[..., 0].long().tolist()
        logits = [logits_of(self.case, *row) for row in zip(sources, decoder_input_ids.tolist())]
        return Seq2SeqLMOutput(logits=torch.tensor(logits, dtype=torch.float32)[:, None])


def result_of(model, case, **arguments):
    """The results of generate() as members of the case."""
    model.generation_config = GenerationConfig(decoder_start_token_id=case["start"][0])
    sources = torch.tensor(case["sources"])
    start = torch.tensor([case["start"]] * len(sources))
    result = model.generate(sources, decoder_input_ids=start, return_dict_in_generate=True, output_scores=True,
                            **arguments, **case["options"])
    scores = getattr(result, "sequences_scores", None)
    return {"rows": result.sequences.tolist(), **({} if scores is None else {"scores": scores.tolist()})}


def generated(case):
    return result_of(Model(Config(is_encoder_decoder=True, vocab_size=case["vocabulary"]), case), case, use_cache=False)


def sources_of(rng, vocabulary, count):
    """Sources of different lengths, padded."""
    lengths = [rng.randint(3, 9) for _ in range(count)]
    return [[rng.randrange(vocabulary) for _ in range(length)] + [PAD] * (max(lengths) - length)
            for length in lengths]


def case_of(rng, name, options, vocabulary=17, scale=8, bias=None, banned=(), start=(START,), count=3,
            seed=None):
    if seed is not None:
        rng = random.Random(seed)
    options = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 12, **options}
    return {"name": name, "vocabulary": vocabulary, "seed": rng.randrange(1 << 20), "scale": scale,
            "bias": bias or {}, "banned": list(banned), "sources": sources_of(rng, vocabulary, count),
            "start": list(start), "options": {key: value for key, value in options.items() if value is not None}}


def single_options():
    """(name, options, further arguments of case_of): each option on its own."""
    early, late = {"bias": {"3": 4}}, {"bias": {"3": -24}}
    yield "plain", {}, {}
    yield "eos soon", {}, early
    yield "no eos", {}, late
    yield "eos at once", {}, {"bias": {"3": 12}}
    yield "no eos id", {"eos_token_id": None, "pad_token_id": None}, {}
    yield "default length", {"max_new_tokens": None}, {}
    yield "max_length", {"max_new_tokens": None, "max_length": 6}, {}
    yield "one new token", {"max_new_tokens": 1}, {}
    yield "both maxima", {"max_length": 4}, late
    yield "min_length", {"min_length": 6}, early
    yield "min_new_tokens", {"min_new_tokens": 6}, {**early, "start": (START, 5, 6)}
    yield "min_length with start", {"min_length": 6}, {**early, "start": (START, 5, 6)}
    yield "both minima", {"min_length": 9, "min_new_tokens": 3}, {**early, "start": (START, 5, 6)}
    yield "min_length above max_length", {"min_length": 30}, early
    for ngram, vocabulary in itertools.product((1, 2, 3), (7, 17)):
        yield f"no_repeat_ngram_size {ngram} of {vocabulary}", {"no_repeat_ngram_size": ngram}, {
            "vocabulary": vocabulary}
        yield f"encoder_no_repeat_ngram_size {ngram} of {vocabulary}", {"encoder_no_repeat_ngram_size": ngram}, {
            "vocabulary": vocabulary}
    yield "no_repeat_ngram_size beyond the text", {"no_repeat_ngram_size": 20}, {}
    yield "forced_bos", {"forced_bos_token_id": 5}, {}
    yield "forced_bos after two", {"forced_bos_token_id": 5}, {"start": (START, 6)}
    yield "forced_eos", {"forced_eos_token_id": EOS}, late
    yield "forced_eos of two", {"forced_eos_token_id": [EOS, 4], "eos_token_id": [EOS, 4]}, {
        "bias": {"3": -24, "4": -24}}
    yield "forced_eos that is not eos", {"forced_eos_token_id": 6}, late
    yield "forced both at once", {"forced_bos_token_id": 5, "forced_eos_token_id": EOS, "max_new_tokens": 1}, {}
    yield "two eos ids", {"eos_token_id": [EOS, 5]}, {"bias": {"3": 2}}
    yield "pad 0", {"pad_token_id": 0}, early
    yield "no pad", {"pad_token_id": None}, early
    yield "infinities", {}, {"banned": (4, 5, 9, 12)}
    yield "one token left", {}, {"banned": [i for i in range(17) if i != 6]}
    yield "flat", {}, {"scale": 1}
    yield "one source", {}, {"count": 1}


def beam_options():
    """Those that have an effect with several beams only."""
    early = {"bias": {"3": 4}}
    for stopping in (True, False, "never"):
        for penalty in (-1.0, 0.0, 0.65, 1.0, 2.0):
            yield f"early_stopping {stopping}, length_penalty {penalty}", {
                "early_stopping": stopping, "length_penalty": penalty}, {"bias": {"3": 3}}
            yield f"all beams, early_stopping {stopping}, length_penalty {penalty}", {
                "early_stopping": stopping, "length_penalty": penalty, "num_return_sequences": 4}, {"bias": {"3": 3}}
    yield "num_return_sequences 2", {"num_return_sequences": 2}, early
    yield "all beams, no pad", {"pad_token_id": None, "num_return_sequences": 4}, early
    yield "all beams, pad 0", {"pad_token_id": 0, "num_return_sequences": 4}, early
    yield "all beams, two likely eos ids", {"eos_token_id": [EOS, 5], "num_return_sequences": 4}, {
        "bias": {"3": 6, "5": 6}}
    yield "two likely eos ids, long", {"eos_token_id": [EOS, 5], "early_stopping": "never", "length_penalty": 2.0}, {
        "bias": {"3": 6, "5": 6}}
    for seed in (88, 92):  # the length that "never" takes changes the result
        yield f"all beams, seed {seed}", {
            "early_stopping": "never", "length_penalty": -0.1, "num_return_sequences": 4}, {
            "bias": {"3": 3}, "seed": seed}
    for stopping in (True, False, "never"):
        # At times fewer continuations than beams.
        yield f"vocabulary of 5, early_stopping {stopping}", {"early_stopping": stopping}, {
            "vocabulary": 5, "start": (2,)}
        yield f"vocabulary of 2, early_stopping {stopping}", {
            "early_stopping": stopping, "eos_token_id": 1, "pad_token_id": None}, {"vocabulary": 2, "start": (0,)}
    yield "vocabulary of 3 with two eos ids", {"eos_token_id": [1, 2], "pad_token_id": 0}, {
        "vocabulary": 3, "start": (0,)}
    yield "blenderbot", {"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 3, "forced_eos_token_id": EOS,
                         "length_penalty": 0.65, "min_length": 6, "max_length": 14, "max_new_tokens": None}, early
    yield "bart", {"no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "forced_eos_token_id": EOS,
                   "early_stopping": True, "length_penalty": 2.0, "min_length": 5, "max_length": 12,
                   "max_new_tokens": None}, {"bias": {"3": 2}}


def banning_options():
    yield "repetition_penalty", {"repetition_penalty": 1.3}, {}
    yield "repetition_penalty below 1", {"repetition_penalty": 0.7}, {"start": (START, 5, 6)}
    yield "suppress_tokens", {"suppress_tokens": [4, 5, 6, 7]}, {}
    yield "begin_suppress_tokens", {"begin_suppress_tokens": [4, 5, 6, 7, 8, 9, 10]}, {}
    yield "begin_suppress_tokens after forced_bos", {"begin_suppress_tokens": list(range(4, 12)), "forced_bos_token_id": 5}, {}


def combined(rng):
    """Many options at once."""
    beams = rng.choice((1, 2, 3, 4, 10))
    vocabulary = rng.choice((6, 9, 17, 40))
    options = {
        "num_beams": beams, "max_new_tokens": rng.choice((3, 9, 16)),
        "length_penalty": rng.choice((-1.0, 0.0, 0.65, 1.0, 2.0)),
        "early_stopping": rng.choice((True, False, "never")), "no_repeat_ngram_size": rng.choice((0, 0, 2, 3)),
        "encoder_no_repeat_ngram_size": rng.choice((0, 0, 1, 2, 3)), "min_length": rng.choice((0, 0, 4, 8)),
        "forced_bos_token_id": rng.choice((None, 0, 5)), "forced_eos_token_id": rng.choice((None, EOS)),
        "eos_token_id": rng.choice((EOS, EOS, [EOS, 4])), "pad_token_id": rng.choice((0, PAD)),
        "num_return_sequences": rng.choice((1, 1, beams))}
    return options, {"vocabulary": vocabulary, "scale": rng.choice((4, 8)), "bias": {"3": rng.choice((-4, 1, 3, 5))},
                     "start": rng.choice(((START,), (START,), (START, 5, 4))), "count": rng.choice((1, 2, 3))}


def model_cases(rng):
    """Cases of the tiny BlenderBot and BART."""
    variants = (
        ("plain", {}), ("blenderbot", {"no_repeat_ngram_size": 3, "encoder_no_repeat_ngram_size": 3, "min_length": 6,
                                       "length_penalty": 0.65, "forced_eos_token_id": 2}),
        ("bart", {"no_repeat_ngram_size": 2, "forced_bos_token_id": 0, "forced_eos_token_id": 2, "min_length": 4,
                  "early_stopping": True, "length_penalty": 2.0}),
        ("never", {"early_stopping": "never", "no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1}))
    for folder, start, pad in (("hf_blenderbot", 1, 0), ("hf_bart", 2, 1)):
        model = AutoModelForSeq2SeqLM.from_pretrained(OUT.parent / folder, dtype=torch.float32)
        for (name, options), beams in itertools.product(variants, (1, 4, 10)):
            while True:
                lengths = [rng.randint(3, 9) for _ in range(3)]
                sources = [[rng.randrange(3, model.config.vocab_size) for _ in range(n - 1)] + [2] for n in lengths]
                case = {"name": f"{folder}, {name}, {beams} beams", "model": folder, "lengths": lengths,
                        "vocabulary": model.config.vocab_size, "start": [start],
                        "sources": [row + [pad] * (max(lengths) - len(row)) for row in sources],
                        "options": {"num_beams": beams, "eos_token_id": 2, "pad_token_id": pad, "max_length": 12,
                                    **options}}
                mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
                result = result_of(model.float(), case, attention_mask=mask)
                if result["rows"] == result_of(model.double(), case, attention_mask=mask)["rows"]:
                    yield {**case, **result}
                    break


def write(path, cases):
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    versions = f'"transformers":"{transformers.__version__}","torch":"{torch.__version__}"'
    path.write_text(f'{{{versions},"cases":[\n{lines}\n]}}\n')
    print(f"{path.name}: {len(cases)} cases")


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    rng = random.Random(1909)
    cases = []
    for name, options, arguments in single_options():
        for beams in (1, 4, 10):
            cases.append(case_of(rng, f"{name}, {beams} beams", {**options, "num_beams": beams}, **arguments))
    for name, options, arguments in beam_options():
        for beams in (4, 10):
            cases.append(case_of(rng, f"{name}, {beams} beams", {**options, "num_beams": beams}, **arguments))
    for number in range(80):
        options, arguments = combined(rng)
        cases.append(case_of(rng, f"combination {number}", options, **arguments))
    for name, options, arguments in banning_options():
        for beams in (1, 4):
            cases.append(case_of(rng, f"{name}, {beams} beams", {**options, "num_beams": beams}, **arguments))
    for case in cases:
        case.update(generated(case))
    write(OUT, cases)
    write(OUT.with_name("beam_models.json"), list(model_cases(random.Random(2020))))


if __name__ == "__main__":
    main()
