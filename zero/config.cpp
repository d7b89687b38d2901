#include "zerograd/zero/config.h"

#include <fnmatch.h>

#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

void check_config(bool within, const char* field, double value, const char* expected) {
  if (!within) raise<ConfigError>("config: {} is {:f}; expected {}", field, value, expected);
}

/// The parts between separators, at least one.
std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0, end = 0;
  do {
    end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  } while (end != std::string::npos);
  return parts;
}

/// Reads "rate=0.1", "decay=0" or "optimizer=adamw". Returns false for other text.
bool read_setting(ParameterGroup& group, std::string_view setting) {
  if (setting == "optimizer=adamw") return group.by_adam = true;
  const size_t equals = setting.find('=');
  float value = 0.0f;
  const char* const end = setting.data() + setting.size();
  const char* const begin = equals == std::string_view::npos ? end : setting.data() + equals + 1;
  const std::from_chars_result read = std::from_chars(begin, end, value);
  if (read.ec != std::errc() || read.ptr != end || !std::isfinite(value) || value < 0.0f)
    return false;
  const std::string_view key = setting.substr(0, equals);
  if (key == "rate")
    group.rate = value;
  else if (key == "decay")
    group.weight_decay = value;
  else
    return false;
  return true;
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(const std::string& text, const std::string& name) {
  const auto refuse = [&](const std::string& group) {
    raise<ConfigError>(
        "{}: got '{}'; expected PATTERN:rate=R,decay=D with numbers from 0, as in "
        "'*.bias:decay=0;transformer.wte.*:rate=0.1'",
        name, group);
  };
  std::vector<ParameterGroup> groups;
  if (text.empty()) return groups;
  for (const std::string& one : parts_of(text, ';')) {
    const size_t colon = one.rfind(':');
    if (colon == std::string::npos || colon == 0) refuse(one);
    ParameterGroup& group = groups.emplace_back(ParameterGroup{.pattern = one.substr(0, colon)});
    std::set<std::string> keys;
    for (const std::string& setting : parts_of(one.substr(colon + 1), ','))
      if (!keys.insert(setting.substr(0, setting.find('='))).second ||
          !read_setting(group, setting))
        refuse(one);
  }
  return groups;
}

std::string text_of(const std::vector<ParameterGroup>& groups) {
  std::vector<std::string> texts;
  for (const ParameterGroup& group : groups) {
    std::string text = fmt::format("{}:rate={}", group.pattern, group.rate);
    if (group.weight_decay) text += fmt::format(",decay={}", *group.weight_decay);
    if (group.by_adam) text += ",optimizer=adamw";
    texts.push_back(std::move(text));
  }
  return join(texts, ";");
}

const ParameterGroup* group_of(const UpdateOptions& options, const std::string& name) {
  for (const ParameterGroup& group : options.groups)
    if (fnmatch(group.pattern.c_str(), name.c_str(), 0) == 0) return &group;
  return nullptr;
}

UpdateNumbers numbers_of(const UpdateOptions& options, const Parameter& parameter) {
  const ParameterGroup* group = group_of(options, parameter.name);
  const float usual = parameter.decay ? options.weight_decay : 0.0f;
  if (!group) return {1.0f, usual};
  return {group->rate, group->weight_decay.value_or(usual)};
}

void validate(const Config& config) {
  if (config.stage < 0 || config.stage > 3)
    raise<ConfigError>("config: stage is {}; expected 0, 1, 2 or 3", config.stage);
  if (config.reduce_at_boundary && config.offload.speculation > 0)
    raise<ConfigError>(
        "config: offload.speculation is {}, and reduce_at_boundary adds the ranks' gradients after "
        "backward; expected 0, or reduce_at_boundary off",
        config.offload.speculation);
  if (config.reduce_at_boundary && config.stage > 1)
    raise<ConfigError>(
        "config: reduce_at_boundary keeps whole gradients, stage is {}; expected stage 0 or 1",
        config.stage);
  const auto positive = [](const char* field, int64_t value) {
    if (value < 1) raise<ConfigError>("config: {} is {}; expected 1 or more", field, value);
  };
  positive("reduce_bucket_size", config.reduce_bucket_size);
  positive("allgather_bucket_size", config.allgather_bucket_size);
  positive("prefetch_units", config.prefetch_units);
  if (config.prefetch_bucket_size < 0 || config.param_persistence_threshold < 0)
    raise<ConfigError>(
        "config: prefetch_bucket_size and param_persistence_threshold are {} and {}; "
        "expected 0 or more",
        config.prefetch_bucket_size, config.param_persistence_threshold);
  if (config.compute != DType::f32 && config.compute != DType::bf16 && config.compute != DType::f16)
    raise<ConfigError>("config: compute is {}; expected f32, bf16 or f16", config.compute);
  const auto f32_or_bf16 = [](const char* field, DType dtype) {
    if (dtype != DType::f32 && dtype != DType::bf16)
      raise<ConfigError>("config: {} is {}; expected f32 or bf16", field, dtype);
  };
  f32_or_bf16("grad_accum", config.grad_accum);
  f32_or_bf16("load", config.load);
  f32_or_bf16("optimizer", config.optimizer);
  if (config.optimizer == DType::bf16 && config.compute != DType::bf16)
    raise<ConfigError>(
        "config: optimizer is bf16, compute is {}; expected bf16 for both, or optimizer f32",
        config.compute);
  validate(config.loss_scaling);
  const OffloadOptions& offload = config.offload;
  for (const auto& [field, space] :
       {std::pair("parameter", offload.parameter), std::pair("gradient", offload.gradient),
        std::pair("optimizer", offload.optimizer), std::pair("activation", offload.activation)})
    if (space == Space::pinned)
      raise<Unsupported>("config: offload.{} is {}; expected device, host or file", field, space);
  check_config(offload.sub_group_size >= 1, "offload.sub_group_size",
               static_cast<double>(offload.sub_group_size), "1 or more");
  check_config(offload.optimizer_ratio >= 0.0 && offload.optimizer_ratio <= 1.0,
               "offload.optimizer_ratio", offload.optimizer_ratio, "a number in [0, 1]");
  check_config(offload.parameters_on_host >= 0, "offload.parameters_on_host",
               static_cast<double>(offload.parameters_on_host), "0 or more");
  check_config(offload.parameter_buffer >= 1, "offload.parameter_buffer",
               static_cast<double>(offload.parameter_buffer), "1 or more");
  check_config(offload.speculation >= 0, "offload.speculation",
               static_cast<double>(offload.speculation), "0 or more");
  if (offload.parameter != Space::device && config.stage != 3)
    raise<ConfigError>(
        "config: offload.parameter needs stage 3, where values are shards between "
        "their uses; got stage {}",
        config.stage);
  validate(config.update);
  if (config.update.stochastic_rounding && config.optimizer != DType::bf16)
    raise<ConfigError>(
        "config: update.stochastic_rounding is on, optimizer is {}; expected bf16: "
        "f32 masters lose nothing, and every step rounds their copies anew; try "
        "optimizer bf16 (--precision fsdp-memory), which keeps no masters",
        config.optimizer);
  check_config(std::isfinite(config.clip_norm) && config.clip_norm >= 0.0f, "clip_norm",
               config.clip_norm, "a finite number from 0, where 0 means no clipping");
}

bool rounds_at_use(const Config& config, int64_t ranks, Device::Type device) {
  return device == Device::Type::cpu && ranks == 1 && config.compute != config.optimizer &&
         config.offload.optimizer == Space::device && config.offload.parameter == Space::device;
}

// --- Precision ---

namespace {

constexpr const char* preset_names[] = {"deepspeed", "fsdp-mixed", "fsdp-memory"};

constexpr Precision mixed = {.load = DType::bf16,
                             .mixed = DType::bf16,
                             .local = DType::f32,
                             .compute = DType::bf16,
                             .optimizer = DType::f32};
constexpr Precision presets[] = {
    mixed,
    mixed,
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
  raise<ConfigError>("precision: no '{}'; expected one of deepspeed, fsdp-mixed, fsdp-memory",
                     name);
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
    raise<ConfigError>(
        "precision: local is {}, optimizer is {}; expected the same, because masters "
        "and moments have one dtype",
        precision.local, precision.optimizer);
  const DType computed = precision.mixed.value_or(precision.local);
  if (precision.compute != computed)
    raise<ConfigError>("precision: compute is {}; expected {}, as {} says", precision.compute,
                       computed, precision.mixed ? "mixed" : "local without mixed");
  config.load = precision.load;
  config.compute = precision.compute;
  config.optimizer = precision.optimizer;
  config.grad_accum = precision.optimizer;
  validate(config);
  return config;
}

}  // namespace zg::zero
