#include "tools/deepspeed/load.h"
#include "tools/options/optimisation_flags.h"
#include "zerograd/zero/deepspeed/read.h"

namespace zg::tools {
namespace {

using zero::DeepSpeedConfig;
using Field = zero::DeepSpeedField;

/// The flags that set a field; the field's own flag comes first.
struct FieldFlags {
  Field field;
  std::vector<const char*> flags;
};

const std::vector<FieldFlags>& field_flags() {
  static const std::vector<FieldFlags> all = {
      {Field::micro_batch, {"--batch-size"}},
      {Field::accumulation, {"--grad-accum"}},
      {Field::train_batch, {"--train-batch-size"}},
      {Field::rate, {"--lr"}},
      {Field::beta1, {"--betas", "--adam-beta1"}},
      {Field::beta2, {"--betas", "--adam-beta2"}},
      {Field::epsilon, {"--adam-eps"}},
      {Field::weight_decay, {"--weight-decay"}},
      {Field::schedule, {"--schedule", annealing_flags[0], annealing_flags[1], annealing_flags[2]}},
      {Field::warmup_steps, {"--warmup-steps"}},
      {Field::clip_norm, {"--clip"}},
      {Field::precision, {"--precision"}},
      {Field::grad_accum_dtype, {"--grad-accum-dtype"}},
      {Field::initial_scale_power, {"--initial-scale-power"}},
      {Field::stage, {"--zero-stage", "--strategy"}},
      {Field::reduce_bucket_size, {"--reduce-bucket-size"}},
      {Field::prefetch_bucket_size, {"--prefetch-bucket-size"}},
      {Field::param_persistence_threshold, {"--param-persistence-threshold"}},
      {Field::overlap_comm, {"--overlap-comm"}},
      {Field::offload_optimizer, {"--offload-optimizer"}},
      {Field::offload_gradients, {"--offload-gradients"}},
      {Field::offload_parameters, {"--offload-param"}},
      {Field::offload_activations, {"--offload-activations"}},
      {Field::nvme_path, {"--nvme-path"}},
      {Field::activation_checkpoint, {"--activation-checkpoint"}},
      {Field::async_save, {"--async-save"}},
      {Field::memory_breakdown, {"--dump-memory"}}};
  return all;
}

int stage_of(const zero::deepspeed::CheckedConfig& config, const TrainOptions& options,
             const std::set<Field>& decided) {
  const zero::deepspeed::Setting* stage = config.find("zero_optimization", "stage");
  return stage && !decided.count(Field::stage) ? static_cast<int>(stage->integer)
                                               : options.optimisation.engine.stage;
}

std::set<Field> decided_by_flags(const zero::deepspeed::CheckedConfig& config,
                                 const TrainOptions& options) {
  std::set<Field> decided;
  for (const auto& [field, flags] : field_flags())
    for (const char* flag : flags)
      if (options.given.count(flag)) decided.insert(field);
  // Set by --cpu-offload and Lightning's strategies that end in _offload.
  if (options.offload.cpu_offload) {
    decided.insert({Field::offload_optimizer, Field::offload_gradients});
    if (stage_of(config, options, decided) == 3) decided.insert(Field::offload_parameters);
  }
  return decided;
}

const std::vector<const char*>& flags_of(Field field) {
  for (const FieldFlags& entry : field_flags())
    if (entry.field == field) return entry.flags;
  throw Error("a config's field has no flag; expected one in tools/deepspeed/apply.cpp");
}

// The flag that set the field.
std::string flag_of(Field field, const Given& given) {
  for (const char* flag : flags_of(field))
    if (given.count(flag)) return flag;
  return given.count("--cpu-offload") ? "--cpu-offload" : "--strategy";
}

// Calls `copy` with each option and the corresponding member of a config.
template <class Copy>
void each(TrainOptions& options, DeepSpeedConfig& config, const Copy& copy) {
  copy(options.optimisation.engine, config.engine);
  copy(options.optimisation.schedule, config.schedule);
  copy(options.optimisation.preset, config.preset);
  copy(options.batch.micro, config.batch.micro);
  copy(options.batch.accumulation, config.batch.accumulation);
  copy(options.batch.train, config.batch.train);
  copy(options.batch.place, config.batch.place);
  copy(options.buckets, config.buckets);
  copy(options.place.device.swap, config.swap);
  copy(options.offload.nvme_path, config.swap.directory);
  copy(options.offload.cpu_checkpointing, config.cpu_checkpointing);
  copy(options.activation_checkpoint, config.activation_checkpoint);
  copy(options.async_save, config.async_save);
  copy(options.steps_per_print, config.steps_per_print);
  copy(options.dump_memory, config.memory_breakdown);
}

}  // namespace

std::vector<std::string> apply_config(const zero::deepspeed::CheckedConfig& checked,
                                      TrainOptions& options) {
  DeepSpeedConfig program;
  each(options, program, [](const auto& option, auto& member) { member = option; });
  DeepSpeedConfig config = zero::deepspeed::apply_config(
      checked, {.program = program, .decided = decided_by_flags(checked, options)});
  each(options, config, [](auto& option, const auto& member) { option = member; });
  std::vector<std::string> overridden;
  for (const auto& [key, field] : config.overridden) {
    const std::string line = key + " (" + flag_of(field, options.given) + ")";
    if (overridden.empty() || overridden.back() != line) overridden.push_back(line);
  }
  for (const Field field : config.taken) options.given.insert(flags_of(field).front());
  for (const Field field : config.defaulted) options.defaulted.insert(flags_of(field).front());
  return overridden;
}

}  // namespace zg::tools
