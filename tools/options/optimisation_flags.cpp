#include "tools/options/train_flags.h"

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"

namespace zg::tools {

void resolve_precision(TrainOptions& options) {
  if (!options.given.count("--precision")) return;
  OptimisationOptions& optimisation = options.optimisation;
  zero::Config& engine = optimisation.engine;
  const DType sums = engine.grad_accum;
  engine = zero::with_precision(
      engine, optimisation.preset.empty()
                  ? zero::precision_of(zero::Config{.compute = engine.compute})
                  : zero::precision_of(zero::precision_preset(optimisation.preset)));
  if (options.given.count("--grad-accum-dtype")) engine.grad_accum = sums;
}

namespace {

constexpr int64_t deepspeed_warmup_steps = 1000;  // DeepSpeed's default of warmup_num_steps

// Selects AnnealingLR if one of its flags is given. These flags have no meaning for other
// schedules.
void resolve_annealing(TrainOptions& options) {
  const Given& given = options.given;
  zero::ScheduleOptions& schedule = options.optimisation.schedule;
  for (const char* flag : annealing_flags) {
    if (!given.count(flag)) continue;
    if (given.count("--schedule"))
      throw ConfigError(std::string(flag) + ": expected one of --schedule and " + flag +
                        ", got both");
    schedule.kind = zero::ScheduleKind::annealing;
  }
  const bool anneals = schedule.kind == zero::ScheduleKind::annealing;
  if (given.count("--min-lr") && !anneals && schedule.kind != zero::ScheduleKind::cosine)
    throw ConfigError("--min-lr: expected a schedule that decreases to it, got --schedule " +
                      std::string(zero::name_of(schedule.kind)) +
                      "; try --lr-decay-style cosine, or --schedule cosine");
  if (!anneals) return;
  if (given.count("--warmup-steps"))
    throw ConfigError(
        "--warmup-steps: expected --lr-warmup-samples with a rate that goes by samples, got steps");
  if (schedule.min_rate > schedule.rate)
    throw ConfigError(fmt::format("--min-lr: expected at most --lr {:.6g}, got {:.6g}",
                                  schedule.rate, schedule.min_rate));
  zero::AnnealingOptions& annealing = schedule.annealing;
  if (annealing.lr_decay_style == zero::DecayStyle::constant) {
    for (const char* flag : {"--lr-decay-samples", "--min-lr"})
      if (given.count(flag))
        throw ConfigError(std::string(flag) +
                          ": expected --lr-decay-style linear or cosine with it, got constant");
    return;
  }
  if (annealing.lr_decay_samples == 0) annealing.lr_decay_samples = options.train_samples;
  if (annealing.lr_decay_samples == 0)
    throw ConfigError(
        "--lr-decay-samples: expected where the rate is lowest, or --train-samples where the run "
        "ends, got neither; try --lr-decay-style constant");
  if (annealing.lr_warmup_samples >= annealing.lr_decay_samples)
    throw ConfigError(
        fmt::format("--lr-warmup-samples: expected less than the {} samples of "
                    "--lr-decay-samples or --train-samples, got {}",
                    annealing.lr_decay_samples, annealing.lr_warmup_samples));
}

}  // namespace

void resolve_schedule(TrainOptions& options) {
  resolve_annealing(options);
  const Given& given = options.given;
  const OptimisationOptions& optimisation = options.optimisation;
  zero::ScheduleOptions& schedule = options.optimisation.schedule;
  const std::string kind = name_of(schedule.kind);
  const bool deepspeed = zero::is_deepspeed_warmup(schedule.kind);
  // LRRangeTest and OneCycle have a warmup of their own, which no flag sets.
  const bool warms_up = schedule.kind != zero::ScheduleKind::none &&
                        schedule.kind != zero::ScheduleKind::lr_range_test &&
                        schedule.kind != zero::ScheduleKind::one_cycle;
  const bool asks = schedule.kind == zero::ScheduleKind::none || given.count("--warmup-steps");
  if (!warms_up && asks && schedule.warmup_num_steps > 0)
    throw ConfigError("--warmup-steps: expected a --schedule that warms up, got --schedule " +
                      kind + "; try --schedule WarmupLR");
  if (deepspeed && schedule.warmup_num_steps == 0) {
    if (given.count("--warmup-steps"))
      throw ConfigError("--warmup-steps: expected 1 or more with --schedule " + kind + ", got 0");
    schedule.warmup_num_steps = deepspeed_warmup_steps;
  }
  const int power = optimisation.engine.loss_scaling.initial_scale_power;
  if (given.count("--initial-scale-power") && optimisation.engine.compute != DType::f16 &&
      power != zero::LossScaleOptions{}.initial_scale_power)
    throw ConfigError("--initial-scale-power: only the loss of f16 is scaled; expected " +
                      std::string("--precision f16, got --precision ") + optimisation.precision());
}

}  // namespace zg::tools
