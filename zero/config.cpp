#include "zerograd/zero/config.h"

#include <cmath>
#include <string>

#include "zerograd/runtime/error.h"

namespace zg::zero {
namespace {

void check_config(bool within, const char* field, double value, const char* expected) {
  if (!within)
    throw ConfigError(std::string("config: ") + field + " is " + std::to_string(value) +
                      "; expected " + expected);
}

}  // namespace

void validate(const Config& config) {
  if (config.stage < 0 || config.stage > 3)
    throw ConfigError("config: stage is " + std::to_string(config.stage) +
                      "; expected 0, 1, 2 or 3");
  if (config.reduce_at_boundary && config.stage > 1)
    throw ConfigError("config: reduce_at_boundary keeps whole gradients, stage is " +
                      std::to_string(config.stage) + "; expected stage 0 or 1");
  const auto positive = [](const char* field, int64_t value) {
    if (value < 1)
      throw ConfigError(std::string("config: ") + field + " is " + std::to_string(value) +
                        "; expected 1 or more");
  };
  positive("reduce_bucket_size", config.reduce_bucket_size);
  positive("allgather_bucket_size", config.allgather_bucket_size);
  if (config.prefetch_bucket_size < 0 || config.param_persistence_threshold < 0)
    throw ConfigError("config: prefetch_bucket_size and param_persistence_threshold are " +
                      std::to_string(config.prefetch_bucket_size) + " and " +
                      std::to_string(config.param_persistence_threshold) + "; expected 0 or more");
  if (config.compute != DType::f32 && config.compute != DType::bf16 && config.compute != DType::f16)
    throw ConfigError(std::string("config: compute is ") + name_of(config.compute) +
                      "; expected f32, bf16 or f16");
  const auto f32_or_bf16 = [](const char* field, DType dtype) {
    if (dtype != DType::f32 && dtype != DType::bf16)
      throw ConfigError(std::string("config: ") + field + " is " + name_of(dtype) +
                        "; expected f32 or bf16");
  };
  f32_or_bf16("grad_accum", config.grad_accum);
  f32_or_bf16("load", config.load);
  f32_or_bf16("optimizer", config.optimizer);
  if (config.optimizer == DType::bf16 && config.compute != DType::bf16)
    throw ConfigError(std::string("config: optimizer is bf16, compute is ") +
                      name_of(config.compute) + "; expected bf16 for both, or optimizer f32");
  validate(config.loss_scaling);
  const OffloadOptions& offload = config.offload;
  for (const auto& [field, space] :
       {std::pair("parameter", offload.parameter), std::pair("gradient", offload.gradient),
        std::pair("optimizer", offload.optimizer), std::pair("activation", offload.activation)})
    if (space == Space::pinned)
      throw Unsupported(std::string("config: offload.") + field + " is " + name_of(space) +
                        "; expected device, host or file");
  check_config(offload.sub_group_size >= 1, "offload.sub_group_size",
               static_cast<double>(offload.sub_group_size), "1 or more");
  check_config(offload.optimizer_ratio >= 0.0 && offload.optimizer_ratio <= 1.0,
               "offload.optimizer_ratio", offload.optimizer_ratio, "a number in [0, 1]");
  check_config(offload.parameters_on_host >= 0, "offload.parameters_on_host",
               static_cast<double>(offload.parameters_on_host), "0 or more");
  check_config(offload.parameter_buffer >= 1, "offload.parameter_buffer",
               static_cast<double>(offload.parameter_buffer), "1 or more");
  if (offload.parameter != Space::device && config.stage != 3)
    throw ConfigError(
        "config: offload.parameter needs stage 3, where values are shards between "
        "their uses; got stage " +
        std::to_string(config.stage));
  const AdamOptions& adam = config.adam;
  check_config(adam.beta1 >= 0.0f && adam.beta1 < 1.0f, "adam.beta1", adam.beta1,
               "a number in [0, 1)");
  check_config(adam.beta2 >= 0.0f && adam.beta2 < 1.0f, "adam.beta2", adam.beta2,
               "a number in [0, 1)");
  if (adam.stochastic_rounding && config.optimizer != DType::bf16)
    throw ConfigError(std::string("config: adam.stochastic_rounding is on, optimizer is ") +
                      name_of(config.optimizer) +
                      "; expected bf16: nothing is lost between f32 masters, whose copies are made "
                      "anew by every step; try --precision fsdp-memory, which keeps no masters");
  const auto from_zero = [](float x) { return std::isfinite(x) && x >= 0.0f; };
  check_config(from_zero(adam.epsilon), "adam.epsilon", adam.epsilon, "a finite number from 0");
  check_config(from_zero(adam.weight_decay), "adam.weight_decay", adam.weight_decay,
               "a finite number from 0");
  check_config(from_zero(config.clip_norm), "clip_norm", config.clip_norm,
               "a finite number from 0, where 0 means no clipping");
}

// --- Precision ---

namespace {

constexpr const char* preset_names[] = {"deepspeed", "fsdp-mixed", "fsdp-memory"};

constexpr Precision presets[] = {
    {.load = DType::bf16,
     .mixed = DType::bf16,
     .local = DType::f32,
     .compute = DType::bf16,
     .optimizer = DType::f32},
    {.load = DType::bf16,
     .mixed = DType::bf16,
     .local = DType::f32,
     .compute = DType::bf16,
     .optimizer = DType::f32},
    {.load = DType::bf16,
     .mixed = {},
     .local = DType::bf16,
     .compute = DType::bf16,
     .optimizer = DType::bf16},
};

}  // namespace

const char* name_of(PrecisionPreset preset) { return preset_names[static_cast<size_t>(preset)]; }

PrecisionPreset precision_preset(const std::string& name) {
  for (size_t i = 0; i < std::size(preset_names); ++i)
    if (name == preset_names[i]) return static_cast<PrecisionPreset>(i);
  throw ConfigError("precision: no '" + name +
                    "'; expected one of deepspeed, fsdp-mixed, fsdp-memory");
}

Precision precision_of(PrecisionPreset preset) { return presets[static_cast<size_t>(preset)]; }

Precision precision_of(const Config& config) {
  const bool mixed = config.compute != config.optimizer;
  return {.load = config.load,
          .mixed = mixed ? std::optional(config.compute) : std::nullopt,
          .local = config.optimizer,
          .compute = config.compute,
          .optimizer = config.optimizer};
}

Config with_precision(Config config, const Precision& precision) {
  if (precision.local != precision.optimizer)
    throw ConfigError(std::string("precision: local is ") + name_of(precision.local) +
                      ", optimizer is " + name_of(precision.optimizer) +
                      "; expected the same: masters and moments are kept alike");
  const DType computed = precision.mixed.value_or(precision.local);
  if (precision.compute != computed)
    throw ConfigError(std::string("precision: compute is ") + name_of(precision.compute) +
                      "; expected " + name_of(computed) + ", as " +
                      (precision.mixed ? "mixed" : "local without mixed") + " says");
  config.load = precision.load;
  config.compute = precision.compute;
  config.optimizer = precision.optimizer;
  config.grad_accum = precision.optimizer;
  validate(config);
  return config;
}

}  // namespace zg::zero
