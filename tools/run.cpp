#include "tools/run.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "runtime/error.h"
#include "tools/batch_size.h"
#include "tools/checkpoints.h"
#include "tools/optimisation_flags.h"
#include "tools/setup.h"
#include "zero/checkpoint_file.h"

namespace zg::tools {
namespace {

using models::Split;

// Two flags that name one file would leave one of them, or nothing of the data.
void check_apart(const TrainOptions& options) {
  const std::pair<const char*, const std::string*> files[] = {
      {"--data", &options.data.source},
      {"--init", &options.initial_weights},
      {"--metrics", &options.metrics},
      {"--trace", &options.trace},
      {"--dump-gradients", &options.dump_gradients},
      {"--memory-json", &options.memory_json}};
  for (const auto& [flag, path] : files)
    for (const auto& [other_flag, other_path] : files) {
      if (flag == other_flag || path->empty() || other_path->empty()) continue;
      std::error_code ignored;  // two paths that cannot be compared are not one
      if (*path == *other_path || std::filesystem::equivalent(*path, *other_path, ignored))
        throw ConfigError(std::string(flag) + " and " + other_flag + ": both name " + *path +
                          "; expected two files");
    }
}

// What cannot be written should be known before hours of training, not after.
void check_writable(const char* flag, const std::string& path) {
  if (path.empty()) return;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (!file)
    throw FileError(std::string(flag) + ": " + path +
                    " cannot be written: " + std::strerror(errno));
  std::fclose(file);
}

void check_outputs(const TrainOptions& options) {
  check_apart(options);
  check_writable("--trace", options.trace);
  check_writable("--dump-gradients", options.dump_gradients);
  check_writable("--memory-json", options.memory_json);
  if (options.save.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(options.save, error);
  if (error) throw FileError("--save: " + options.save + " cannot be made: " + error.message());
}

void check_data(const TrainOptions& options, const models::Dataset& dataset) {
  if (options.sample_interval > 0 && !dataset.is_text())
    throw ConfigError("--sample-interval: expected data PATH.txt, got " + options.data.source);
  if (options.eval_interval > 0 && dataset.epoch_samples(Split::validation) == 0)
    throw ConfigError("--eval-interval: expected a --val-fraction above 0, got 0");
}

Settings settings_of(const TrainOptions& options, const models::Dataset& dataset) {
  const BatchSize size = solve_batch_size({.micro = options.batch.micro,
                                           .accumulation = options.batch.accumulation,
                                           .train = options.batch.train,
                                           .ranks = options.ranks});
  Settings settings = {.model = model_config(options.model, dataset),
                       .data = options.data,
                       .characters = characters_of(dataset),
                       .micro_batch = size.micro,
                       .accumulation = size.accumulation,
                       .ranks = options.ranks,
                       .optimisation = options.optimisation,
                       .seed = options.seed};
  settings.optimisation.engine.seed = options.seed;
  zero::validate(settings.optimisation.engine);
  return settings;
}

int64_t total_steps(const TrainOptions& options, const models::Dataset& dataset,
                    const Settings& settings) {
  if (options.epochs <= 0.0) return options.steps;
  const double samples = options.epochs * static_cast<double>(dataset.epoch_samples(Split::train));
  return std::max<int64_t>(
      1, static_cast<int64_t>(samples / static_cast<double>(settings.samples_per_step())));
}

}  // namespace

Run prepare_run(const TrainOptions& given) {
  Run run{.options = given};
  TrainOptions& options = run.options;
  settle_precision(options);
  std::optional<Settings> saved;
  if (!options.resume.empty()) run.resumed = checkpoint_to_resume(options.resume, options.save);
  if (!run.resumed.empty()) {
    const zero::CheckpointInfo info = zero::read_checkpoint_info(run.resumed);
    run.steps_done = info.steps;
    saved = settings_from_json(info.config_json, run.resumed);
    adopt(*saved, options);
  }
  settle_schedule(options);
  check_outputs(options);
  if (options.place.device.threads == 0)
    options.place.device.threads = threads_per_rank(static_cast<int>(options.ranks));
  if (!options.trace.empty()) run.trace = std::make_shared<Trace>();
  if (options.data.source.empty())
    throw ConfigError("--data: expected sort, adder, PATH.txt or PATH.bin, got nothing, and " +
                      options.save + " has no checkpoint to resume");
  run.dataset = make_dataset(options.data, options.model.block_size, options.seed);
  check_data(options, *run.dataset);
  run.settings = settings_of(options, *run.dataset);
  run.steps = total_steps(options, *run.dataset, run.settings);
  zero::ScheduleOptions& schedule = run.settings.optimisation.schedule;
  if (zero::decays(schedule.kind)) schedule.total_num_steps = std::max<int64_t>(1, run.steps);
  zero::validate(schedule);
  if (run.steps < run.steps_done)
    throw ConfigError("--steps: " + run.resumed + " is already at step " +
                      std::to_string(run.steps_done) + ", got " + std::to_string(run.steps) +
                      "; --steps counts from step 0, also after --resume");
  if (saved) {
    run.changes = check_resumed(*saved, run.settings);
    run.settings.samples = saved->samples;
    run.settings.loss = saved->loss;
  }
  return run;
}

}  // namespace zg::tools
