#include <cmath>
#include <set>

#include "tests/support/temporary_folder.h"
#include "tests/tools/config/config_matrix.h"
#include "zerograd/runtime/storage/checksum.h"

namespace zg::testing {
namespace {

using nlohmann::json;

const std::string precision_run =
    "train --data sort --train-batch-size 16 --batch-size 2 --score-samples 0 --log-interval 0 "
    "--threads 1 ";

struct Trained {
  std::string hash, error;
  std::vector<json> steps;
  json last;

  std::vector<json> column(const char* key) const {
    std::vector<json> values;
    for (const json& step : steps) values.push_back(step.at(key));
    return values;
  }
};

Trained train_with_metrics(const std::string& line) {
  const TemporaryFolder folder;
  CAPTURE(line);
  const Outcome outcome = checked(zerograd(line + " --metrics " + (folder / "metrics")));
  Trained trained{.hash = line_after(outcome.out, "param_hash "),
                  .error = outcome.error,
                  .steps = json_lines(folder / "metrics"),
                  .last = {}};
  trained.last = trained.steps.back();
  trained.steps.pop_back();
  return trained;
}

/// DeepSpeed's WarmupLR with warmup_type log, of the k-th step taken.
double warmup_rate(double rate, int k, int warmup) {
  const int iteration = k - 1;
  if (iteration < 0) return 0.0;
  return iteration < warmup ? rate * std::log(iteration + 1.0) / std::log(warmup) : rate;
}

}  // namespace

TEST_CASE(
    "f16 from scale 2^32 with injected infinities follows DeepSpeed's loss scales at every stage") {
  const std::set<int> planted = {25, 26, 40, 55};
  constexpr double rate = 2e-4;  // higher, gradients grow beyond the scale of the first that fit
  const std::string run = precision_run +
                          "--steps 60 --ranks 2 --precision f16 --initial-scale-power 32 "
                          "--schedule WarmupLR --warmup-steps 10 --lr 2e-4 "
                          "--inject rank=1,step=25+26+40+55,fault=inf --zero-stage ";
  const Trained first = train_with_metrics(run + "0");
  REQUIRE(first.steps.size() == 60);
  double scale = 0x1p32;
  int hysteresis = 2, skips = 0;
  bool starting = true;  // until the first step that is taken
  for (int i = 0; i < 60; ++i) {
    CAPTURE(i);
    const json& step = first.steps[static_cast<size_t>(i)];
    const bool skipped = step.at("skipped");
    starting = starting && skipped;
    CHECK(skipped == (starting || planted.count(i) > 0));
    CHECK(step.at("loss_scale") == scale);
    CHECK((step.at("grad_norm") == "inf") == skipped);
    CHECK(step.at("lr").get<double>() == doctest::Approx(warmup_rate(rate, i - skips, 10)));
    if (!skipped) continue;
    ++skips;
    CHECK(contains(first.error, "step " + std::to_string(i) +
                                    " skipped: the gradient of transformer.wte.weight is not"));
    std::string line = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: " +
                       std::to_string(static_cast<int64_t>(scale));
    if (hysteresis == 2) {
      hysteresis = 1;
      line += ", but hysteresis is 2. Reducing hysteresis to 1\n";
    } else {
      scale /= 2;
      line += ", reducing to " + std::to_string(static_cast<int64_t>(scale)) + "\n";
    }
    CHECK(contains(first.error, line));
  }
  // Gradients of 0.1 to 4 fit into f16, up to 65504, from scales of 2^14 to 2^19 on.
  CHECK(skips >= 18);
  CHECK(skips <= 24);
  CHECK(first.last.at("skipped") == skips);
  CHECK(first.steps.back().at("loss") < 0.8 * first.steps.front().at("loss").get<double>());
  for (const char* stage : {"1", "2", "3"}) {
    CAPTURE(stage);
    const Trained other = train_with_metrics(run + stage);
    CHECK(other.hash == first.hash);
    for (const char* key : {"loss", "grad_norm", "loss_scale", "skipped", "lr"})
      CHECK(other.column(key) == first.column(key));
  }
}

TEST_CASE("a resumed f16 run, also on other ranks, gives the bits of the uninterrupted run") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints";
  // The first steps overflow, step 6 is made to.
  const std::string drill = " --inject rank=0,step=6,fault=inf";
  const Trained whole = train_with_metrics(
      precision_run + "--steps 9 --ranks 2 --zero-stage 2 --precision 16 " +
      "--initial-scale-power 20 --schedule WarmupDecayLR " +
      "--warmup-steps 2 --save-interval 1 --save-top-k -1 --save " + save + drill);
  CHECK(whole.steps[0].at("skipped") == true);
  CHECK(whole.steps[5].at("skipped") == false);
  CHECK(whole.last.at("skipped") > 2);
  // tests/zero/trainer_test.cpp resumes any step.
  const char* layouts[] = {"--ranks 1", "--ranks 4 --zero-stage 3", "--ranks 2 --zero-stage 1"};
  for (const int64_t step : {2, 6, 7}) {
    CAPTURE(step);
    const Trained rest =
        train_with_metrics("train --steps 9 --score-samples 0 --log-interval 0 --threads 1 " +
                           std::string(layouts[step % 3]) + drill + " --resume " + save + "/step_" +
                           std::to_string(step));
    CHECK(rest.hash == whole.hash);
    CHECK(rest.last.at("skipped") == whole.last.at("skipped"));
    for (const char* key : {"loss", "grad_norm", "loss_scale", "skipped", "lr"}) {
      const std::vector<json> all = whole.column(key);
      CHECK(rest.column(key) == std::vector<json>(all.begin() + step, all.end()));
    }
  }
  const std::string resume = "train --steps 9 --score-samples 0 --resume " + save + "/step_6 ";
  check_refused(resume + "--initial-scale-power 18", 2,
                "--initial-scale-power: a resumed run continues with the checkpoint's "
                "scale; expected 20 as in the checkpoint, got 18");
  CHECK(contains(train_with_metrics(resume + "--precision f32").error,
                 "changed: run.compute: \"f16\" in the checkpoint, \"f32\" now"));
  CHECK(contains(train_with_metrics(resume + "--steps 12").error,
                 "changed: run.schedule_steps: 9 in the checkpoint, 12 now"));
}

TEST_CASE("each precision preset is saved, resumed, evaluated and sampled with its own dtypes") {
  struct Case {
    const char* precision;
    int bytes;  ///< per parameter: parameter, gradient accumulator, moments and master weight
  };
  std::set<std::string> hashes;
  for (const Case& one : {Case{"deepspeed", 18},
                          {"fsdp-mixed", 18},
                          {"fsdp-memory", 8},
                          {"bf16", 18},
                          {"f16", 18},
                          {"f32", 16}}) {
    CAPTURE(one.precision);
    const TemporaryFolder folder;
    const std::string save = folder / "checkpoints", memory = folder / "memory";
    const Trained whole =
        train_with_metrics(precision_run + "--steps 4 --save-interval 2 --save-top-k -1 --save " +
                           save + " --precision " + one.precision);
    hashes.insert(whole.hash);
    const Trained rest = train_with_metrics(
        "train --steps 4 --score-samples 0 --log-interval 0 --ranks 2 --zero-stage 3 --resume " +
        save + "/step_2 --memory-json " + memory);
    CHECK(rest.hash == whole.hash);
    CHECK(!contains(rest.error, "changed: run.load"));
    const json record = json::parse(read_file(memory));
    CHECK(record.at("precision") == one.precision);
    int64_t bytes = 0;
    for (const json& rank : record.at("ranks"))
      for (const char* kind : {"parameter", "gradient", "optimizer"})
        bytes += rank.at("rest").at(kind).get<int64_t>();
    // Parameters of at most 1e5 elements, here all, keep whole values on both ranks.
    const int64_t value = std::string(one.precision) == "f32" ? 4 : 2;
    CHECK(bytes == (one.bytes + value) * record.at("parameters").get<int64_t>());

    const Outcome evaluated =
        checked(zerograd("eval " + save + " --score-samples 20 --eval-batches 1"));
    CHECK(line_after(evaluated.out, "val loss ").size() == 6);
    CHECK(checked(zerograd("generate " + save + " --prompt 210021 --length 6 --temperature 0"))
              .out.size() == 13);
  }
  // FSDP's mixed precision and DeepSpeed are one row of dtypes by two names.
  CHECK(hashes.size() == 5);
}

TEST_CASE("--grad-accum-dtype overrides the dtype of a precision preset, in either order") {
  for (const auto& [flags, dtype] :
       {std::pair("--precision fsdp-memory", "bf16"),
        std::pair("--precision fsdp-memory --grad-accum-dtype f32", "f32"),
        std::pair("--grad-accum-dtype f32 --precision fsdp-memory", "f32")}) {
    CAPTURE(std::string(flags));
    CHECK(configured(flags).seen["grad_accum"] == dtype);
  }
}

TEST_CASE("the warm-up and the end of a schedule follow from flags and the run's length") {
  const struct {
    const char *flags, *kind, *warmup, *end;
  } cases[] = {
      {"--schedule none", "none", "0", "0"},
      {"--schedule WarmupLR", "WarmupLR", "1000", "0"},  // DeepSpeed's where it is not given
      {"--schedule WarmupDecayLR --num_warmup_steps 3", "WarmupDecayLR", "3", "8"},
      {"--schedule WarmupCosineLR --warmup-steps 3", "WarmupCosineLR", "3", "8"},
      {"--schedule cosine", "cosine", "0", "8"},
      // 0.005 epochs of 10000 samples are three steps of 16.
      {"--epochs 0.005 --schedule cosine --warmup-steps 1", "cosine", "1", "3"}};
  for (const auto& [flags, kind, warmup, end] : cases) {
    CAPTURE(flags);
    const bool has_epochs = contains(flags, "--epochs");
    Configured run =
        configured(std::string(has_epochs ? "" : "--steps 8 ") + "--batch-size 16 " + flags);
    checked(run.outcome);
    CHECK(run.seen["schedule"] == kind);
    CHECK(run.seen["warmup_steps"] == warmup);
    CHECK(run.seen["schedule_steps"] == end);
  }
  const Outcome outcome = zerograd(precision_run + "--steps 2 --schedule WarmupDecayLR");
  CHECK(contains(outcome.error,
                 "learning rate: WarmupDecayLR, 0.0005 after 1000 steps of warmup, "
                 "decaying until step 2; 0 in the first two; total_num_steps 2 is "
                 "less than warmup_num_steps 1000"));
}

TEST_CASE(
    "a checkpoint that stores no schedule and precision preset continues with its old behaviour") {
  const TemporaryFolder folder;
  const std::string save = folder / "checkpoints", manifest_path = save + "/step_2/manifest.json";
  const std::string run = precision_run + "--precision bf16 ";
  train_with_metrics(run + "--steps 2 --save " + save);
  json manifest = json::parse(read_file(manifest_path));
  for (const char* name : {"schedule", "warmup_steps", "schedule_steps", "preset", "load",
                           "optimizer", "initial_scale_power"})
    CHECK(manifest.at("config").at("run").erase(name) == 1);
  manifest.erase("checksum");
  const std::string text = manifest.dump();
  manifest["checksum"] = checksum(std::as_bytes(std::span(text)));
  write_file(manifest_path, manifest.dump(1) + "\n");
  CHECK(train_with_metrics("train --steps 3 --score-samples 0 --resume " + save).hash ==
        train_with_metrics(run + "--steps 3").hash);
}

}  // namespace zg::testing
