#include "tools/options/optimisation_flags.h"

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/zero/config.h"

namespace zg::tools {
namespace {

constexpr int64_t deepspeed_warmup_steps = 1000;  // DeepSpeed's default of warmup_num_steps

Flag betas_flag(zero::AdamOptions& adam) {
  return {{"--betas"},
          "B1,B2",
          "AdamW's decay rates [0.9,0.95]",
          [&adam](const std::string& name, const std::string& value) {
            const size_t comma = value.find(',');
            if (comma == std::string::npos)
              throw ConfigError(name + ": expected two numbers like 0.9,0.95, got '" + value + "'");
            adam.beta1 = static_cast<float>(parse_number(name, value.substr(0, comma), below_one));
            adam.beta2 = static_cast<float>(parse_number(name, value.substr(comma + 1), below_one));
          }};
}

// One beta; Megatron has a flag for each.
Flag beta_flag(const char* name, float& beta) {
  return {{name}, "X", "", [&beta](const std::string& given, const std::string& value) {
            beta = static_cast<float>(parse_number(given, value, below_one));
          }};
}

Flag precision_flag(OptimisationOptions& optimisation) {
  Flag flag = {
      {"--precision"},
      "P",
      "of values, activations and gradients: f32 or 32; bf16, or f16 or 16\n"
      "with a loss scale, beside f32 masters; deepspeed, fsdp-mixed or\n"
      "fsdp-memory, whose dtypes plan --explain prints [f32]",
      [&optimisation](const std::string& name, const std::string& value) {
        static const std::vector<std::string> known = {
            "f32", "32", "bf16", "f16", "16", "deepspeed", "fsdp-mixed", "fsdp-memory"};
        constexpr DType computes[] = {DType::f32, DType::f32, DType::bf16, DType::f16, DType::f16};
        const size_t choice = parse_choice(name, value, known);
        const bool preset = choice >= std::size(computes);
        optimisation.preset = preset ? value : "";
        if (!preset) optimisation.engine.compute = computes[choice];
      }};
  flag.with_value = {{"--bf16", "bf16"}, {"--fp16", "f16"}};
  return flag;
}

Flag initial_scale_flag(zero::LossScaleOptions& scaling) {
  return {{"--initial-scale-power"},
          "N",
          "f16: the loss is scaled by 2^N at first [16]",
          [&scaling](const std::string& name, const std::string& value) {
            // 2^127 is the largest power that an f32 holds.
            scaling.initial_scale_power = static_cast<int>(parse_integer(name, value, 0, 127));
          }};
}

Flag schedule_flag(zero::ScheduleOptions& schedule) {
  using Kind = zero::ScheduleKind;
  std::vector<std::string> names;
  for (Kind kind :
       {Kind::none, Kind::warmup_lr, Kind::warmup_decay_lr, Kind::warmup_cosine_lr, Kind::cosine})
    names.push_back(name_of(kind));
  Flag flag = choice_flag({"--schedule"}, schedule.kind, names,
                          "the learning rate over the steps taken: none, DeepSpeed's\n"
                          "WarmupLR, WarmupDecayLR or WarmupCosineLR, or nanoGPT's cosine");
  flag.value = "S";  // the names are too long for the left column
  return flag;
}

}  // namespace

std::vector<Flag> optimisation_flags(TrainOptions& options) {
  zero::Config& engine = options.optimisation.engine;
  zero::ScheduleOptions& schedule = options.optimisation.schedule;
  return {
      number_flag({"--lr", "--learning-rate"}, schedule.rate, positive,
                  "learning rate, the highest where a schedule moves it"),
      schedule_flag(schedule),
      integer_flag({"--warmup-steps", "--num-warmup-steps"}, schedule.warmup_num_steps,
                   "until the highest rate", {0, "DeepSpeed's 1000, cosine 0"}),
      choice_flag({"--lr-decay-style"}, schedule.annealing.lr_decay_style,
                  {"linear", "cosine", "constant"},
                  "the rate by samples, as Megatron: linearly up from 0 in\n"
                  "--lr-warmup-samples, then down to --min-lr at --lr-decay-samples"),
      integer_flag({"--lr-warmup-samples"}, schedule.annealing.lr_warmup_samples,
                   "until the highest rate"),
      integer_flag({"--lr-decay-samples"}, schedule.annealing.lr_decay_samples,
                   "until the lowest, counted from the first", {1, "--train-samples"}),
      number_flag({"--min-lr"}, schedule.min_rate, not_negative,
                  "the lowest rate, of --lr-decay-style and of --schedule cosine"),
      number_flag({"--weight-decay"}, engine.adam.weight_decay, not_negative,
                  "AdamW's, on matrices of linear layers"),
      betas_flag(engine.adam),
      beta_flag("--adam-beta1", engine.adam.beta1),
      beta_flag("--adam-beta2", engine.adam.beta2),
      number_flag({"--adam-eps"}, engine.adam.epsilon, positive,
                  "what AdamW adds to the root of its second moment"),
      number_flag({"--clip", "--clip-grad"}, engine.clip_norm, not_negative,
                  "largest gradient norm; 0: no clipping"),
      precision_flag(options.optimisation),
      initial_scale_flag(engine.loss_scaling),
      switch_flag({"--activation-checkpoint", "--checkpoint-activations",
                   "--deepspeed-activation-checkpointing"},
                  options.activation_checkpoint,
                  "keep each block's input only and compute the rest again"),
      text_flag({"--init"}, "F", options.initial_weights,
                "weights from a safetensors file or a checkpoint"),
      text_flag({"--from-hf"}, "DIR", options.from_hf,
                "a GPT-2 or BLOOM of Hugging Face's: config.json says the model,\n"
                "model.safetensors has its weights; --block-size may take fewer positions,\n"
                "a text is read by its tokenizer"),
      seed_flag(options.seed, "of initial weights, data and dropout"),
  };
}

void settle_precision(TrainOptions& options) {
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

// Any flag of AnnealingLR selects it; these flags have no meaning for other schedules.
void settle_annealing(TrainOptions& options) {
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
    throw ConfigError("--min-lr: expected a schedule that comes down to it, got --schedule " +
                      std::string(zero::name_of(schedule.kind)) +
                      "; try --lr-decay-style cosine, or --schedule cosine");
  if (!anneals) return;
  if (given.count("--warmup-steps"))
    throw ConfigError(
        "--warmup-steps: expected --lr-warmup-samples with a rate that goes by samples, got steps");
  if (schedule.min_rate > schedule.rate)
    throw ConfigError(
        text("--min-lr: expected at most --lr %g, got %g", schedule.rate, schedule.min_rate));
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
        text("--lr-warmup-samples: expected less than the %lld samples of "
             "--lr-decay-samples or --train-samples, got %lld",
             (long long)annealing.lr_decay_samples, (long long)annealing.lr_warmup_samples));
}

}  // namespace

void settle_schedule(TrainOptions& options) {
  settle_annealing(options);
  const Given& given = options.given;
  const OptimisationOptions& optimisation = options.optimisation;
  zero::ScheduleOptions& schedule = options.optimisation.schedule;
  const std::string kind = name_of(schedule.kind);
  const bool deepspeed = zero::is_deepspeed_warmup(schedule.kind);
  // The last two have their own warmup, which no flag sets.
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
