#include <cstring>

#include "tools/options/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

// The defaults of TRL's SFTTrainer, version 1.16. The settings of a checkpoint, a config and flags
// override them.
TrainOptions finetune_options() {
  TrainOptions options;
  options.finetunes = true;
  options.epochs = 3.0;
  options.schedule = {.kind = zero::ScheduleKind::hf_linear, .rate = 2e-5};
  options.engine.update.beta2 = 0.999f;
  options.engine.update.weight_decay = 0.0f;
  return options;
}

void resolve_precision(TrainOptions& options) {
  if (!options.has("--precision")) return;
  zero::Config& engine = options.engine;
  const DType grad_accum = engine.grad_accum;
  engine = zero::with_precision(
      engine, options.preset.empty() ? zero::precision_of(zero::Config{.compute = engine.compute})
                                     : zero::precision_of(zero::precision_preset(options.preset)));
  if (options.has("--grad-accum-dtype")) engine.grad_accum = grad_accum;
}

Flag lr_scheduler_flag(zero::ScheduleOptions& schedule) {
  std::vector<std::string> names;
  for (int kind = static_cast<int>(zero::ScheduleKind::hf_linear);
       kind <= static_cast<int>(zero::ScheduleKind::hf_warmup_stable_decay); ++kind)
    names.emplace_back(name_of(static_cast<zero::ScheduleKind>(kind)) + std::strlen("hf_"));
  return {{"--lr-scheduler-type"},
          "NAME",
          "the schedule, as in transformers: linear, cosine, cosine_with_restarts,\n"
          "polynomial, constant, constant_with_warmup, inverse_sqrt, warmup_stable_decay [" +
              std::string(zero::is_of_transformers(schedule.kind) ? "linear]" : "none]"),
          [&schedule, names](const std::string& flag, const std::string& value) {
            for (const char* other : {"cosine_with_min_lr", "cosine_warmup_with_min_lr",
                                      "reduce_lr_on_plateau", "greedy"})
              if (value == other)
                raise<Unsupported>(
                    "{}: {}: this version lacks it; try cosine, or --schedule cosine with "
                    "--min-lr",
                    flag, value);
            schedule.kind = zero::schedule_kind("hf_" + names[parse_choice(flag, value, names)]);
          }};
}

namespace {

constexpr int64_t deepspeed_warmup_steps = 1000;  // DeepSpeed's default of warmup_num_steps

// Selects AnnealingLR if one of its flags is given. These flags have no meaning for other
// schedules.
void resolve_annealing(TrainOptions& options) {
  const Given& given = options.given;
  zero::ScheduleOptions& schedule = options.schedule;
  for (const char* flag : annealing_flags) {
    if (!given.count(flag)) continue;
    for (const char* other : {"--schedule", "--lr-scheduler-type"}) refuse_both(given, flag, other);
    schedule.kind = zero::ScheduleKind::annealing;
  }
  const bool anneals = schedule.kind == zero::ScheduleKind::annealing;
  if (given.count("--min-lr") && !anneals && schedule.kind != zero::ScheduleKind::cosine)
    throw ConfigError("--min-lr: expected a schedule that decreases to it, got --schedule " +
                      std::string(zero::name_of(schedule.kind)) +
                      "; try --lr-decay-style cosine, or --schedule cosine");
  if (anneals)
    refuse_flags(given, {"--warmup-steps", "--warmup-ratio"},
                 "expected --lr-warmup-samples, because this schedule counts samples, not steps");
  if ((anneals || given.count("--min-lr")) && schedule.min_rate > schedule.rate)
    raise<ConfigError>("--min-lr: expected at most --lr {:.6g}, got {:.6g}", schedule.rate,
                       schedule.min_rate);
  if (!anneals) return;
  zero::AnnealingOptions& annealing = schedule.annealing;
  if (annealing.lr_decay_style == zero::DecayStyle::constant)
    return refuse_flags(given, {"--lr-decay-samples", "--min-lr"},
                        "expected --lr-decay-style linear or cosine with it, got constant");
  if (annealing.lr_decay_samples == 0) annealing.lr_decay_samples = options.train_samples;
  if (annealing.lr_decay_samples == 0)
    throw ConfigError(
        "--lr-decay-samples: expected the samples after which the rate is lowest, or "
        "--train-samples, got neither; try --lr-decay-style constant");
  if (annealing.lr_warmup_samples >= annealing.lr_decay_samples)
    raise<ConfigError>(
        "--lr-warmup-samples: expected less than the {} samples of --lr-decay-samples or "
        "--train-samples, got {}",
        annealing.lr_decay_samples, annealing.lr_warmup_samples);
}

}  // namespace

void resolve_schedule(TrainOptions& options) {
  resolve_annealing(options);
  const Given& given = options.given;
  zero::ScheduleOptions& schedule = options.schedule;
  const std::string kind = name_of(schedule.kind);
  const bool deepspeed = zero::is_deepspeed_warmup(schedule.kind);
  refuse_both(given, "--lr-scheduler-type", "--schedule");
  refuse_both(given, "--warmup-ratio", "--warmup-steps");
  if (given.count("--lr-scheduler-kwargs") && !zero::is_of_transformers(schedule.kind))
    raise<ConfigError>(
        "--lr-scheduler-kwargs: expected --lr-scheduler-type with it, got --schedule {}", kind);
  const bool is_constant = schedule.kind == zero::ScheduleKind::hf_constant;
  // LRRangeTest and OneCycle have a warmup of their own, which no flag sets.
  const bool warms_up = schedule.kind != zero::ScheduleKind::none && !is_constant &&
                        schedule.kind != zero::ScheduleKind::lr_range_test &&
                        schedule.kind != zero::ScheduleKind::one_cycle;
  const bool in_steps = schedule.kind == zero::ScheduleKind::none || given.count("--warmup-steps");
  if (!warms_up && !is_constant &&
      ((in_steps && schedule.warmup_num_steps > 0) || options.warmup_ratio > 0.0))
    raise<ConfigError>(
        "{}: expected a --schedule that warms up, got --schedule {}; try --schedule WarmupLR",
        given.count("--warmup-ratio") ? "--warmup-ratio" : "--warmup-steps", kind);
  if (deepspeed && schedule.warmup_num_steps == 0 && options.warmup_ratio == 0.0) {
    if (given.count("--warmup-steps"))
      raise<ConfigError>("--warmup-steps: expected 1 or more with --schedule {}, got 0", kind);
    schedule.warmup_num_steps = deepspeed_warmup_steps;
  }
  const zero::Config& engine = options.engine;
  if (given.count("--initial-scale-power") && engine.compute != DType::f16 &&
      engine.loss_scaling.initial_scale_power != zero::LossScaleOptions{}.initial_scale_power)
    raise<ConfigError>(
        "--initial-scale-power: the loss is scaled only in f16; expected --precision f16, got "
        "--precision {}",
        options.precision());
}

bool keeps_optimizer_states(const zero::Config& engine) {
  return engine.compute != engine.optimizer || zero::moments_of(engine.update) > 0;
}

std::vector<std::string> flags_without_effect(const TrainOptions& options,
                                              const zero::Config& engine) {
  const bool no_disk = !uses_disk(engine.offload);
  const bool one_rank = options.ranks == 1, alone = options.data_axis() == 1;
  const bool gathers = engine.stage == 3;
  const std::string& source = options.data.source;
  const bool is_scored = options.eval_interval == 0 && (source == "sort" || source == "adder");
  const bool is_constant = options.schedule.kind == zero::ScheduleKind::hf_constant;
  constexpr const char *gathered = "parameters are gathered only at stage 3",
                       *no_exchange = "with one data rank no gradients are exchanged";
  const bool offloads = engine.offload.optimizer != Space::device;
  const bool keeps_states = keeps_optimizer_states(engine);
  const char* const no_offload =
      offloads ? "the optimizer has no state for each element, and the parameters are the masters"
               : "no optimizer states are offloaded";
  const bool by_adafactor = engine.update.rule == OptimizerRule::adafactor;
  const char* const no_shadow = !offloads || !keeps_states ? no_offload
                                : by_adafactor ? "adafactor updates parameters only after backward"
                                : engine.stage == 0 && !alone
                                    ? "at stage 0 several ranks add gradients only after backward"
                                    : nullptr;
  const char* const ahead =
      gathers ? "with --overlap-comm off nothing is gathered ahead" : gathered;
  const struct {
    const char* flag;
    bool has_none;
    const char* why;
  } rows[] = {
      {"--nvme-path", no_disk, "no state is offloaded to nvme"},
      {"--offload-optimizer", offloads && !keeps_states, no_offload},
      {"--offload-optimizer-ratio", !offloads || !keeps_states, no_offload},
      {"--speculation", no_shadow && engine.offload.speculation > 0, no_shadow},
      {"--prefetch-units", !gathers || !engine.overlap_comm, ahead},
      {"--prefetch-bucket-size", !gathers || !engine.overlap_comm, ahead},
      {"--param-persistence-threshold", !gathers, gathered},
      {"--comm-timeout", one_rank, "with one rank there is no other rank to wait for"},
      {"--reduce-bucket-size", alone, no_exchange},
      {"--nccl-reduce", alone, no_exchange},
      {"--warmup-steps", is_constant, "a constant rate has no warmup"},
      {"--warmup-ratio", is_constant, "a constant rate has no warmup"},
      {"--eval-batches", is_scored, "without --eval-interval sort and adder are only scored"},
      {"--schedule-pipeline", options.axes.pipeline == 1, "there is one pipeline stage"}};
  std::vector<std::string> lines;
  // A run with a config lists nothing, because its keys may be for other runs, too.
  for (const auto& [flag, has_none, why] : rows)
    if (has_none && options.has(flag) && options.config.path.empty())
      lines.push_back(fmt::format("{} has no effect: {}", flag, why));
  const bool in_memory =
      engine.offload.optimizer == Space::host && engine.offload.parameter != Space::file;
  if (!no_shadow && in_memory && engine.offload.speculation > 0 && options.has("--speculation") &&
      options.config.path.empty())
    lines.push_back(
        "--speculation costs time here: states on the host are in the memory in which the CPU "
        "updates them, so copies of them save no transfer");
  return lines;
}

}  // namespace zg::tools
