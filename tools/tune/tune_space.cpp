#include "tools/tune/tune.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/deepspeed/load.h"
#include "tools/options/fields.h"
#include "tools/run/advise.h"
#include "zerograd/runtime/command_line/flags.h"

namespace zg::tools {

using zero::deepspeed::CheckedConfig;
using zero::deepspeed::Setting;
using zero::deepspeed::Value;

namespace {

bool is_stage_open(const Run& run) {
  return may_vary(run.options, "--zero-stage") && may_vary(run.options, "--strategy");
}

/// The rows of the values that are varied, in addition to the stage and the micro-batch.
const std::vector<const Field*>& varied() {
  static const std::vector<const Field*> rows = fields_named(
      {"--offload-optimizer", "--offload-gradients", "--offload-param", "--offload-activations",
       "--reduce-bucket-size", "--prefetch-bucket-size", "--activation-checkpoint"});
  return rows;
}

}  // namespace

std::vector<std::string> tuned_flags(const zero::Setting& setting, const Run& run) {
  const TrainOptions tuned = with_setting(run, setting).options;
  std::vector<std::string> flags;
  if (is_stage_open(run)) flags = {"--zero-stage", std::to_string(setting.engine.stage)};
  if (may_vary(run.options, "--batch-size"))
    flags.insert(flags.end(), {"--batch-size", std::to_string(setting.micro_batch)});
  for (const Field* row : varied())
    if (const Json now = value_of(*row, tuned); now != value_of(*row, run.options)) {
      flags.push_back(row->name());
      if (!now.is_boolean()) flags.push_back(shown_value(*row, now, tuned));
    }
  return flags;
}

int deviations_of(const zero::Setting& setting, const Run& run) {
  const TrainOptions tuned = with_setting(run, setting).options;
  const TrainOptions& own = run.options;
  return (tuned.engine.stage != own.engine.stage) + (tuned.micro_batch != own.micro_batch) +
         static_cast<int>(std::ranges::count_if(varied(), [&](const Field* row) {
           return value_of(*row, tuned) != value_of(*row, own);
         }));
}

std::string description_of(const zero::Setting& setting, const Run& run) {
  const std::vector<std::string> flags = tuned_flags(setting, run);
  return flags.empty() ? "as given" : join(flags, " ");
}

std::vector<int> stages_of(const Run& run) {
  const zero::Config& engine = run.options.engine;
  if (!is_stage_open(run)) return {engine.stage};
  if (engine.offload.parameter != Space::device) return {3};
  if (run.options.ranks == 1) return {0, 3};
  if (engine.reduce_at_boundary) return {0, 1};
  return {0, 1, 2, 3};
}

namespace {

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

void set_batch(Json& config, const zero::Setting& setting, const Run& run) {
  config.erase("train_batch_size");
  if (!may_vary(run.options, "--train-batch-size"))
    config["train_batch_size"] = setting.micro_batch * setting.accumulation * run.options.ranks;
  config["train_micro_batch_size_per_gpu"] = setting.micro_batch;
  config["gradient_accumulation_steps"] = setting.accumulation;
}

// Sets the precision if the config leaves it open: accelerate's file or a flag gives it.
void set_precision(Json& config, const CheckedConfig& given, const RunSpec& spec) {
  const DType compute = spec.engine.compute;
  if (compute == DType::f32 || given.is_on("fp16", "enabled") || given.is_on("bf16", "enabled"))
    return;
  const bool is_preset_of_flag =
      !spec.preset.empty() && !given.is_on("bf16", "bf16_optimizer_states");
  if (is_preset_of_flag) return;
  const char* const name = compute == DType::f16         ? "fp16"
                           : config.contains("bfloat16") ? "bfloat16"
                                                         : "bf16";
  const Setting* enabled = given.find(compute == DType::f16 ? "fp16" : "bf16", "enabled");
  if (!enabled || !enabled->given) section(config, name)["enabled"] = true;
}

}  // namespace

std::string config_with(const zero::Setting& setting, const Run& run) {
  const TrainOptions& options = run.options;
  const Value given = options.config.path.empty() ? Value{.kind = Value::Kind::object}
                                                  : deepspeed_config(options.config);
  Json config = json_of(given);
  config.erase("autotuning");  // the written config is the result of tuning
  set_batch(config, setting, run);
  set_precision(config,
                zero::deepspeed::check_config(given, options.config.path, options.config.compat,
                                              /*lenient=*/true),
                run.options);
  Json& zero = section(config, "zero_optimization");
  for (const char* old : {"cpu_offload", "cpu_offload_param", "prefetch_bucket_size"})
    zero.erase(old);
  zero["stage"] = setting.engine.stage;
  zero["reduce_bucket_size"] = setting.engine.reduce_bucket_size;
  zero["stage3_prefetch_bucket_size"] = setting.engine.prefetch_bucket_size;
  zero["overlap_comm"] = run.options.engine.overlap_comm;
  set_place(zero, "offload_optimizer", setting.engine.offload.optimizer, options.offload.nvme_path);
  set_place(zero, "offload_param", setting.engine.offload.parameter, options.offload.nvme_path);
  Json& own = section(config, "zerograd");
  own["activation_checkpoint"] = setting.recomputes;
  own["offload_gradients"] = device_of(setting.engine.offload.gradient);
  own["offload_activations"] = device_of(setting.engine.offload.activation);
  return config.dump(2) + "\n";
}

}  // namespace zg::tools
