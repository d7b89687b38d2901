#include <cstdio>
#include <set>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/advise.h"
#include "tools/tune/tune.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

/// `tune` also takes train's flags.
struct TuneOptions {
  TrainOptions train;  ///< set by flags only; configs are not read
  GivenFlags flags;    ///< those of train, which are passed on to the runs that it starts
  bool find_max_batch = false;
  double time_s = 120.0;
  std::string out = "tuned.json";
};

bool parse(const std::vector<std::string>& arguments, TuneOptions& options) {
  CommandLine line = {
      .usage = "zerograd tune --data sort|adder|PATH.txt|PATH.bin [flags of train]",
      .summary =
          "Plans the ZeRO stages, offloads, activation checkpointing, micro-batches and buckets "
          "that\n"
          "fit in --device-memory and --host-memory on --ranks, runs the best plans for a few "
          "steps\n"
          "and writes the fastest as a config. Settings that flags or a config give are not "
          "varied.",
      .groups = {{"tune",
                  {switch_flag({"--find-max-batch"}, options.find_max_batch,
                               "find the largest micro-batch of each stage; vary nothing else"),
                   number_flag({"--time"}, options.time_s,
                               {0.0, 1e6, true, false, "seconds above 0 and at most 1e6"},
                               "seconds that the whole search may take"),
                   path_flag({"--out"}, "F", options.out, PathUse::writes,
                             "the best setting, for train --config F [" + options.out + "]")}}},
      .notes =
          "  zerograd tune --data sort --model-type gpt-mini --ranks 2 --device-memory 40MiB\n"
          "  zerograd tune --data input.txt --train-batch-size 64 --nvme-path /mnt/nvme\n"
          "  zerograd tune --data sort --ranks 2 --device-memory 40MiB --find-max-batch"};
  for (FlagGroup& group : train_groups(options.train))
    line.groups.push_back(options.flags.recorded(std::move(group)));
  return parse(line, arguments, options.train.given);
}

using Words = std::vector<std::string>;

void check(const TuneOptions& options) {
  if (process_rank())
    throw ConfigError(
        "tune: expected one process, got one of several that a launcher started; try zerograd tune "
        "--ranks N, whose ranks are threads");
  if (options.train.axes.model_ranks() > 1)
    throw Unsupported(
        "--tensor-parallel, --pipeline-parallel: tune varies how ranks share the data; try plan "
        "for each mesh");
  if (options.train.device_flags.type != Device::Type::cpu)
    raise<Unsupported>(
        "--device {}: tune predicts times only for the cpu; try plan or train with it",
        options.train.device_flags.type);
  for (const char* flag : {"--resume", "--restarted"})
    if (options.train.has(flag))
      throw ConfigError(std::string(flag) +
                        ": expected a new run, got one that continues; try tune without it, then "
                        "train with it and with the config that tune writes");
}

Run prepared(const Words& words) {
  TrainOptions train;
  parse(words, train);
  train.only_planned = true;
  // Parameters can be offloaded at stage 3 only, so such a run fixes the stage.
  if (train.engine.offload.parameter != Space::device && may_vary(train, "--zero-stage") &&
      may_vary(train, "--strategy"))
    train.engine.stage = 3;
  Run run = prepare_run(train);
  if (run.pairs)
    throw Unsupported(
        "--model-type: tune predicts times of decoder-only models; try plan with each "
        "--zero-stage, or zerograd bench seq2seq");
  return run;
}

std::string needs(const zero::PlannedSetting& plan) {
  const char* const tight = plan.tight == "device" ? "--device-memory"
                            : plan.tight == "host" ? "--host-memory"
                            : plan.tight == "both" ? "the machine's free memory"
                                                   : "--nvme-path's free space";
  return fmt::format(
      "{} bytes of device memory, {} of host memory and {} of disk for each rank, {:.3g} times "
      "what {} allows",
      plan.bytes.device, plan.bytes.host, plan.bytes.file, plan.load, tight);
}

zero::Search plans_of(const Run& run, const TuneOptions& options) {
  if (options.find_max_batch && !may_vary(run.options, "--batch-size"))
    throw ConfigError(
        "--find-max-batch: expected no --batch-size, as a flag or in a config, because this flag "
        "finds it; leave one out");
  const zero::StepRates rates = measured_rates(run);
  zero::Search plans = options.find_max_batch
                           ? plan_largest(run, rates)
                           : plan_all(run, rates, options.time_s / 3.0, options.time_s / 100.0);
  print_line(stderr, "planned settings: {} fit, {} do not{}", plans.fitting.size(),
             plans.rest.size(), plans.complete ? "" : "; there was no time to plan all");
  if (plans.fitting.empty())
    raise<OutOfMemory>(
        "tune: nothing fits; the smallest setting, {}, takes {}; try a higher limit, more --ranks "
        "or a smaller model",
        description_of(plans.rest.front().setting, run), needs(plans.rest.front()));
  return plans;
}

void print(const Search& search, const zero::Search& plans, const Run& run, bool find_max_batch) {
  print_line(stdout, "{}", table_of(search.trials(), run));
  for (const zero::PlannedSetting& plan : plans.rest)
    if (find_max_batch)
      print_line(stdout, "--zero-stage {}: not one sample fits: {}", plan.setting.engine.stage,
                 needs(plan));
  for (const Trial& trial : search.trials())
    if (trial.failure.empty() && trial.peak_bytes != trial.plan.bytes.device)
      print_line(stderr, "warning: {} took {} bytes, not the planned {}",
                 description_of(trial.plan.setting, run), trial.peak_bytes,
                 trial.plan.bytes.device);
}

}  // namespace

int tune(const std::vector<std::string>& arguments) {
  const auto begin = Search::Clock::now();
  TuneOptions options;
  if (!parse(arguments, options)) return 0;
  check(options);
  // Trials have outputs, checkpoints and a length of their own.
  const std::set<std::string> without_effect = ignored_flags(by_tune);
  check_writable("--out", options.out);
  Words unused;
  for (const auto& [name, words] : options.flags.all())
    if (without_effect.count(name) && name != "--autotuning") unused.push_back(name);
  const bool goes_on = options.train.autotuning == "run";
  if (!unused.empty() && !goes_on)
    print_line(stderr, "tune runs a few steps of each setting; without effect: {}",
               join(unused, ", "));
  Words fixed = options.flags.without(without_effect);
  std::set<std::string> unplanned = without_effect;
  unplanned.erase("--rampup-batch-size");  // --batch-size must divide its batch sizes
  const Run run = prepared(options.flags.without(unplanned));
  // The runs that tune starts read the same config: they must not tune, too.
  const Words no_tuning = run.options.autotuning.empty() ? Words() : Words{"--autotuning", "off"};
  fixed.insert(fixed.end(), no_tuning.begin(), no_tuning.end());
  const zero::Search plans = plans_of(run, options);
  Search search(run, fixed, begin, options.time_s);
  if (options.find_max_batch)
    search.try_each(plans.fitting);
  else
    search.find_fastest(plans.fitting);
  if (search.signal() != 0) return 128 + search.signal();
  print(search, plans, run, options.find_max_batch);
  const Trial* best = search.best();
  if (!best)
    raise<Error>(
        "tune: every trial failed, see the table; try {} with a --time above {:g}, or train with "
        "the flags of a row to see its whole output",
        goes_on ? "zerograd tune" : "it", options.time_s);
  replace_text(options.out, config_with(best->plan.setting, run));
  if (best != search.fastest())
    print_line(
        stderr,
        "within the noise of the fastest the best is the one nearest to the run as given: {}",
        description_of(best->plan.setting, run));
  Words words = options.flags.without({"--autotuning"});
  const Words flags = tuned_flags(best->plan.setting, run);
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), no_tuning.begin(), no_tuning.end());
  print_line(stdout, "best zerograd train {}\nwrote {}", shell_line(words), options.out);
  std::fflush(stdout);
  return goes_on ? train(words) : 0;
}

}  // namespace zg::tools
