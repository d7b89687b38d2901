#include "tests/tools/command.h"

// Multiple choice in the command: eval of questions in HellaSwag's format.
namespace zg::testing {
namespace {

using nlohmann::json;

const std::string choosing_model = std::string(ZG_FIXTURES) + "hf_chat";
const std::string choices_folder = std::string(ZG_FIXTURES) + "multiple_choice/";
const std::string questions_path = choices_folder + "questions.jsonl";
const std::string eval_choices = "eval " + choosing_model + " --multiple-choice " + questions_path;

/// Checks that the line says these counts of 12 questions.
void check_counts(const std::string& out, const std::string& name) {
  CAPTURE(out);
  const json expected = json::parse(read_file(choices_folder + "expected.json")).at(name);
  for (const char* score : {"acc", "acc_norm", "acc_token"}) {
    const std::string count = std::to_string(expected[score + std::string("_correct")].get<int>());
    const size_t at = out.find(score + std::string(" 0."));
    REQUIRE(at != std::string::npos);
    CHECK(out.substr(out.find('(', at)).starts_with("(" + count + " of 12, stderr 0."));
  }
}

}  // namespace

TEST_CASE("eval of multiple choice questions prints the scores of lm-evaluation-harness") {
  const Outcome whole = zerograd(eval_choices);
  CHECK(whole.out ==
        "acc 0.5000 (6 of 12, stderr 0.1508), acc_norm 0.4167 (5 of 12, stderr 0.1486), "
        "acc_token 0.4167 (5 of 12, stderr 0.1486)\n");
  CHECK(whole.error ==
        "note: the contexts of 1 of 36 endings are too long for the block size 128 and lose their "
        "first tokens\n");
  CHECK(zerograd(eval_choices + " --batch-size 3").out == whole.out);
  const Outcome narrow = zerograd(eval_choices + " --block-size 40");
  check_counts(narrow.out, "short");
  CHECK(narrow.error.starts_with("note: the contexts of 19 of 36 endings"));
  check_counts(zerograd(eval_choices + " --plain-questions").out, "plain");
  CHECK(zerograd(eval_choices + " --score-samples 1").out ==
        "acc 1.0000 (1 of 1), acc_norm 0.0000 (0 of 1), acc_token 0.0000 (0 of 1)\n");
}

TEST_CASE("eval of multiple choice questions reads a checkpoint and its tokenizer") {
  const TemporaryFolder folder;
  const std::string save = folder / "run";
  write_file(folder / "text.txt", std::string(400, 'a') + read_file(questions_path));
  checked(zerograd("train --from-hf " + choosing_model + " --data " + folder / "text.txt" +
                   " --block-size 128 --batch-size 1 --steps 1 --lr 1e-12 --weight-decay 0 "
                   "--log-interval 0 --save " +
                   save));
  const std::string eval = " --multiple-choice " + questions_path;
  CHECK(zerograd("eval " + save + eval).out == zerograd(eval_choices).out);
}

TEST_CASE("eval refuses flags and models that multiple choice questions do not go with") {
  const TemporaryFolder folder;
  for (const char* flag : {"--data sort", "--val-fraction 0.1", "--val-data a.jsonl", "--pack off",
                           "--seed 3", "--eval-batches 2", "--split 9,1,0"}) {
    const std::string words = flag;
    CAPTURE(words);
    check_refused(eval_choices + " " + words, 2,
                  words.substr(0, words.find(' ')) + ": it has no effect on --multiple-choice");
  }
  check_refused(eval_choices + " --score-samples 0", 2, "--score-samples: expected 1 question");
  check_refused(eval_choices + " --block-size 129", 2,
                "--block-size: expected at most the model's 128 positions");
  check_refused(eval_choices + " --source-prefix x", 2, "--source-prefix: expected an encoder");
  check_refused("eval " + choosing_model + " --plain-questions --data " + questions_path, 2,
                "--plain-questions: expected --multiple-choice PATH.jsonl beside it");
  write_file(folder / "bad.jsonl", "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 2}\n");
  const std::string bad = folder / "bad.jsonl";
  check_refused("eval " + choosing_model + " --multiple-choice " + bad, 5,
                "--multiple-choice: " + bad + ":1: label: expected the index of the right ending");
  check_refused("eval " + std::string(ZG_FIXTURES) + "hf_gpt2 --multiple-choice " + questions_path,
                2, "--multiple-choice: expected a model with a tokenizer");
  check_refused("eval " + std::string(ZG_FIXTURES) + "hf_bart --multiple-choice " + questions_path,
                6, "--multiple-choice: it scores the endings of a decoder");
}

}  // namespace zg::testing
