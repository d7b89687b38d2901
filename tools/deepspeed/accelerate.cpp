#include "tools/deepspeed/accelerate.h"

#include <utility>

#include "zerograd/runtime/error.h"

namespace zg::tools {

using zero::deepspeed::CheckedConfig;
using zero::deepspeed::default_of;
using zero::deepspeed::find_row;
using zero::deepspeed::Position;
using zero::deepspeed::Setting;
using zero::deepspeed::Value;

namespace {

const Value::Member* find(const Value& object, const std::string& key) {
  for (const Value::Member& member : object.members)
    if (member.key == key && member.value.kind != Value::Kind::null) return &member;
  return nullptr;
}

Value object_at(Position at) { return {.kind = Value::Kind::object, .at = at}; }

// Moves the value of `key` in `from` to `name` in `to`. The word none counts as absent, because
// accelerate passes these values through environment variables.
void take(const Value& from, const char* key, Value& to, const char* name) {
  const Value::Member* member = find(from, key);
  if (!member || (member->value.kind == Value::Kind::text && member->value.text == "none")) return;
  to.members.push_back({.key = name, .at = member->at, .value = member->value});
}

}  // namespace

Value deepspeed_config_of(const Value& yaml) {
  const Value::Member* block = find(yaml, "deepspeed_config");
  const Position at = block ? block->at : yaml.at;
  Value config = object_at(at), zero = object_at(at);
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu"})
    config.members.push_back(
        {.key = key, .at = at, .value = {.kind = Value::Kind::text, .at = at, .text = "auto"}});
  const Value own = block ? block->value : object_at(at);
  take(own, "gradient_accumulation_steps", config, "gradient_accumulation_steps");
  take(own, "gradient_clipping", config, "gradient_clipping");
  take(own, "zero_stage", zero, "stage");
  take(own, "zero3_save_16bit_model", zero, "stage3_gather_16bit_weights_on_model_save");
  for (const char* what : {"offload_optimizer", "offload_param"}) {
    Value offload = object_at(at);
    take(own, (std::string(what) + "_device").c_str(), offload, "device");
    take(own, (std::string(what) + "_nvme_path").c_str(), offload, "nvme_path");
    if (!offload.members.empty())
      zero.members.push_back({.key = what, .at = offload.members[0].at, .value = offload});
  }
  config.members.push_back({.key = "zero_optimization", .at = at, .value = std::move(zero)});
  return config;
}

namespace {

void fill_precision(const CheckedConfig& yaml, CheckedConfig& deepspeed) {
  const Setting* precision = yaml.find("accelerate", "mixed_precision");
  if (!precision || precision->text == "no") return;
  const bool f16 = precision->text == "fp16";
  const char *const section = f16 ? "fp16" : "bf16", *const other = f16 ? "bf16" : "fp16";
  if (deepspeed.is_on(other, "enabled"))
    throw ConfigError(yaml.place_of(*precision) + precision->text + " here and " + other + " in " +
                      deepspeed.file +
                      "; expected the same, got both; try mixed_precision: " + other);
  const Setting* enabled = deepspeed.find(section, "enabled");
  if (enabled && enabled->given) return;
  deepspeed.settings[std::string(section) + ".enabled"] = {
      .row = find_row(section, "enabled"), .given = true, .boolean = true};
  check_contradictions(deepspeed);
}

}  // namespace

void fill_defaults(const CheckedConfig& yaml, const Given& flags, CheckedConfig& deepspeed) {
  const Setting* named = yaml.find("accelerate_deepspeed", "deepspeed_config_file");
  const Setting* stage = deepspeed.find("zero_optimization", "stage");
  if ((!named || named->null) && stage && !stage->given)
    deepspeed.settings["zero_optimization.stage"] =
        default_of(*find_row("accelerate_deepspeed", "zero_stage"), yaml.version);
  if (!flags.count("--precision")) fill_precision(yaml, deepspeed);
}

std::vector<std::string> apply_accelerate(const CheckedConfig& yaml, const CheckedConfig* deepspeed,
                                          const Given& flags, TrainOptions& options) {
  std::vector<std::string> overridden;
  const auto take = [&](const char* key, const char* flag, const auto& set) {
    const Setting* setting = yaml.find("accelerate", key);
    if (!setting || !setting->given || setting->null) return;
    if (flags.count(flag)) {
      overridden.push_back(std::string(key) + " (" + flag + ")");
      return;
    }
    set(*setting);
    options.given.insert(flag);
  };
  take("num_processes", "--ranks", [&](const Setting& s) {
    if (options.process && s.integer != options.ranks)
      throw ConfigError(yaml.place_of(s) + "expected the " + std::to_string(options.ranks) +
                        " processes that were started, got " + std::to_string(s.integer) +
                        "; try num_processes: " + std::to_string(options.ranks));
    options.ranks = s.integer;
  });
  take("mixed_precision", "--precision", [&](const Setting& s) {
    if (deepspeed || s.text == "no") return;  // fill_precision() takes it from DeepSpeed's config
    options.optimisation.engine.compute = s.text == "fp16" ? DType::f16 : DType::bf16;
  });
  return overridden;
}

}  // namespace zg::tools
