#include "zerograd/zero/precision.h"

#include "zerograd/runtime/error.h"

namespace zg::zero {
namespace {

constexpr const char* names[] = {"deepspeed", "fsdp-mixed", "fsdp-memory"};

constexpr DType f32 = DType::f32, bf16 = DType::bf16;

constexpr Precision presets[] = {
    {.load = bf16, .mixed = bf16, .local = f32, .compute = bf16, .optimizer = f32},
    {.load = bf16, .mixed = bf16, .local = f32, .compute = bf16, .optimizer = f32},
    {.load = bf16, .mixed = {}, .local = bf16, .compute = bf16, .optimizer = bf16},
};

}  // namespace

const char* name_of(PrecisionPreset preset) { return names[static_cast<size_t>(preset)]; }

PrecisionPreset precision_preset(const std::string& name) {
  for (size_t i = 0; i < std::size(names); ++i)
    if (name == names[i]) return static_cast<PrecisionPreset>(i);
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
