#include "tools/config/contradictions.h"

#include "zerograd/runtime/error.h"

namespace zg::tools {
namespace {

const Setting* given(const CheckedConfig& config, const char* section, const char* key) {
  const Setting* setting = config.find(section, key);
  return setting && setting->given ? setting : nullptr;
}

std::string line_of(const Setting& setting) { return std::to_string(setting.at.line); }

void check_precision(CheckedConfig& config) {
  const Setting *fp16 = given(config, "fp16", "enabled"), *bf16 = given(config, "bf16", "enabled");
  if (fp16 && bf16 && fp16->boolean && bf16->boolean)
    throw ConfigError(config.place_of(*bf16) +
                      "bfloat16 and fp16 modes cannot be simultaneously enabled; expected one of "
                      "them, got both, fp16 in line " +
                      line_of(*fp16) + "; try \"enabled\": false for one");
  const Setting* states = given(config, "bf16", "bf16_optimizer_states");
  const Setting* weights = given(config, "bf16", "bf16_master_weights_and_grads");
  const bool has_states = states && states->boolean, has_weights = weights && weights->boolean;
  if (config.is_on("bf16", "enabled") && has_states != has_weights)
    note_unsupported(config, config.place_of(has_states ? *states : *weights) +
                                 "masters and moments are kept alike; expected "
                                 "bf16_master_weights_and_grads and bf16_optimizer_states both "
                                 "true or both false; try both");
  if (const Setting* sums = given(config, "data_types", "grad_accum_dtype");
      sums && sums->text == "fp16")
    note_unsupported(config, config.place_of(*sums) +
                                 "'fp16': sums of gradients would overflow; expected fp32 or bf16; "
                                 "try fp32");
}

void check_offload(CheckedConfig& config) {
  const char* const pairs[][2] = {{"cpu_offload", "offload_optimizer"},
                                  {"cpu_offload_param", "offload_param"}};
  for (const auto& [old_key, new_key] : pairs) {
    const Setting* before = given(config, "zero_optimization", old_key);
    const Setting* now = given(config, "zero_optimization", new_key);
    if (before && now && !before->null && !now->null)
      throw ConfigError(config.place_of(*before) + old_key + " is the old name of " + new_key +
                        ", which stands in line " + line_of(*now) +
                        " too; expected one of them, got both; try leaving " + old_key + " out");
  }
}

void check_sizes(const CheckedConfig& config) {
  const Setting* gather = given(config, "zero_optimization", "allgather_bucket_size");
  if (gather && !gather->automatic && gather->integer % 2 != 0)
    throw ConfigError(config.place_of(*gather) + "expected an even number, got " +
                      std::to_string(gather->integer) + "; try " +
                      std::to_string(gather->integer + 1));
}

void check_scheduler(const CheckedConfig& config) {
  const Setting* type = config.find("scheduler", "type");
  if (!type) return;
  for (const Row& row : rows()) {
    const bool needed = row.section == type->text && !*row.fallback;
    if (!needed || config.find(row.section, row.key)) continue;
    const bool total = std::string(row.key) == "total_num_steps";
    throw ConfigError(config.place_of(*type) + type->text + " needs " + row.key +
                      "; expected it in scheduler.params, got none; try \"" + row.key +
                      "\": " + (total ? "\"auto\", which is the run's --steps" : "0.001"));
  }
}

}  // namespace

void check_contradictions(CheckedConfig& config) {
  check_precision(config);
  check_offload(config);
  check_sizes(config);
  check_scheduler(config);
}

}  // namespace zg::tools
