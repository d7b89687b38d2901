#include "tools/options/run_checks.h"

#include <csignal>
#include <filesystem>

#include "tools/run/data_file.h"
#include "tools/run/setup.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using models::Split;

void check_conversation_flags(const Given& given, const std::string& source) {
  refuse_both(given, "--val-data", "--val-fraction");
  if (is_conversations(source)) return;
  refuse_flags(given, {"--val-data", "--chat-format", "--pack"},
               fmt::format("expected conversations, --data PATH.jsonl, got {}; leave the flag out",
                           source.empty() ? "no data" : source));
}

void check_split_flags(const Given& given, const std::string& source, int64_t score_samples,
                       const models::Dataset& dataset) {
  check_conversation_flags(given, source);
  const bool asks = dataset.question_length() > 0, indexed = !indexed_prefix(source).empty();
  refuse_both(given, "--split", "--val-fraction");
  if (given.count("--val-fraction") && indexed)
    throw ConfigError(
        "--val-fraction: expected data PATH.txt or llm.c's PATH.bin, got the documents of " +
        source + ", which are not divided; try --split 9,1,0");
  if (given.count("--split") && !indexed)
    throw ConfigError("--split: expected data PREFIX with PREFIX.bin and PREFIX.idx, got " +
                      source + (asks ? "; leave the flag out" : "; try --val-fraction"));
  if (given.count("--val-fraction") && asks)
    throw ConfigError("--val-fraction: expected data PATH.txt or PATH.bin, got " + source +
                      ", which has a validation split of its own; leave the flag out");
  if (given.count("--score-samples") && score_samples > 0 && !asks)
    throw ConfigError("--score-samples: expected data sort or adder, got " + source +
                      ", which has no answers to score; leave the flag out");
}

// A step before the resumed one is accepted, so that a run can be restarted with the same command
// line.
void check_step(const char* flag, int64_t step, int64_t end) {
  if (step >= end)
    throw ConfigError(std::string(flag) + ": expected a step below the run's end, " +
                      std::to_string(end) + ", got " + std::to_string(step));
}

void check_injection_step(const TrainOptions& options, int64_t step, int64_t end) {
  check_step("--inject step", step, end);
  if (options.injection.phase != FaultInjection::Phase::save) return;
  const bool due = options.save_interval > 0 && (step + 1) % options.save_interval == 0;
  if (options.save.empty() || (!due && step + 1 != end))
    throw ConfigError("--inject: expected a step that saves for phase=save, got " +
                      std::to_string(step) +
                      "; try --save DIR, and step=" + std::to_string(end - 1) + ", the last");
}

}  // namespace

void check_data_flags(const TrainOptions& options, const models::Dataset& dataset) {
  const std::string& source = options.data.source;
  check_split_flags(options.given, source, options.score_samples, dataset);
  if (options.data.order == models::Order::sequential && dataset.question_length() > 0)
    throw ConfigError("--order: expected data PATH.txt or PATH.bin, got " + source +
                      ", whose samples are drawn at random; leave the flag out");
  if (options.sample_interval > 0 && !dataset.is_text())
    throw ConfigError("--sample-interval: expected data PATH.txt, got " + source);
  if (options.eval_interval > 0 && dataset.epoch_samples(Split::validation) == 0)
    throw ConfigError(!options.data.validation_source.empty()
                          ? fmt::format("--val-data: no conversation of {} has a target in its "
                                        "first {} tokens; try a larger --block-size",
                                        options.data.validation_source, dataset.block_size() + 1)
                      : is_conversations(source)
                          ? "--eval-interval: expected conversations to validate on, got none; try "
                            "a larger --val-fraction or --val-data PATH.jsonl"
                      : indexed_prefix(source).empty()
                          ? "--eval-interval: expected a --val-fraction above 0, got 0"
                          : "--eval-interval: expected a --split with documents to validate on, "
                            "got none");
}

void check_data_flags(const EvalOptions& options, const std::string& source,
                      const models::Dataset& dataset) {
  check_split_flags(options.train.given, source, options.train.score_samples, dataset);
}

void check_step_flags(const TrainOptions& options, const std::string& resumed, int64_t first,
                      int64_t end) {
  if (end < first)
    throw ConfigError("--steps: " + resumed + " is already at step " + std::to_string(first) +
                      ", got " + std::to_string(end) +
                      "; --steps counts from step 0, also after --resume");
  if (options.only_planned) return;
  if (options.dump_gradients_step)
    check_step("--dump-gradients", *options.dump_gradients_step, end);
  if (options.trace_steps) check_step("--trace-steps", options.trace_steps->first, end);
  if (options.injection.fault != FaultInjection::Fault::none)
    for (int64_t step : options.injection.steps) check_injection_step(options, step, end);
}

void check_optimizer_flags(const Given& given, const zero::UpdateOptions& update) {
  const OptimizerRule rule = update.rule;
  const auto refuse = [&](const char* flag, const char* expected) {
    if (given.count(flag))
      throw ConfigError(fmt::format("{}: the optimizer is {}; expected {}; leave the flag out",
                                    flag, zero::optimizer_name(update), expected));
  };
  if (rule != OptimizerRule::sgd)
    for (const char* flag : {"--momentum", "--nesterov"}) refuse(flag, "sgd");
  const bool is_adafactor = rule == OptimizerRule::adafactor;
  if (rule == OptimizerRule::sgd || is_adafactor)
    for (const char* flag : {"--betas", "--adam-beta1", "--adam-beta2"})
      refuse(flag, "adamw, adam, lion or muon, which have betas");
  const bool is_muon = rule == OptimizerRule::muon;
  if (rule != OptimizerRule::adam && !is_muon)
    refuse("--adam-eps", "adamw, adam or muon, which have an epsilon");
  if (!is_muon)
    for (const char* flag :
         {"--muon-momentum", "--muon-nesterov", "--muon-rate", "--muon-adam-rate"})
      refuse(flag, "muon");
  if (!is_adafactor)
    for (const char* flag :
         {"--adafactor-beta2-decay", "--adafactor-eps1", "--adafactor-eps2", "--adafactor-clip"})
      refuse(flag, "adafactor");
}

void check_model_flags(const Given& given, const std::string& checkpoint) {
  for (const char* flag : {"--model-type", "--n-head"})
    if (given.count(flag) && settings_in(checkpoint))
      throw ConfigError(std::string(flag) + ": " + checkpoint +
                        " says itself what its model is; leave the flag out");
}

bool kill_switch_exists(const std::string& kill_switch_path) {
  std::error_code ignored;  // if the folder cannot be read, the file counts as missing
  return !kill_switch_path.empty() && std::filesystem::exists(kill_switch_path, ignored);
}

void refuse_kill_switch(const std::string& kill_switch_path) {
  if (kill_switch_exists(kill_switch_path))
    throw ConfigError("--kill-switch-path: expected no file of this name before the run, got " +
                      kill_switch_path + "; try removing it");
}

std::string name_of_signal(int signal) {
  if (signal == SIGPIPE) return "SIGPIPE (nobody reads the output)";
  return signal == SIGINT ? "SIGINT" : signal == SIGHUP ? "SIGHUP" : "SIGTERM";
}

}  // namespace zg::tools
