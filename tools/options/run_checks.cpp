#include "tools/options/flags.h"

#include <filesystem>
#include <utility>

#include "tools/run/data_file.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

bool is_import(const TrainOptions& options) {
  const Given& given = options.given;
  return !options.from_hf.empty() && given.count("--steps") && options.steps == 0 &&
         !given.count("--epochs") && !given.count("--train-samples") &&
         !given.count("--limit-train-batches");
}

namespace {

constexpr std::pair<const char*, const char*> exclusive_flags[] = {
    {"--epochs", "--steps"},         {"--train-samples", "--steps"},
    {"--train-samples", "--epochs"}, {"--train-samples", "--limit-train-batches"},
    {"--untied", "--tied"},          {"--strategy", "--zero-stage"}};

void check_axes(const TrainOptions& options) {
  const Axes& axes = options.axes;
  const int64_t model_ranks = axes.model_ranks();
  if (options.ranks % model_ranks != 0)
    raise<ConfigError>(
        "--ranks: expected a multiple of the {} that --tensor-parallel {} and --pipeline-parallel "
        "{} take, got {}; try {} {}",
        model_ranks, axes.tensor, axes.pipeline, options.ranks,
        options.process ? "a number of processes of" : "--ranks",
        (options.ranks / model_ranks + 1) * model_ranks);
  if (axes.sequence_parallel && axes.tensor == 1)
    throw ConfigError(
        "--sequence-parallel: it needs ranks that share layers; expected --tensor-parallel 2 or "
        "more with it, got 1");
}

}  // namespace

void check_train(const TrainOptions& options) {
  check_model(options);
  check_device(options.given);
  check_axes(options);
  for (const auto& [flag, other] : exclusive_flags) refuse_both(options.given, flag, other);
  const auto given = [&](const char* flag) { return options.has(flag); };
  const bool resumes = !options.resume.empty() && options.resume != "auto";
  const bool has_folder = !options.from_hf.empty(), has_init = !options.initial_weights.empty();
  const FaultInjection& injection = options.injection;
  const std::pair<bool, std::string> refusals[] = {
      {given("--trace-steps") && !given("--trace"),
       "--trace-steps: expected --trace F, which they are written to, got none"},
      {given("--compare-metrics") && !given("--report"),
       "--compare-metrics: expected --report F, which draws them, got none"},
      {given("--audit-ops") && !given("--audit"),
       "--audit-ops: expected --audit F, which they are written to, got none"},
      {given("--audit-interval") && !given("--audit"),
       "--audit-interval: expected --audit F, which the hashes are written to, got none"},
      {given("--trace") && injection.fault == FaultInjection::Fault::flip,
       "--inject: expected fault=flip without --trace, which it uses itself, got both"},
      {injection.fault != FaultInjection::Fault::none && injection.rank >= options.ranks,
       fmt::format("--inject: expected a rank below {}, got {}", options.ranks, injection.rank)},
      {injection.fault == FaultInjection::Fault::mismatch && options.ranks == 1,
       "--inject: expected --ranks of 2 or more for fault=mismatch, got 1"},
      {given("--steps") && given("--limit-train-batches"),
       "--limit-train-batches: it limits an epoch; expected --epochs with it, or neither --epochs "
       "nor --steps, got --steps"},
      // A run with a config is not checked, even if the flag is given. `given` does not distinguish
      // the flag from the config's key checkpoint.writer.decoupled, which is allowed in a run that
      // saves only once.
      {given("--async-save") && options.config.path.empty() && options.save_interval == 0,
       "--async-save: expected --save-interval N with it, got none: only checkpoints before the "
       "last one can be written while training continues"},
      {options.save_top_k == 0,
       "--save-top-k: expected a number of 1 or more, or -1 for all, got 0"},
      {has_folder && has_init, "--from-hf: expected one of --init and --from-hf, got both"},
      {resumes && has_folder, "--from-hf: expected one of --from-hf and --resume, got both"},
      {resumes && has_init, "--init: expected one of --init and --resume, got both"}};
  for (const auto& [holds, message] : refusals)
    if (holds) throw ConfigError(message);
  if (!options.matmul_algorithms.empty() && options.device_flags.type != Device::Type::cuda)
    raise<Unsupported>(
        "--matmul-algorithms: the algorithms are cuBLASLt's; expected --device cuda with it, got "
        "--device {}; try without it",
        options.device_flags.type);
}

void resolve_offload(TrainOptions& options) {
  zero::Config& engine = options.engine;
  zero::OffloadOptions& places = engine.offload;
  const auto move = [&](const char* flag, Space& space) {
    if (!options.has(flag)) space = Space::host;
  };
  if (options.offload.cpu_offload) {
    move("--offload-optimizer", places.optimizer);
    move("--offload-gradients", places.gradient);
    if (engine.stage == 3) move("--offload-param", places.parameter);
  }
  if (options.offload.cpu_checkpointing && options.activation_checkpoint)
    move("--offload-activations", places.activation);
  if (uses_disk(places) && options.offload.nvme_path.empty())
    throw ConfigError(
        "--nvme-path: expected a directory on a disk for data offloaded to nvme, got none; try "
        "--nvme-path DIR, or none or host for --offload-param, --offload-optimizer, "
        "--offload-gradients and --offload-activations (a resumed run begins with the values of "
        "its checkpoint)");
  options.device_flags.device.swap.directory = options.offload.nvme_path;
  if (places.parameter != Space::device && engine.stage != 3)
    throw ConfigError("--offload-param: expected --zero-stage 3 with it, got stage " +
                      std::to_string(engine.stage) +
                      ", where every rank needs whole values all the time");
}

namespace {

using models::Split;

void check_conversation_flags(const Given& given, const std::string& source) {
  refuse_both(given, "--val-data", "--val-fraction");
  if (is_conversations(source)) return;
  refuse_flags(given, {"--val-data", "--chat-format", "--pack"},
               fmt::format("expected conversations, --data PATH.jsonl, got {}; leave the flag out",
                           source.empty() ? "no data" : source));
}

// A step before the resumed one is accepted, so that a run can be restarted with the same command
// line.
void check_step(const char* flag, int64_t step, int64_t end) {
  if (step >= end)
    raise<ConfigError>("{}: expected a step below the run's end, {}, got {}", flag, end, step);
}

void check_injection_step(const TrainOptions& options, int64_t step, int64_t end) {
  check_step("--inject step", step, end);
  if (options.injection.phase != FaultInjection::Phase::save &&
      options.injection.kind != FaultInjection::Kind::checkpoint)
    return;
  const bool due = options.save_interval > 0 && (step + 1) % options.save_interval == 0;
  if (options.save.empty() || (!due && step + 1 != end))
    throw ConfigError("--inject: expected a step that saves for phase=save, got " +
                      std::to_string(step) +
                      "; try --save DIR, and step=" + std::to_string(end - 1) + ", the last");
}

}  // namespace

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
    raise<ConfigError>("--split: expected data PREFIX with PREFIX.bin and PREFIX.idx, got {}{}",
                       source, asks ? "; leave the flag out" : "; try --val-fraction");
  if (given.count("--val-fraction") && asks)
    throw ConfigError("--val-fraction: expected data PATH.txt or PATH.bin, got " + source +
                      ", which has a validation split of its own; leave the flag out");
  if (given.count("--score-samples") && score_samples > 0 && !asks)
    throw ConfigError("--score-samples: expected data sort or adder, got " + source +
                      ", which has no answers to score; leave the flag out");
}

void check_data_flags(const TrainOptions& options, const models::Dataset& dataset) {
  const std::string& source = options.data.source;
  check_split_flags(options.given, source, options.score_samples, dataset);
  if (options.data.order == models::Order::sequential && dataset.question_length() > 0)
    throw ConfigError("--order: expected data PATH.txt or PATH.bin, got " + source +
                      ", whose samples are drawn at random; leave the flag out");
  if (options.sample_interval > 0 && !dataset.is_text())
    raise<ConfigError>("--sample-interval: expected data PATH.txt, got {}", source);
  if (options.eval_interval > 0 && dataset.epoch_samples(Split::validation) == 0)
    throw ConfigError(
        !options.data.validation_source.empty()
            ? fmt::format("--val-data: no conversation of {} has a target in its first {} tokens; "
                          "try a larger --block-size",
                          options.data.validation_source, dataset.block_size() + 1)
        : is_conversations(source) ? "--eval-interval: expected conversations to validate on, got "
                                     "none; try a larger --val-fraction or --val-data PATH.jsonl"
        : indexed_prefix(source).empty()
            ? "--eval-interval: expected a --val-fraction above 0, got 0"
            : "--eval-interval: expected a --split with documents to validate on, got none");
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
  if (options.has("--audit-ops")) check_step("--audit-ops", options.audit.first_op_step, end);
  if (options.injection.fault != FaultInjection::Fault::none)
    for (int64_t step : options.injection.steps) check_injection_step(options, step, end);
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

}  // namespace zg::tools
