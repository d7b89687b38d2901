#include <cmath>
#include <filesystem>

#include "tests/support/temporary_folder.h"
#include "tests/tools/config/config_matrix.h"

// Megatron-DeepSpeed's recipe: a batch that grows, a rate by samples, and how runs end early.
namespace zg::testing {
namespace {

const std::string recipe_model =
    "train --data sort --score-samples 0 --log-interval 0 --threads 1 --n-layer 1 --n-head 1 "
    "--n-embd 16 ";

// Batches of 4, 8, 12 and then 16, growing every 12 samples: 4 4 4, 8 8, 12, 16 ...
const std::string growing =
    recipe_model + "--micro-batch-size 2 --global-batch-size 16 --rampup-batch-size 4 4 36 ";
const std::vector<int64_t> batches = {4, 4, 4, 8, 8, 12, 16, 16, 16};

// The values of one key in the lines of steps.
template <class T>
std::vector<T> values(const std::string& metrics, const char* key) {
  std::vector<T> found;
  for (const nlohmann::json& line : json_lines(metrics))
    if (line.contains(key)) found.push_back(line.at(key).get<T>());
  return found;
}

}  // namespace

TEST_CASE(
    "recipe: the batch grows by --rampup-batch-size, and --train-samples sets where the run ends") {
  const TemporaryFolder folder;
  const Outcome outcome =
      checked(zerograd(growing + "--ranks 2 --train-samples 100 --metrics " + (folder / "m")));
  CHECK(values<int64_t>(folder / "m", "samples") == batches);
  CHECK(values<int64_t>(folder / "m", "micro_steps") ==
        std::vector<int64_t>{1, 1, 1, 2, 2, 3, 4, 4, 4});
  for (const char* line : {"batch 16 = 2 x 4 micro-batches x 2 ranks; steps 0 to 9\n",
                           "the batch grows from 4 by 4 to 16 over 36 samples; 4 now\n",
                           "\nbatch 8 = 4 x 2 from step 3 on, after 12 samples\n",
                           "\nbatch 12 = 4 x 3 from step 5 on, after 28 samples\n",
                           "\nbatch 16 = 4 x 4 from step 6 on, after 40 samples\n"}) {
    CAPTURE(line);
    CHECK(contains(outcome.error, line));
  }
  // The tenth step would have samples 88 to 104.
  CHECK(contains(zerograd(growing + "--train-samples 88").error, "; steps 0 to 9\n"));
  CHECK(contains(zerograd(growing + "--train-samples 87").error, "; steps 0 to 8\n"));
}

TEST_CASE("recipe: a run resumed in the middle of a ramp-up has the bits of the whole one") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved";
  const std::string rates = "--lr-decay-style cosine --lr-warmup-samples 30 --min-lr 1e-5 ";
  const std::string whole =
      hash_of(growing + rates + "--train-samples 100 --save-interval 1 --save-top-k -1 --save " +
              save + " --metrics " + (folder / "whole"));
  const std::string resume = "train --threads 1 --score-samples 0 --log-interval 0 --resume ";
  for (const char* flags : {"/step_2 --ranks 1", "/step_3 --ranks 2 --zero-stage 2",
                            "/step_7 --ranks 2 --zero-stage 2"})
    CHECK(hash_of(resume + save + flags) == whole);
  // Micro-batches of another size are added in another order.
  CHECK(hash_of(resume + save + "/step_4 --batch-size 1 --ranks 4") != whole);
  const Outcome rest = zerograd(resume + save + "/step_4 --metrics " + (folder / "rest"));
  CHECK(contains(rest.error, "the batch grows from 4 by 4 to 16 over 36 samples; 8 now\n"));
  CHECK(contains(rest.error, "; steps 4 to 9\n"));
  CHECK(!contains(rest.error, "changed: "));
  const auto before = json_lines(folder / "whole"), after = json_lines(folder / "rest");
  REQUIRE(after.size() == 6);
  for (size_t i = 0; i < 5; ++i)
    for (const char* key : {"step", "samples", "loss", "grad_norm", "lr"})
      CHECK(after[i].at(key) == before[4 + i].at(key));
  // 3 ranks cannot divide the batch, which is refused. Another ramp-up gives other steps.
  checked(zerograd(resume + save + "/step_4 --ranks 3"), 2);
  const Outcome level = checked(zerograd(
      resume + save + "/step_4 --rampup-batch-size 16,4,1 --metrics " + (folder / "level")));
  CHECK(values<int64_t>(folder / "level", "samples") == std::vector<int64_t>{16, 16, 16, 16, 16});
  CHECK(contains(level.error, "changed: run.rampup_start: 4 in the checkpoint, 16 now"));
}

TEST_CASE(
    "recipe: the learning rate follows the samples of the steps taken, without skipped steps") {
  const TemporaryFolder folder;
  const auto rates = [&](const std::string& flags) {
    checked(zerograd(growing + flags + " --metrics " + (folder / "m")));
    return values<double>(folder / "m", "lr");
  };
  const auto check = [&](const std::string& flags, const auto& expected) {
    CAPTURE(flags);
    const std::vector<double> found = rates(flags);
    REQUIRE(found.size() == batches.size());
    double samples = 0.0;
    for (size_t i = 0; i < found.size(); ++i) {
      CAPTURE(i);
      CHECK(found[i] == doctest::Approx(expected(samples)).epsilon(1e-14));
      samples += static_cast<double>(batches[i]);
    }
  };
  const double pi = std::acos(-1.0);
  const auto cosine = [&](double end) {
    return [=](double samples) {
      if (samples <= 20) return 1e-3 * samples / 20;
      return samples > end ? 1e-4
                           : 1e-4 + 0.5 * 9e-4 * (1 + std::cos(pi * (samples - 20) / (end - 20)));
    };
  };
  const std::string to_end = "--lr 1e-3 --min-lr 1e-4 --lr-warmup-samples 20 --train-samples 100 ";
  check(to_end + "--lr-decay-style cosine", cosine(100.0));
  check(to_end + "--lr-decay-style cosine --lr-decay-samples 60", cosine(60.0));
  check("--lr 1e-3 --lr-decay-samples 40 --steps 9",  // linear, as Megatron's default
        [](double samples) { return samples > 40 ? 0.0 : 1e-3 * (1 - samples / 40); });
  check("--lr 1e-3 --lr-decay-style constant --lr-warmup-samples 20 --steps 9",
        [](double samples) { return samples <= 20 ? 1e-3 * samples / 20 : 1e-3; });
  // A skipped step advances the data and the batch size, but not the rate.
  const std::vector<double> skipped = rates(
      "--lr 1e-3 --lr-decay-style constant --lr-warmup-samples 20 --steps 6 --precision f16 "
      "--inject rank=0,step=1,fault=inf");
  REQUIRE(skipped.size() == 6);
  CHECK(skipped[1] == doctest::Approx(1e-3 * 4 / 20));
  CHECK(skipped[2] == skipped[1]);
  CHECK(skipped[3] == doctest::Approx(1e-3 * 8 / 20));
  CHECK(values<int64_t>(folder / "m", "samples") == std::vector<int64_t>{4, 4, 4, 8, 8, 12});
  const Outcome outcome = zerograd(growing + to_end + "--lr-decay-style cosine");
  CHECK(contains(outcome.error,
                 "learning rate: AnnealingLR, 0.001 after 20 samples of warmup, then cosine to "
                 "0.0001 at 100\n"));
}

TEST_CASE(
    "recipe: --train-samples and the end of the decay come from the checkpoint unless given "
    "again") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved";
  checked(zerograd(growing + "--train-samples 60 --lr-decay-style linear --save " + save));
  const std::string resume =
      "train --threads 1 --score-samples 0 --log-interval 0 --resume " + save;
  CHECK(contains(zerograd(resume).error, "nothing is left to train: the run ends at step 7"));
  const auto ends = [&](const std::string& flags, const char* steps, const char* decay) {
    CAPTURE(flags);
    const Outcome outcome = checked(zerograd(resume + flags));
    CHECK(contains(outcome.error, steps));
    CHECK(contains(outcome.error, std::string("then linear to 0 at ") + decay + "\n"));
  };
  ends(" --train-samples 100", "; steps 7 to 9\n", "100");
  ends(" --steps 8", "; steps 7 to 8\n", "60");
  ends(" --train-samples 100 --lr-decay-samples 90", "; steps 7 to 9\n", "90");
}

TEST_CASE(
    "recipe: plan predicts a ramp-up's memory to the byte, and the peak of the full batch to "
    "come") {
  check_plan_is_run(growing.substr(5) + "--ranks 2 --zero-stage 1 --steps 3");
  // A run of three steps with one micro-batch each keeps no accumulated gradients during a
  // backward.
  const std::string flags = growing.substr(5) + "--ranks 2 --zero-stage 1 --train-samples 300000 ";
  const Outcome capped = checked(zerograd("plan" + flags + "--device-memory 1GiB"));
  const std::string grown =
      line_after(capped.out, "the batch grows from 4 by 4 to 16 over 36 samples; peak ");
  CHECK(!grown.empty());
  CHECK(contains(capped.out, "fits 1GiB: yes"));
  const std::string whole = "plan" + recipe_model.substr(5) +
                            "--batch-size 2 --train-batch-size 16 --ranks 2 --zero-stage 1 ";
  const std::string peak = line_after(zerograd(whole).out, "peak ");
  CHECK(peak.substr(0, peak.find(" (")) == grown.substr(0, grown.find(" in its")));
}

TEST_CASE("recipe: --exit-interval saves and ends with success, and jobs in a row make one run") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved";
  const std::string whole = hash_of(growing + "--steps 7");
  const std::string run = growing + "--steps 7 --exit-interval 3 --resume auto --save " + save;
  for (const char* step : {"step_3", "step_6"}) {
    const Outcome part = checked(zerograd(run));
    CHECK(contains(part.error, "--exit-interval 3 ends the run after " +
                                   std::string(step).substr(5) + " steps"));
    CHECK(contains(part.out, "saved " + save + "/" + step + "\n"));
    CHECK(!contains(part.out, "param_hash"));
  }
  CHECK(hash_of(run) == whole);
  // The interval counts steps of the whole run, wherever a job began.
  const std::string other = growing + "--steps 7 --resume auto --save " + (folder / "other");
  CHECK(contains(zerograd(other + " --exit-interval 3").error, "after 3 steps"));
  CHECK(contains(zerograd(other + " --exit-interval 2").error, "after 4 steps"));
  // A run that ends at the interval anyway ends normally.
  CHECK(hash_of(growing + "--steps 7 --exit-interval 7") == whole);
  CHECK(contains(zerograd(growing + "--steps 7 --exit-interval 2").error, "after 2 steps\n"));
}

TEST_CASE(
    "recipe: the file of --kill-switch-path ends all ranks after the step in which it appears") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved";
  // The switch is the checkpoint folder itself, which exists after step 2.
  const std::string run = growing + "--steps 7 --save-interval 2 --save " + save +
                          " --kill-switch-path " + save + "/step_2 ";
  const auto check = [&](const Outcome& outcome) {
    CAPTURE(outcome.error);
    CHECK(outcome.status == 0);
    CHECK(
        contains(outcome.error, "the kill switch " + save + "/step_2 ends the run after 2 steps"));
    CHECK(!contains(outcome.out, "param_hash"));
    CHECK(std::filesystem::exists(save + "/step_2"));
    CHECK(!std::filesystem::exists(save + "/step_4"));
  };
  check(zerograd(run + "--ranks 2"));
  // The file still exists.
  check_refused(run + "--resume auto", 2,
                "error: ConfigError: --kill-switch-path: expected no file of this "
                "name before the run, got " +
                    save + "/step_2; try removing it");
  checked(zerograd("plan" + run.substr(5)));
  if (missing_mpi().empty()) {
    std::filesystem::remove_all(save);
    check(mpirun("-np 2 zerograd " + run));
  }
}

TEST_CASE("recipe: Megatron's flags do the same as the flags that they stand for") {
  const Seen plain = configured("").seen;
  const std::pair<const char*, const char*> same[] = {
      {"--adam-beta1 0.7 --adam-beta2 0.8", "--betas 0.7,0.8"},
      {"--betas 0.7,0.95 --adam-beta2 0.8", "--betas 0.7,0.8"},
      {"--clip-grad 0.01", "--clip 0.01"},
      {"--bf16", "--precision bf16"},
      {"--fp16", "--precision f16"},
      {"--precision 16", "--precision f16"},
      {"--bf16 --precision 32 --seed 7", "--seed 7"},
      {"--fp16 --precision f32 --bf16", "--precision bf16"},
      {"--micro-batch-size 2 --global-batch-size 6", "--batch-size 2 --train-batch-size 6"},
      {"--train-iters 2", "--steps 2"},
      {"--num-layers 1 --num-attention-heads 2 --hidden-size 32 --seq-length 11 "
       "--max-position-embeddings 11",
       "--n-layer 1 --n-head 2 --n-embd 32"},
      {"--checkpoint-activations --deepspeed-activation-checkpointing", "--activation-checkpoint"}};
  for (const auto& [theirs, ours] : same) {
    CAPTURE(theirs);
    CHECK(configured(theirs).seen == configured(ours).seen);
    CHECK(configured(theirs).seen != plain);
  }
  CHECK(configured("--adam-eps 1e-8").seen == plain);
  check_refused(recipe_model + "--max-position-embeddings 12", 2,
                "--max-position-embeddings: expected 11, the block size (--block-size), got 12");
}

TEST_CASE(
    "recipe: --load and --eval-iters work, and the flag --universal-checkpoint has no effect") {
  const TemporaryFolder folder;
  const std::string save = folder / "saved";
  const Outcome first = checked(zerograd(recipe_model +
                                         "--steps 2 --eval-interval 1 --eval-iters 1 "
                                         "--universal-checkpoint --save " +
                                         save));
  CHECK(contains(first.error, "--universal-checkpoint has no effect: every checkpoint loads"));
  CHECK(line_after(first.out, "val loss ") ==
        line_after(zerograd(recipe_model + "--steps 2 --eval-interval 1 --eval-batches 1").out,
                   "val loss "));
  CHECK(contains(zerograd("train --score-samples 0 --steps 3 --load " + save).error,
                 "resumed " + save));
  const Outcome plan =
      checked(zerograd("plan" + recipe_model.substr(5) +
                       "--exit-interval 1 --kill-switch-path here --universal-checkpoint"));
  CHECK(contains(plan.error,
                 "without effect: --exit-interval, --kill-switch-path, "
                 "--universal-checkpoint\n"));
}

}  // namespace zg::testing
