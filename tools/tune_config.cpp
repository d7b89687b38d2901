#include "tools/tune_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/config/load.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;

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

// accelerate's file says it elsewhere, and without a file a flag did.
void set_precision(Json& config, const OptimisationOptions& optimisation) {
  for (const char* known : {"fp16", "bf16", "bfloat16"})
    if (config.contains(known)) return;
  if (!optimisation.preset.empty()) return;
  if (optimisation.engine.compute == DType::bf16) config["bf16"] = {{"enabled", true}};
  if (optimisation.engine.compute == DType::f16) config["fp16"] = {{"enabled", true}};
}

}  // namespace

std::string config_with(const Tuning& tuning, const Run& run) {
  const TrainOptions& options = run.options;
  Json config = Json::object();
  if (!options.config.path.empty()) config = json_of(deepspeed_config(options.config));
  set_batch(config, tuning, run);
  set_precision(config, run.settings.optimisation);
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
