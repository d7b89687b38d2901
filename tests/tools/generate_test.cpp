#include <algorithm>

#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"

namespace zg::testing {
namespace {

// Training text of 40 lines, enough for both splits.
std::string sample_text() {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "the quick brown fox jumps over the lazy dög\n";
  return text;
}

}  // namespace

TEST_CASE("a text model is trained, evaluated and continued from its checkpoint alone") {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt", save = folder / "checkpoints";
  write_file(text, sample_text());
  const Outcome trained =
      checked(zerograd("train --data " + text +
                       " --steps 6 --batch-size 4 --block-size 16 --sample-interval 3 "
                       "--eval-interval 3 --save " +
                       save));
  CHECK(contains(trained.out, "sample after step 3:\n"));
  CHECK(line_after(trained.out, "saved ") == save + "/step_6");
  const std::string loss =
      line_after(trained.out.substr(trained.out.rfind("val loss")), "val loss ");

  CHECK(line_after(checked(zerograd("eval " + save)).out, "val loss ") == loss);

  const std::vector<std::string> words = {"generate", save,       "--prompt",
                                          "the dög",  "--length", "30"};
  const Outcome first = checked(zerograd(words)), second = zerograd(words);
  CHECK(first.out.compare(0, 8, "the dög") == 0);
  CHECK(first.out.back() == '\n');
  CHECK(first.out == second.out);
  std::vector<std::string> other = words;
  other.insert(other.end(), {"--seed", "1"});
  CHECK(zerograd(other).out != first.out);

  const Outcome unknown = checked(zerograd({"generate", save, "--prompt", "QUICK"}), 2);
  CHECK(contains(unknown.error, "the model does not know 'Q'"));
  CHECK(contains(unknown.error, "characters: \\n abc"));
  CHECK(std::ranges::count(unknown.error, '\n') == 1);
  const Outcome invalid = checked(zerograd({"generate", save, "--prompt", "the\xff"}), 2);
  CHECK(contains(invalid.error, "--prompt: invalid UTF-8 at byte 3"));

  // A checkpoint defines its model, and a text has no scores: flags for them are refused.
  for (const std::string& line :
       {"generate " + save + " --prompt a --n-head 2", "eval " + save + " --model-type gpt2"}) {
    CAPTURE(line);
    check_refused(line, 2, "defines the model");
  }
  check_refused("eval " + save + " --score-samples 5", 2,
                "--score-samples: expected data sort or adder");
  checked(zerograd("eval " + save + " --score-samples 0"));

  check_refused("train --steps 0 --data " + text + " --init " + save, 5,
                "and block size 16; expected this run's model of 3 blocks of width 48, ");
  const Outcome not_weights = checked(zerograd("generate " + text + " --prompt a"), 5);
  CHECK(contains(not_weights.error, "not a safetensors file: "));
  CHECK(contains(not_weights.error, "; expected a checkpoint's DIR"));
}

TEST_CASE(
    "validation and samples use the held-out text, and eval repeats the run's validation loss") {
  const TemporaryFolder folder;
  const std::string text = folder / "text.txt", save = folder / "checkpoints";
  std::string seen, held_out;
  for (int i = 0; i < 450; ++i) seen += "ab";
  for (int i = 0; i < 100; ++i) held_out += static_cast<char>('c' + i * i % 7);
  write_file(text, seen + held_out);
  const Outcome trained = checked(
      zerograd("train --data " + text +
               " --steps 60 --batch-size 4 --block-size 16 --lr 1e-2 --n-layer 1 --n-head 1 "
               "--n-embd 16 --dropout 0 --sample-interval 60 --eval-interval 60 --save " +
               save));
  CHECK(contains(trained.out, "sample after step 60:\n" + held_out.substr(0, 16)));
  // The validation text has letters that are not in the training text, so its loss is high.
  const double loss = std::stod(line_after(trained.out, "val loss "));
  CHECK(loss > 2.5);
  const Outcome half = zerograd("eval " + save + " --val-fraction 0.5");
  CHECK(std::stod(line_after(half.out, "val loss ")) < 0.5 * loss);
  // The last batch is not full; its loss is weighted by its samples.
  for (const char* batch : {"1", "4", "5", "64"}) {
    CAPTURE(batch);
    const Outcome evaluated = zerograd("eval " + save + " --batch-size " + batch);
    CHECK(std::stod(line_after(evaluated.out, "val loss ")) == doctest::Approx(loss).epsilon(2e-4));
  }

  const std::string sort = folder / "sort", few = " --batch-size 4 --eval-batches 1 ";
  const Outcome sorted = zerograd("train --data sort --seed 5 --steps 2 --score-samples 0 " + few +
                                  "--eval-interval 2 --save " + sort);
  CHECK(line_after(zerograd("eval " + sort + few + "--score-samples 0").out, "val loss ") ==
        line_after(sorted.out, "val loss "));
}

TEST_CASE("a sort model continues digits and reports its scores") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  checked(zerograd("train --data sort --steps 3 --score-samples 0 --save " + save));
  const Outcome outcome =
      checked(zerograd("generate " + save + "/step_3 --prompt 210021 --length 6 --temperature 0"));
  CHECK(outcome.out.size() == 13);
  CHECK(outcome.out.compare(0, 6, "210021") == 0);
  CHECK(outcome.out.find_first_not_of("012\n") == std::string::npos);
  // A share of 1 keeps the likeliest token alone, at any temperature.
  CHECK(zerograd("generate " + save + "/step_3 --prompt 210021 --length 6 --min-p 1").out ==
        outcome.out);
  const Outcome scores = zerograd("eval " + save + " --score-samples 50");
  CHECK(contains(line_after(scores.out, "test final score: "), "/50 = "));
}

TEST_CASE(
    "a weights file without settings gives the model's sizes, and the --data flag gives its "
    "tokens") {
  const TemporaryFolder folder;
  // Gradients have the parameters' names and shapes, so their file is a valid weights file.
  const std::string file = folder / "weights.safetensors";
  checked(zerograd("train --data sort --steps 1 --score-samples 0 --dump-gradients " + file));
  const Outcome evaluated = checked(zerograd("eval " + file + " --data sort --score-samples 10"));
  CHECK(contains(line_after(evaluated.out, "train final score: "), "/10 = "));
  const Outcome digits = zerograd("generate " + file + " --data sort --prompt 210021 --length 4");
  CHECK(digits.out.compare(0, 6, "210021") == 0);
  CHECK(digits.out.size() == 11);
  const Outcome numbers = zerograd({"generate", file, "--prompt", "2 1 0", "--length", "1"});
  CHECK(numbers.out.compare(0, 6, "2 1 0 ") == 0);

  checked(zerograd("eval " + file), 2);
  check_refused("eval " + file + " --data sort --model-type gpt2", 2,
                "has 3 blocks of width 48, which is not gpt2");
  const Outcome initialised =
      checked(zerograd("train --data sort --steps 0 --score-samples 0 --init " + file));
  CHECK(line_after(initialised.out, "param_hash ") !=
        hash_of("train --data sort --steps 0 --score-samples 0"));
}

}  // namespace zg::testing
