#include "tools/tune/tune_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/deepspeed/load.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;
using zero::deepspeed::CheckedConfig;
using zero::deepspeed::Setting;
using zero::deepspeed::Value;

Json json_of(const Value& value) {
  switch (value.kind) {
    case Value::Kind::null:
      return nullptr;
    case Value::Kind::boolean:
      return value.boolean;
    case Value::Kind::number:
      if (value.number == std::floor(value.number) && std::fabs(value.number) < 0x1p53)
        return static_cast<int64_t>(value.number);
      return value.number;
    case Value::Kind::text:
      return value.text;
    case Value::Kind::array: {
      Json items = Json::array();
      for (const Value& item : value.items) items.push_back(json_of(item));
      return items;
    }
    case Value::Kind::object: {
      Json members = Json::object();
      for (const Value::Member& member : value.members) members[member.key] = json_of(member.value);
      return members;
    }
  }
  return nullptr;
}

Json& section(Json& in, const char* name) {
  if (!in.contains(name) || !in[name].is_object()) in[name] = Json::object();
  return in[name];
}

const char* device_of(Space space) {
  return space == Space::device ? "none" : space == Space::host ? "cpu" : "nvme";
}

void set_place(Json& zero, const char* name, Space space, const std::string& nvme_path) {
  if (space == Space::device) return void(zero.erase(name));
  Json& offload = section(zero, name);
  offload["device"] = device_of(space);
  if (space == Space::file) offload["nvme_path"] = nvme_path;
}

void set_batch(Json& config, const Tuning& tuning, const Run& run) {
  config.erase("train_batch_size");
  if (!is_open(run.options, "--train-batch-size"))
    config["train_batch_size"] = tuning.micro_batch * tuning.accumulation * run.options.ranks;
  config["train_micro_batch_size_per_gpu"] = tuning.micro_batch;
  config["gradient_accumulation_steps"] = tuning.accumulation;
}

// Sets the precision if the config leaves it open: accelerate's file or a flag gives it.
void set_precision(Json& config, const CheckedConfig& given,
                   const OptimisationOptions& optimisation) {
  const DType compute = optimisation.engine.compute;
  if (compute == DType::f32 || given.is_on("fp16", "enabled") || given.is_on("bf16", "enabled"))
    return;
  const bool is_preset_of_flag =
      !optimisation.preset.empty() && !given.is_on("bf16", "bf16_optimizer_states");
  if (is_preset_of_flag) return;
  const char* const name = compute == DType::f16         ? "fp16"
                           : config.contains("bfloat16") ? "bfloat16"
                                                         : "bf16";
  const Setting* enabled = given.find(compute == DType::f16 ? "fp16" : "bf16", "enabled");
  if (!enabled || !enabled->given) section(config, name)["enabled"] = true;
}

}  // namespace

std::string config_with(const Tuning& tuning, const Run& run) {
  const TrainOptions& options = run.options;
  const Value given = options.config.path.empty() ? Value{.kind = Value::Kind::object}
                                                  : deepspeed_config(options.config);
  Json config = json_of(given);
  set_batch(config, tuning, run);
  set_precision(config,
                zero::deepspeed::check_config(given, options.config.path, options.config.compat,
                                              /*lenient=*/true),
                run.settings.optimisation);
  Json& zero = section(config, "zero_optimization");
  for (const char* old : {"cpu_offload", "cpu_offload_param", "prefetch_bucket_size"})
    zero.erase(old);
  zero["stage"] = tuning.stage;
  zero["reduce_bucket_size"] = tuning.reduce_bucket_size;
  zero["stage3_prefetch_bucket_size"] = tuning.prefetch_bucket_size;
  zero["overlap_comm"] = run.settings.optimisation.engine.overlap_comm;
  set_place(zero, "offload_optimizer", tuning.offload.optimizer, options.offload.nvme_path);
  set_place(zero, "offload_param", tuning.offload.parameter, options.offload.nvme_path);
  Json& own = section(config, "zerograd");
  own["activation_checkpoint"] = tuning.activation_checkpoint;
  own["offload_gradients"] = device_of(tuning.offload.gradient);
  own["offload_activations"] = device_of(tuning.offload.activation);
  return config.dump(2) + "\n";
}

}  // namespace zg::tools
