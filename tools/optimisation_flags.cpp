#include "tools/optimisation_flags.h"

#include "runtime/error.h"
#include "tools/flags.h"
#include "zero/precision.h"

namespace zg::tools {
namespace {

constexpr int64_t deepspeed_warmup_steps = 1000;  // its warmup_num_steps where a config has none

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

Flag precision_flag(OptimisationOptions& optimisation) {
  return {
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
      number_flag({"--weight-decay"}, engine.adam.weight_decay, not_negative,
                  "AdamW's, on matrices of linear layers"),
      betas_flag(engine.adam),
      number_flag({"--clip"}, engine.clip_norm, not_negative,
                  "largest gradient norm; 0: no clipping"),
      precision_flag(options.optimisation),
      initial_scale_flag(engine.loss_scaling),
      switch_flag({"--activation-checkpoint"}, options.activation_checkpoint,
                  "keep each block's input only and compute the rest again"),
      text_flag({"--init"}, "F", options.initial_weights,
                "weights from a safetensors file or a checkpoint"),
      text_flag({"--from-hf"}, "DIR", options.from_hf,
                "a GPT-2 of Hugging Face's: config.json says the model, model.safetensors\n"
                "has its weights; --block-size may take fewer positions, --data has its\n"
                "tokens (PATH.bin)"),
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

void settle_schedule(TrainOptions& options) {
  const Given& given = options.given;
  const OptimisationOptions& optimisation = options.optimisation;
  zero::ScheduleOptions& schedule = options.optimisation.schedule;
  const std::string kind = name_of(schedule.kind);
  const bool deepspeed = zero::is_deepspeed_warmup(schedule.kind);
  if (schedule.kind == zero::ScheduleKind::none && schedule.warmup_num_steps > 0)
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
