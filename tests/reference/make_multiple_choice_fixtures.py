#!/usr/bin/env python3
"""Makes tests/reference/fixtures/multiple_choice with EleutherAI's lm-evaluation-harness: its scores of the model in
fixtures/hf_chat on questions.jsonl, which this script writes. Not needed to run the tests; to make the files again,
with PyTorch, transformers 5 and lm_eval 0.4.13 (with accelerate and datasets):

    python3 tests/reference/make_multiple_choice_fixtures.py

expected.json has, for each case, the tokens and log-probabilities of every ending, the chosen endings, accuracies and
standard errors. "harness": the task hellaswag. "begins": with a token before each text. "short": with 40 positions.
"plain": ctx and endings as they are, as hellaswag.py of llm.c scores them.
"""
import json
import pathlib
import tempfile

import lm_eval
import numpy
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import process_docs
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM, AutoTokenizer

FIXTURES = pathlib.Path(__file__).parent / "fixtures"
FOLDER = FIXTURES / "multiple_choice"
# activity_label, ctx_a, ctx_b, endings, label
QUESTIONS = [
    ("Boat care", "A woman kneels on a pier.", "she",
     ["paints a boat and its oars.", "is pulling two ropes tight.", "counts to a hundred.", "waves."], 3),
    ("Copying", "The license says:", "",
     ["you may copy the software.", "[step] You  may  not. [title] Copy", "no."], "0"),
    ("Home and Garden", "[header] How to say hello [title] Say hi. [step] Open your mouth.", "",
     ["[substeps] Close it again.", "Hello there. [title] Then go [step] away.", "[a [b] c] hi", "   Say  nothing.   "],
     "2"),
    ("Caf\u00e9", "Elle entre.", "\u00e9lise Voit UN \u00c9L\u00c8VE",
     ["\u4f60\u597d\u4f60\u597d", "hello hello hello", "\U0001f642\U0001f642 oui"], 1),
    ("Numbers", "2 + 2 =", "iPhone says THAT it", ["4", "22, or so we are told.", "5"], 0),
    ("\u00a0Spaces\u2003", "Two  spaces    and a tab\t.", "  she", ["\u00a0 goes\u3000", "\u001cruns\u001f", "is."], "1"),
    ("Cut off", "A context that ends [with brackets", "]", ["and more.", " and   more words."], 1),
    ("End", "Spaces stay behind the brackets. [x]", "", ["Who made you?", "You did."], 0),
    ("Lines", "One line\nand [another\none] here.\n", "they", ["[not\nremoved] go.", "stop [it] now."], "1"),
    ("Long", "Say nothing. " * 12, "who are you", ["A model.", "Be brief.", "You did, with f\u00fcnf lines."], 2),
    ("Sigma \u0391\u0392", "Greek:", "\u01c6ABC \u0398\u0395\u0391", ["\u03b1\u03b2\u03b3", "alpha beta gamma"], 0),
    ("Titles", "First [title][title] second", "the [header] third",
     ["a [title]", "b [title] c", "c", "d [][[]] e", "[f"], "3"),
]


def lines():
    for label, a, b, endings, answer in QUESTIONS:
        yield {"activity_label": label, "ctx_a": a, "ctx_b": b, "ctx": f"{a} {b}".strip(), "endings": endings,
               "label": answer}


def chosen(sums, lengths):
    """The largest sum / length; the others must be clearly smaller, so that rounding does not choose."""
    values = numpy.array(sums) / numpy.array(lengths, dtype=float)
    assert numpy.sort(values)[-1] - numpy.sort(values)[-2] > 1e-4 * abs(values.max()), values
    return int(numpy.argmax(values))


def described(tokens, sums, characters):
    counts = [[len(choice) for choice in question] for question in tokens]
    labels = [int(question[-1]) for question in QUESTIONS]
    result = {"tokens": tokens, "sums": sums}
    for name, lengths in (("acc", [[1] * len(s) for s in sums]), ("acc_norm", characters), ("acc_token", counts)):
        result[name + "_chosen"] = [chosen(s, n) for s, n in zip(sums, lengths)]
        result[name + "_correct"] = sum(c == label for c, label in zip(result[name + "_chosen"], labels))
    return result


def harness(model, tokenizer, path, positions):
    task = {"task": "odd_hellaswag", "dataset_path": "json", "dataset_kwargs": {"data_files": {"validation": path}},
            "output_type": "multiple_choice", "validation_split": "validation", "process_docs": process_docs,
            "doc_to_text": "{{query}}", "doc_to_target": "{{label}}", "doc_to_choice": "choices",
            "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True}
                            for m in ("acc", "acc_norm")]}
    language_model = HFLM(pretrained=model, tokenizer=tokenizer, max_length=positions, batch_size=5, device="cpu",
                          softmax_dtype="float32")
    run = lm_eval.simple_evaluate(model=language_model, tasks=[task], log_samples=True, bootstrap_iters=10)
    samples = sorted(run["samples"]["odd_hellaswag"], key=lambda sample: sample["doc_id"])
    texts = [[(a["arg_0"], a["arg_1"]) for a in sample["arguments"].values()]
             if isinstance(sample["arguments"], dict) else sample["arguments"] for sample in samples]
    pairs = [[language_model._encode_pair(context, ending) for context, ending in question] for question in texts]
    sums = [[float(response[0]) for response in sample["filtered_resps"]] for sample in samples]
    result = described([[ending for _, ending in question] for question in pairs], sums,
                       [[len(c) for c in sample["doc"]["choices"]] for sample in samples])
    result["contexts"] = [[context for context, _ in question] for question in pairs]
    result["cut"] = sum(len(context) + len(ending) > positions + 1 for question in pairs for context, ending in question)
    scores = run["results"]["odd_hellaswag"]
    for name in ("acc", "acc_norm"):
        assert scores[f"{name},none"] == result[name + "_correct"] / len(QUESTIONS)
        result[name + "_stderr"] = scores[f"{name}_stderr,none"]
    return result


def plain(model, tokenizer):
    tokens, sums, characters = [], [], []
    for line in lines():
        context = tokenizer.encode(line["ctx"])
        ends = [tokenizer.encode(" " + ending) for ending in line["endings"]]
        tokens.append(ends)
        characters.append([len(ending) for ending in line["endings"]])
        sums.append([])
        for end in ends:
            sequence = (context + end)[-129:]  # llm.c has no context that is too long
            with torch.no_grad():
                logits = model(torch.tensor([sequence[:-1]])).logits[0, -len(end):].log_softmax(-1)
            sums[-1].append(sum(logits[i, token].item() for i, token in enumerate(end)))
    return described(tokens, sums, characters)


def main():
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines()))
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / "hf_chat", dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(FIXTURES / "hf_chat")
    begins = AutoTokenizer.from_pretrained(FIXTURES / "hf_chat", bos_token="<|im_start|>")
    begins.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", begins.bos_token_id)])
    with tempfile.TemporaryDirectory() as folder:  # datasets wants labels of one type
        path = str(pathlib.Path(folder) / "questions.jsonl")
        pathlib.Path(path).write_text("".join(json.dumps(line | {"label": str(line["label"])}) + "\n"
                                              for line in lines()))
        expected = {"harness": harness(model, tokenizer, path, 128), "begins": harness(model, begins, path, 128),
                    "short": harness(model, tokenizer, path, 40), "plain": plain(model, tokenizer)}
    for name, case in expected.items():
        print(name, {key: value for key, value in case.items() if "acc" in key or key == "cut"})
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
