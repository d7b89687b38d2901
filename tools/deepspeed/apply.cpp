#include <algorithm>

#include "tools/deepspeed/load.h"
#include "tools/options/fields.h"
#include "zerograd/zero/deepspeed/check.h"

namespace zg::tools {
namespace {

using zero::DeepSpeedConfig;
using zero::DeepSpeedField;

/// The flags that override the config's key of a row, the row's own first.
std::vector<std::string> flags_of(const Field& row) {
  if (row.config_flags.empty()) return {row.name()};
  return {row.config_flags.begin(), row.config_flags.end()};
}

std::vector<std::string> flags_of(DeepSpeedField field) {
  const std::vector<const Field*>& all = all_fields();
  return flags_of(
      **std::ranges::find_if(all, [&](const Field* row) { return row->config == field; }));
}

int stage_of(const zero::deepspeed::CheckedConfig& config, const TrainOptions& options,
             const std::set<DeepSpeedField>& decided) {
  const zero::deepspeed::Setting* stage = config.find("zero_optimization", "stage");
  return stage && !decided.count(DeepSpeedField::stage) ? static_cast<int>(stage->integer)
                                                        : options.engine.stage;
}

std::set<DeepSpeedField> decided_by_flags(const zero::deepspeed::CheckedConfig& config,
                                          const TrainOptions& options) {
  std::set<DeepSpeedField> decided;
  for (const Field* row : all_fields())
    for (const std::string& flag : flags_of(*row))
      if (row->config && options.has(flag)) decided.insert(*row->config);
  // Set by --cpu-offload and Lightning's strategies that end in _offload.
  if (options.offload.cpu_offload) {
    decided.insert({DeepSpeedField::offload_optimizer, DeepSpeedField::offload_gradients});
    if (stage_of(config, options, decided) == 3) decided.insert(DeepSpeedField::offload_parameters);
  }
  return decided;
}

// The flag that set the field.
std::string flag_of(DeepSpeedField field, const Given& given) {
  for (const std::string& flag : flags_of(field))
    if (given.count(flag)) return flag;
  return given.count("--cpu-offload") ? "--cpu-offload" : "--strategy";
}

// Calls `copy` with each option and the corresponding member of a config.
template <class Copy>
void each(TrainOptions& options, DeepSpeedConfig& config, const Copy& copy) {
  copy(options.engine, config.engine);
  copy(options.schedule, config.schedule);
  copy(options.preset, config.preset);
  copy(options.batch.micro, config.batch.micro);
  copy(options.batch.accumulation, config.batch.accumulation);
  copy(options.batch.train, config.batch.train);
  copy(options.batch.place, config.batch.place);
  copy(options.buckets, config.buckets);
  copy(options.device_flags.device.swap, config.swap);
  copy(options.offload.nvme_path, config.swap.directory);
  copy(options.offload.cpu_checkpointing, config.cpu_checkpointing);
  copy(options.activation_checkpoint, config.activation_checkpoint);
  copy(options.async_save, config.async_save);
  copy(options.steps_per_print, config.steps_per_print);
  copy(options.dump_memory, config.memory_breakdown);
}

}  // namespace

std::vector<std::string> apply_config(zero::deepspeed::CheckedConfig& checked,
                                      TrainOptions& options) {
  DeepSpeedConfig program;
  each(options, program, [](const auto& option, auto& member) { member = option; });
  program.autotuning = !options.autotuning.empty();
  DeepSpeedConfig config = zero::deepspeed::apply_config(
      checked, {.program = program, .decided = decided_by_flags(checked, options)});
  each(options, config, [](auto& option, const auto& member) { option = member; });
  checked.without_effect = config.without_effect;
  if (config.autotuning && options.autotuning.empty()) options.autotuning = "run";
  // Batch sizes of "auto" are those of the checkpoint or of the command.
  if (config.batch.micro && !config.taken.count(DeepSpeedField::micro_batch) &&
      !options.has("--batch-size"))
    options.batch.micro = std::nullopt, options.batch.place.clear();
  std::vector<std::string> overridden;
  for (const auto& [key, field] : config.overridden) {
    const std::string line = key + " (" + flag_of(field, options.given) + ")";
    if (overridden.empty() || overridden.back() != line) overridden.push_back(line);
  }
  for (const DeepSpeedField field : config.taken) {
    const std::string flag = flags_of(field).front();
    options.given.insert(flag);
    options.sources[flag] = Source::config;
  }
  for (const DeepSpeedField field : config.defaulted)
    options.defaulted.insert(flags_of(field).front());
  return overridden;
}

}  // namespace zg::tools
