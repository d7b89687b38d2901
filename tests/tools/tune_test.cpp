#include <algorithm>
#include <atomic>
#include <csignal>
#include <filesystem>
#include <regex>
#include <sstream>
#include <thread>

#include "tests/support/temporary_folder.h"
#include "tests/support/wait_until.h"
#include "tests/tools/command.h"
#include "tools/tune/tune.h"

namespace zg::testing {
namespace {

constexpr const char* tune_run = "--data sort --ranks 2 --threads 1 ";

/// A row of tune's table.
struct TrialRow {
  std::string setting, predicted_peak, measured_peak, predicted_rank, samples_per_s, step_ms;
};

std::vector<TrialRow> trial_rows(const std::string& table) {
  std::istringstream stream(table);
  std::vector<TrialRow> rows;
  const std::string cell = " \\| ([^|]*)";
  const std::regex row("\\| [0-9]+" + cell + cell + cell + cell + cell + cell + " \\|");
  for (std::string line; std::getline(stream, line);)
    if (std::smatch cells; std::regex_match(line, cells, row))
      rows.push_back({cells[1], cells[2], cells[3], cells[4], cells[5], cells[6]});
  return rows;
}

/// The row of the setting in the printed command line.
TrialRow best_of(const Outcome& outcome) {
  const std::string best = line_after(outcome.out, "best ");
  for (const TrialRow& row : trial_rows(outcome.out))
    if (best.ends_with(" " + row.setting)) return row;
  return {};
}

/// Peak memory of rank 0 in a run of three steps.
std::string peak_of(const std::string& flags) {
  const TemporaryFolder folder;
  checked(zerograd("train --steps 3 --score-samples 0 --log-interval 0 " + flags +
                   " --memory-json " + (folder / "memory")));
  const auto memory = nlohmann::json::parse(read_file(folder / "memory"));
  return memory["ranks"][0]["peak"]["reserved"].dump();
}

/// Tunes a long search on a text in the folder; `strike` receives the first trial that runs.
template <class Strike>
Outcome tune_struck(const TemporaryFolder& folder, const std::string& flags, const Strike& strike) {
  const std::string text = folder / "text.txt";
  write_file(text, std::string(4000, 'a') + "b");
  Outcome outcome{};
  std::atomic<bool> ended = false, struck = false;
  std::thread tune([&] {
    outcome = zerograd(
        "tune --model-type gpt-mini --block-size 32 --batch-size 16 --ranks 2 --threads 1 --data " +
        text + " --out " + (folder / "out.json") + " " + flags);
    ended = true;
  });
  while (!struck && !ended) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const std::vector<Process> all = processes_with(folder.path());
    for (const Process& parent : all)
      for (const Process& trial : all)
        if (!struck && trial.parent == parent.pid) struck = strike(trial);
  }
  tune.join();
  CAPTURE(outcome.error);
  CHECK(struck);
  return outcome;
}

/// Tunes with the flags in `seconds`, and in more on a slow or busy machine, until `rows` settings
/// or more have been tried and no trial has failed.
Outcome tuned(const std::string& flags, double seconds, size_t rows) {
  for (;; seconds *= 5) {
    const Outcome outcome = zerograd("tune --time " + std::to_string(seconds) + " " + flags);
    const std::vector<TrialRow> tried = trial_rows(outcome.out);
    const bool all_ran =
        std::ranges::all_of(tried, [](const TrialRow& row) { return row.measured_peak != "-"; });
    if ((outcome.status == 0 && tried.size() >= rows && all_ran) || seconds > 500) return outcome;
  }
}

}  // namespace

TEST_CASE(
    "tune finds a setting that fits where the default does not, and writes a config that trains "
    "so") {
  const TemporaryFolder folder;
  const std::string flags = std::string(tune_run) + "--device-memory 7MiB ";
  checked(zerograd("train --steps 1 " + flags), 3);
  const std::string out = folder / "tuned.json";
  const Outcome outcome = checked(tuned("--out " + out + " " + flags, 12, 4));
  const std::vector<TrialRow> rows = trial_rows(outcome.out);
  REQUIRE(rows.size() >= 4);
  double before = 1e30;
  for (const TrialRow& row : rows) {
    CAPTURE(row.setting);
    CHECK(row.predicted_peak == row.measured_peak);
    CHECK(std::stoll(row.predicted_peak) <= 7 << 20);
    CHECK(std::stod(row.samples_per_s) <= before);
    before = std::stod(row.samples_per_s);
  }
  CHECK(line_after(outcome.out, "wrote ") == out);
  const std::string best = line_after(outcome.out, "best zerograd train ");
  CHECK(best == flags + best_of(outcome).setting);
  CHECK(peak_of(best) == best_of(outcome).measured_peak);
  CHECK(peak_of(flags + "--config " + out) == best_of(outcome).measured_peak);
  // The command prints a note if it does not choose the fastest setting.
  CHECK(
      contains(outcome.error, "within the noise of the fastest the best is the one nearest to ") ==
      (best_of(outcome).setting != rows.front().setting));
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

TEST_CASE("tune does not vary a setting that a flag or a config gives") {
  const TemporaryFolder folder;
  const std::string config = folder / "ds.json", out = folder / "out.json";
  write_file(config, R"({"train_batch_size": 24, "bf16": {"enabled": true}, "steps_per_print": 5,
                         "zero_optimization": {"stage": 3, "cpu_offload": true}})");
  write_file(folder / "text.txt", read_file(ZG_CONFIGS "zero3.json"));
  const std::string flags = "--data " + (folder / "text.txt") +
                            " --n-layer 2 --n-head 2 --n-embd 32 --block-size 16 --ranks 2 "
                            "--threads 1 --offload-param host --config ";
  const Outcome outcome = checked(tuned(flags + config + " --out " + out, 8, 1));
  for (const TrialRow& row : trial_rows(outcome.out)) {
    CAPTURE(row.setting);
    CHECK(row.predicted_peak == row.measured_peak);
    CHECK(!contains(row.setting, "--zero-stage"));
    CHECK(!contains(row.setting, "--offload-optimizer"));
    CHECK(24 / 2 % std::stoi(row.setting.substr(row.setting.find("--batch-size ") + 13)) == 0);
  }
  const auto written = nlohmann::json::parse(read_file(out));
  CHECK(written["train_batch_size"] == 24);
  CHECK(written["steps_per_print"] == 5);
  CHECK(written["zero_optimization"]["stage"] == 3);
  CHECK(written["zero_optimization"]["offload_optimizer"]["device"] == "cpu");
  CHECK(written["zero_optimization"]["offload_param"]["device"] == "cpu");
  CHECK(peak_of(flags + out) == best_of(outcome).measured_peak);
}

TEST_CASE(
    "simplest_within_noise picks the setting nearest to the user's run among those near the "
    "fastest") {
  using tools::Measured;
  const auto chosen = [](const std::vector<Measured>& trials) {
    return tools::simplest_within_noise(trials);
  };
  // The middle half of its steps overlaps that of the fastest setting.
  CHECK(chosen({{0.9, 1.0, 1.1, 3}, {1.0, 1.2, 1.4, 1}}) == 1);
  CHECK(chosen({{1.0, 1.2, 1.4, 1}, {0.9, 1.0, 1.1, 3}}) == 0);
  // Just outside it, or not closer to the original run.
  CHECK(chosen({{0.9, 1.0, 1.1, 3}, {1.101, 1.2, 1.4, 1}}) == 0);
  CHECK(chosen({{0.9, 1.0, 1.1, 3}, {1.0, 1.2, 1.4, 3}}) == 0);
  CHECK(chosen({{0.9, 1.0, 1.1, 3}, {1.0, 1.2, 1.4, 4}}) == 0);
  // Several settings are equally close. The fastest setting defines the noise range.
  CHECK(chosen({{1.0, 1.3, 9.0, 1}, {0.9, 1.0, 1.1, 3}, {1.05, 1.2, 1.3, 1}}) == 2);
  CHECK(chosen({{0.5, 1.0, 2.0, 2}}) == 0);
}

TEST_CASE("the first trial of a family is small if that is predicted to be about as fast") {
  using tools::Predicted;
  const auto first = [](const std::vector<Predicted>& family, double longest_s) {
    return tools::first_to_try(family, longest_s);
  };
  const std::vector<Predicted> family = {
      {100.0, 10.0, 1000}, {97.0, 1.0, 97}, {95.0, 0.1, 10}, {94.9, 0.05, 5}, {50.0, 0.02, 1}};
  CHECK(first(family, 20.0) == 2);
  // The fastest ones are the smallest ones, and none is slower.
  CHECK(first({{100.0, 1.0, 8}, {99.0, 2.0, 16}}, 20.0) == 0);
  // Steps above the limit are too long to be measured.
  CHECK(first(family, 0.1) == 2);
  CHECK(first(family, 0.06) == 3);
  CHECK(first(family, 0.001) == 4);
  CHECK(first({{100.0, 10.0, 1000}, {50.0, 3.0, 300}, {20.0, 1.0, 100}}, 5.0) == 1);
}

TEST_CASE(
    "tune --find-max-batch finds the largest micro-batch of each stage, and one more does not "
    "fit") {
  const TemporaryFolder folder;
  const std::string flags = std::string(tune_run) + "--device-memory 6MiB ";
  const std::vector<TrialRow> rows = trial_rows(
      checked(tuned("--find-max-batch --out " + (folder / "out") + " " + flags, 12, 4)).out);
  CHECK(rows.size() == 4);
  for (const TrialRow& row : rows) {
    CAPTURE(row.setting);
    CHECK(row.predicted_peak == row.measured_peak);
    const size_t space = row.setting.rfind(' ');
    const int batch = std::stoi(row.setting.substr(space));
    const std::string plan = "plan " + flags + row.setting.substr(0, space + 1);
    checked(zerograd(plan + std::to_string(batch)));
    checked(zerograd(plan + std::to_string(batch + 1)), 3);
  }
}

TEST_CASE("tune shows a trial that fails as a row and goes on") {
  const TemporaryFolder folder;
  const Outcome outcome =
      tune_struck(folder, "--time 120 --zero-stage 0 --activation-checkpoint=off",
                  [](const Process& trial) { return kill(trial.pid, SIGKILL) == 0; });
  CAPTURE(outcome.out);
  REQUIRE(outcome.status == 0);
  const std::vector<TrialRow> rows = trial_rows(outcome.out);
  REQUIRE(rows.size() == 2);
  CHECK(rows.front().predicted_peak == rows.front().measured_peak);
  CHECK(rows.front().setting == "--offload-optimizer host");
  CHECK(rows.back().setting == "as given");
  CHECK(rows.back().step_ms == "Killed");
  const std::string late = folder / "late";
  const Outcome slow =
      checked(zerograd("tune --model-type gpt-mini --batch-size 512 --time 2 --out " + late + " " +
                       tune_run),
              1);
  CHECK(contains(slow.out, "no end after "));
  CHECK(contains(slow.error, "error: Error: tune: every trial failed"));
  CHECK(!std::filesystem::exists(late));
}

TEST_CASE("tune that is interrupted or killed leaves no trial and no file behind") {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGKILL}) {
    CAPTURE(signal);
    const TemporaryFolder folder;
    const Outcome outcome = tune_struck(
        folder, "", [&](const Process& trial) { return kill(trial.parent, signal) == 0; });
    CHECK(outcome.status == 128 + signal);
    wait_until([&] { return processes_with(folder.path()).empty(); }, "all trials are gone");
    CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
  }
}

TEST_CASE(
    "a config with an async checkpoint writer also serves runs that save only once, and tune") {
  const TemporaryFolder folder;
  const std::string config = folder / "config.json";
  write_file(config, R"({"checkpoint": {"writer": {"decoupled": true}}})");
  const std::string flags =
      std::string(tune_run) + "--zero-stage 0 --batch-size 2 --config " + config;
  checked(zerograd("train --steps 1 --score-samples 0 " + flags));
  checked(tuned("--out " + (folder / "out") + " " + flags, 20, 1));
}

TEST_CASE(
    "tune writes the precision that accelerate's YAML gives where DeepSpeed's config says auto") {
  const TemporaryFolder folder;
  write_file(folder / "a.yaml",
             "distributed_type: DEEPSPEED\nmixed_precision: fp16\ndeepspeed_config:\n"
             "  deepspeed_config_file: \"{fp16: {enabled: 'auto', initial_scale_power: 5}}\"\n");
  checked(
      tuned("--data sort --threads 1 --n-layer 1 --n-head 1 --n-embd 16 --batch-size 2 "
            "--zero-stage 0 --activation-checkpoint=off --offload-optimizer none "
            "--offload-gradients none --config " +
                (folder / "a.yaml") + " --out " + (folder / "out.json"),
            20, 1));
  CHECK(nlohmann::json::parse(read_file(folder / "out.json")).at("fp16") ==
        nlohmann::json{{"enabled", true}, {"initial_scale_power", 5}});
}

TEST_CASE("train --autotuning run tunes and then trains with the best setting") {
  const TemporaryFolder folder;
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string flags = std::string(tune_run) +
                            "--n-layer 1 --n-head 1 --n-embd 16 --batch-size 2 --steps 7 "
                            "--score-samples 0 --zero-stage 0 --autotuning ";
  const Outcome trained =
      zerograd("train " + flags + "run --metrics " + (folder / "metrics") + " --save " +
               (folder / "save") + " --save-interval 3 --save-top-k 2 --async-save");
  std::filesystem::current_path(here);
  CAPTURE(trained.error);
  CHECK(trained.status == 0);
  for (const char* part : {"wrote tuned.json\n", "param_hash"}) CHECK(contains(trained.out, part));
  CHECK(json_lines(folder / "metrics").size() == 8);
  CHECK(std::filesystem::exists(folder / "save/step_7"));
}

TEST_CASE("a config with autotuning.enabled tunes and then trains, as --autotuning run does") {
  const TemporaryFolder folder;
  const std::string config = folder / "config.json";
  write_file(config,
             R"({"autotuning": {"enabled": true, "fast": false}, "gradient_clipping": 0.5})");
  const std::filesystem::path here = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  const std::string flags = std::string(tune_run) +
                            "--n-layer 1 --n-head 1 --n-embd 16 --batch-size 2 --steps 7 "
                            "--score-samples 0 --zero-stage 0 --config " +
                            config;
  const Outcome trained = zerograd("train " + flags);
  const Outcome tuned_only = zerograd("train " + flags + " --autotuning tune");
  const Outcome off = zerograd("train " + flags + " --autotuning off");
  std::filesystem::current_path(here);
  for (const Outcome* outcome : {&trained, &tuned_only}) {
    CAPTURE(outcome->error);
    CHECK(outcome->status == 0);
    CHECK(contains(outcome->out, "wrote tuned.json\n"));
    // Neither the command nor the written config tunes again.
    CHECK(contains(line_after(outcome->out, "best zerograd train "), "--autotuning off"));
  }
  CHECK(contains(trained.out, "param_hash"));
  CHECK(!contains(tuned_only.out, "param_hash"));
  CHECK(off.status == 0);
  CHECK(!contains(off.out, "tuned.json"));
  CHECK(contains(off.error, "autotuning.enabled (--autotuning)"));
  const nlohmann::json written = nlohmann::json::parse(read_file(folder / "tuned.json"));
  CHECK(!written.contains("autotuning"));
  CHECK(written.at("gradient_clipping") == 0.5);
}

TEST_CASE("tune measures full batches, and its best command keeps --rampup-batch-size") {
  const TemporaryFolder folder;
  const Outcome outcome = checked(
      tuned("--data sort --threads 1 --n-layer 1 --n-head 1 --n-embd 16 --batch-size 2 "
            "--train-batch-size 16 --rampup-batch-size 4 4 36 --train-samples 100 --lr-decay-style "
            "cosine --zero-stage 0 --activation-checkpoint=off --offload-optimizer none "
            "--offload-gradients none --out " +
                (folder / "out"),
            60, 1));
  REQUIRE(trial_rows(outcome.out).size() == 1);
  CHECK(contains(outcome.error, "--rampup-batch-size"));
  const std::string best = line_after(outcome.out, "best zerograd ");
  CHECK(contains(best, "--rampup-batch-size 4,4,36"));
  const Outcome trained = checked(zerograd(best + " --score-samples 0"));
  CHECK(contains(trained.error, "the batch grows from 4 by 4 to 16 over 36 samples; 4 now\n"));
}

TEST_CASE("tune refuses wrong options and settings that do not fit before any trial runs") {
  const TemporaryFolder folder;
  const std::string config = folder / "ds.json";
  write_file(config, R"({"train_micro_batch_size_per_gpu": 4})");
  const struct {
    std::string flags;
    int status;
    const char* part;
  } refusals[] = {
      {"", 2, "--data: expected sort, adder"},
      {"--data sort --find-max-bach", 2, "did you mean --find-max-batch?"},
      {"--data sort --time 0", 2, "--time: expected seconds above 0"},
      {"--data sort --zero-stage 4", 2, "--zero-stage"},
      {"--data sort --autotuning fast", 2, "--autotuning: expected run, tune, off, got 'fast'"},
      {"--data sort --find-max-batch --batch-size 3", 2, "--find-max-batch: expected no"},
      {"--data sort --find-max-batch --config " + config, 2, "--find-max-batch: expected no"},
      {"--data sort --config " + config + " --out " + config, 2, "--out: "},
      {"--data sort --out /nowhere/tuned.json", 5, "--out: /nowhere/tuned.json cannot be written"},
      {"--data sort --train-batch-size 16 --rampup-batch-size 4 4 36", 2,
       "--batch-size x ranks, 16 x 1 = 16, divides, got 4 and 4; try --batch-size 4"},
      {"--resume " + folder.path(), 2, "--resume: expected a new run"},
      {"--data sort --ranks 2 --device-memory 1MiB --out " + (folder / "out"), 3,
       "takes 2097152 bytes of device memory, 0 of host memory and 0 of disk for each rank, 2 "
       "times what --device-memory allows; try a higher limit"},
      {"--data sort --ranks 2 --device-memory 1MiB --find-max-batch --out " + (folder / "out"), 3,
       "nothing fits; the smallest setting, --zero-stage"}};
  for (const auto& [flags, status, part] : refusals) {
    CAPTURE(flags);
    check_refused("tune " + flags, status, part);
  }
  CHECK(!std::filesystem::exists(folder / "out"));
  check_refused("launch train --data sort --autotuning run", 2,
                "--autotuning: expected a run of one process");
}

}  // namespace zg::testing
