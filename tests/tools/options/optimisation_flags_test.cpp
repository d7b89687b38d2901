#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/tools/command.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/options/run_spec.h"

namespace zg::testing {
namespace {

using tools::TrainOptions;
using zero::ScheduleKind;

/// The options of flags and their values, after what follows from them together.
TrainOptions options_of(const std::vector<std::string>& words, TrainOptions options = {}) {
  for (size_t i = 0; i + 1 < words.size(); i += 2)
    for (const tools::Field* field : tools::all_fields())
      if (!field->flag.names.empty() && field->name() == words[i]) {
        flag_of(*field, options).set(words[i], words[i + 1]);
        options.given.insert(words[i]);
      }
  tools::resolve_schedule(options);
  return options;
}

std::string refusal_of_flags(const std::vector<std::string>& words) {
  return message_of<Error>([&] { options_of(words); });
}

}  // namespace

TEST_CASE("--lr-scheduler-type takes transformers' names, and refuses what it cannot do by name") {
  for (const char* name : {"linear", "cosine", "cosine_with_restarts", "polynomial", "constant",
                           "constant_with_warmup", "inverse_sqrt", "warmup_stable_decay"}) {
    const TrainOptions options = options_of({"--lr-scheduler-type", name});
    CHECK(name_of(options.schedule.kind) == "hf_" + std::string(name));
    CHECK(options.schedule.warmup_num_steps == 0);
  }
  const std::pair<std::vector<std::string>, const char*> refused[] = {
      {{"--lr-scheduler-type", "cosine_with_min_lr"}, "cosine_with_min_lr: this version lacks it"},
      {{"--lr-scheduler-type", "reduce_lr_on_plateau"}, "reduce_lr_on_plateau: this version lacks"},
      {{"--lr-scheduler-type", "linaer"}, "did you mean linear?"},
      {{"--lr-scheduler-type", "linear", "--schedule", "cosine"}, "expected one of --schedule and"},
      {{"--lr-scheduler-type", "linear", "--lr-warmup-samples", "9"}, "expected one of --lr-sched"},
      {{"--warmup-ratio", "0.1"}, "--warmup-ratio: expected a --schedule that warms up, got"},
      {{"--lr-scheduler-type", "cosine", "--warmup-ratio", "1.1"},
       "--warmup-ratio: expected a numb"},
      {{"--lr-scheduler-type", "cosine", "--warmup-ratio", "0.1", "--warmup-steps", "2"},
       "--warmup-ratio: expected one of --warmup-steps and --warmup-ratio"},
      {{"--schedule", "cosine", "--lr-scheduler-kwargs", "{}"},
       "expected --lr-scheduler-type with"},
      {{"--schedule", "cosine", "--min-lr", "1"}, "--min-lr: expected at most --lr 0.0005, got 1"},
  };
  for (const auto& [words, part] : refused) {
    CAPTURE(words.back());
    const std::string error = refusal_of_flags(words);
    CAPTURE(error);
    CHECK(contains(error, part));
  }
}

TEST_CASE("finetune has the numbers of TRL's SFTConfig, and those of an older checkpoint stay") {
  const TrainOptions fresh = options_of({}, tools::finetune_options());
  const zero::UpdateOptions& update = fresh.engine.update;
  CHECK(fresh.schedule.kind == ScheduleKind::hf_linear);
  CHECK(fresh.schedule.rate == 2e-5);
  CHECK(fresh.schedule.warmup_num_steps == 0);
  CHECK(update.beta1 == 0.9f);
  CHECK(update.beta2 == 0.999f);
  CHECK(update.epsilon == 1e-8f);
  CHECK(update.weight_decay == 0.0f);
  CHECK(fresh.engine.clip_norm == 1.0f);
  CHECK(fresh.epochs == 3.0);

  tools::RunSpec saved;  // as finetune had them before
  saved.schedule.rate = 2e-5f;
  saved.engine.update.weight_decay = 0.0f;
  TrainOptions resumed = tools::finetune_options();
  tools::adopt(saved, resumed);
  CHECK(resumed.schedule.kind == ScheduleKind::none);
  CHECK(resumed.schedule.rate == static_cast<double>(2e-5f));
  CHECK(resumed.engine.update.beta2 == 0.95f);
}

TEST_CASE("a share of warmup becomes steps as in transformers, and a flag overrides a config") {
  const TemporaryFolder folder;
  write_file(folder / "c.json",
             "{scheduler: {type: \"WarmupLR\", params: {warmup_max_lr: 0.25}}, "
             "train_batch_size: 4}");
  write_file(folder / "auto.json",
             "{scheduler: {type: \"WarmupLR\", params: {warmup_num_steps: \"auto\"}}}");
  checked(zerograd("plan --data sort --steps 7 --batch-size 4 --warmup-ratio 0.3 --config " +
                   folder / "auto.json"));
  // 0.3 of 7 steps are 3: a linear warmup, then a linear decay.
  for (const std::string warmup : {"--warmup-ratio 0.3", "--warmup-steps 0.3"}) {
    const Outcome outcome = checked(zerograd(
        "train --data sort --steps 7 --batch-size 4 --score-samples 0 --threads 1 --log-interval 0 "
        "--n-layer 1 --n-head 1 --n-embd 16 --lr 0.5 --lr-scheduler-type linear " +
        warmup + " --config " + folder / "c.json" + " --metrics " + folder / "m.jsonl"));
    CHECK(contains(outcome.error, "overridden by flags: scheduler (--lr-scheduler-type)"));
    std::istringstream lines(read_file(folder / "m.jsonl"));
    std::vector<double> rates;
    for (std::string line; std::getline(lines, line);)
      if (const auto json = nlohmann::json::parse(line); json.contains("lr"))
        rates.push_back(json.at("lr"));
    CHECK(rates ==
          std::vector<double>{0, 0.5 * (1.0 / 3), 0.5 * (2.0 / 3), 0.5, 0.375, 0.25, 0.125});
  }
}

TEST_CASE("flags without effect are named with the reason, and others are not") {
  const auto notes = [](const std::vector<std::string>& words) {
    const TrainOptions options = options_of(words);
    return tools::flags_without_effect(options, options.engine);
  };
  CHECK(notes({"--nvme-path", "/tmp"}) ==
        std::vector<std::string>{"--nvme-path has no effect: no state is offloaded to nvme"});
  CHECK(notes({"--nvme-path", "/tmp", "--offload-optimizer", "nvme"}).empty());
  CHECK(notes({"--speculation", "1MiB"}).size() == 1);
  CHECK(notes({"--speculation", "1MiB", "--cpu-offload"}).size() == 1);
  for (const std::string rule : {"sgd", "adafactor"})
    CHECK(notes({"--optimizer", rule, "--offload-optimizer", "host", "--speculation", "1MiB"}) ==
          std::vector<std::string>{
              "--offload-optimizer has no effect: the optimizer has no state for each element, and "
              "the parameters are the masters",
              "--speculation has no effect: the optimizer has no state for each element, and the "
              "parameters are the masters"});
  CHECK(notes({"--optimizer", "sgd", "--offload-optimizer", "none"}).empty());
  CHECK(notes({"--optimizer", "sgd", "--momentum", "0.9", "--offload-optimizer", "host"}).empty());
  CHECK(notes({"--optimizer", "adafactor", "--precision", "bf16", "--offload-optimizer", "nvme",
               "--speculation", "1MiB"}) ==
        std::vector<std::string>{
            "--speculation has no effect: adafactor updates parameters only after backward"});
  CHECK(notes({"--offload-optimizer", "nvme", "--speculation", "1MiB"}).empty());
  const auto on_host = notes({"--offload-optimizer", "host", "--speculation", "1MiB"});
  REQUIRE(on_host.size() == 1);
  CHECK(contains(on_host[0], "--speculation costs time here: "));
  CHECK(notes({"--prefetch-units", "2", "--zero-stage", "2"}).size() == 1);
  CHECK(notes({"--prefetch-units", "2", "--zero-stage", "3"}).empty());
  CHECK(
      contains(notes({"--prefetch-units", "2", "--zero-stage", "3", "--overlap-comm", "off"}).at(0),
               "with --overlap-comm off nothing is gathered ahead"));
  CHECK(notes({"--param-persistence-threshold", "2", "--prefetch-bucket-size", "2"}).size() == 2);
  CHECK(notes({"--lr-scheduler-type", "constant", "--warmup-ratio", "0.1"}) ==
        std::vector<std::string>{"--warmup-ratio has no effect: a constant rate has no warmup"});
  CHECK(notes({"--comm-timeout", "9"}).size() == 1);
  CHECK(notes({"--comm-timeout", "9", "--ranks", "2"}).empty());
  CHECK(notes({"--schedule-pipeline", "gpipe", "--ranks", "2"}).size() == 1);
  CHECK(notes({"--reduce-bucket-size", "9", "--nccl-reduce", "on"}).size() == 2);
  CHECK(notes({"--data", "sort", "--eval-batches", "9"}).size() == 1);
  CHECK(notes({"--data", "sort", "--eval-batches", "9", "--eval-interval", "2"}).empty());
}

TEST_CASE("a run says that its optimizer is on the host only if it keeps states there") {
  const std::string run =
      "train --data sort --steps 1 --batch-size 2 --score-samples 0 --threads 1 --n-layer 1 "
      "--n-head 1 --n-embd 16 --offload-optimizer host --optimizer ";
  for (const std::string rule : {"sgd", "adafactor"}) {
    const std::string error = checked(zerograd(run + rule)).error;
    CHECK(contains(error, "note: --offload-optimizer has no effect: "));
    CHECK(!contains(error, "optimizer on the host"));
  }
  for (const std::string rule : {"adamw", "sgd --precision bf16"}) {
    const std::string error = checked(zerograd(run + rule)).error;
    CHECK(!contains(error, "has no effect"));
    CHECK(contains(error, "optimizer on the host"));
  }
}

TEST_CASE(
    "a run that cannot learn ends with status 1 on every rank and names the first bad tensor") {
  const TemporaryFolder folder;
  const Outcome outcome = checked(zerograd("train --data sort --steps 40 --batch-size 4 "
                                           "--score-samples 0 --threads 1 --log-interval 0 "
                                           "--n-layer 1 --n-head 1 --n-embd 16 --lr 1e38 --ranks 2 "
                                           "--max-bad-steps 3 --save-interval 1 "
                                           "--save-top-k -1 --save " +
                                           folder.path()),
                                  1);
  CHECK(contains(outcome.error, "3 steps in a row taught nothing: the gradient of "));
  CHECK(contains(outcome.error, " of step 1 is not finite"));
  CHECK(outcome.out.find("saved " + folder / "step_1") != std::string::npos);
  CHECK(outcome.out.find("saved " + folder / "step_2") == std::string::npos);
  const Outcome unsaved = zerograd(
      "train --data sort --steps 1 --batch-size 4 --score-samples 0 --threads 1 --n-layer 1 "
      "--n-head 1 --n-embd 16");
  CHECK(contains(unsaved.error, "without --save DIR nothing of this run will be saved"));
  CHECK(!contains(unsaved.out, "--save"));
}

}  // namespace zg::testing
