#include "tools/tune/tune.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "tools/deepspeed/load.h"
#include "tools/options/fields.h"
#include "tools/run/advise.h"
#include "tools/run/planner.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/file_io.h"

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

namespace {

// The limits of --device-memory and --host-memory, and one rank's share of the machine's free
// memory and of the disk.
zero::SearchOptions search_options(const Run& run, const zero::StepRates& rates, double seconds) {
  const DeviceOptions& limits = run.options.device_flags.device;
  const std::string& disk = run.options.offload.nvme_path;
  const int64_t ranks = run.options.ranks;
  const auto share = [&](int64_t bytes) { return std::max<int64_t>(1, bytes / ranks); };
  return {.limits = {.device = limits.memory_limit,
                     .host = limits.host_limit,
                     .file = disk.empty() ? 0 : share(free_bytes(disk).value_or(INT64_MAX)),
                     .both = share(available_memory_bytes())},
          .rates = rates,
          .seconds = seconds,
          .threads = available_cores()};
}

zero::PlannedSetting planned(const Run& run, const zero::Setting& setting,
                             const zero::StepRates& rates) {
  const zero::Search search = search_list(run, {setting}, search_options(run, rates, 1e9));
  if (!search.refused.empty()) dry_run(with_setting(run, setting), 0);  // throws the reason
  return (search.fitting.empty() ? search.rest : search.fitting).front();
}

bool has_samples(const Run& run) { return !may_vary(run.options, "--train-batch-size"); }

// The micro-batches to try, ascending: only the run's own if --batch-size, or --train-batch-size
// and --grad-accum, were given; else, with --train-batch-size, the divisors of each rank's share
// of it; else powers of two.
std::vector<int64_t> micro_batches_of(const Run& run) {
  if (!may_vary(run.options, "--batch-size") ||
      (has_samples(run) && !may_vary(run.options, "--grad-accum")))
    return {run.options.micro_batch};
  std::vector<int64_t> sizes;
  const int64_t share = run.options.micro_batch * run.options.accumulation;
  for (int64_t size = 1; has_samples(run) && size <= share; ++size)
    if (share % size == 0) sizes.push_back(size);
  for (int64_t size = 1; !has_samples(run) && size <= largest_count; size *= 2)
    sizes.push_back(size);
  return sizes;
}

// With --train-batch-size, the accumulation changes with the micro-batch.
zero::Setting with_micro_batch(zero::Setting setting, int64_t micro_batch, const Run& run) {
  setting.micro_batch = micro_batch;
  if (has_samples(run))
    setting.accumulation = run.options.micro_batch * run.options.accumulation / micro_batch;
  return setting;
}

zero::Choices choices_of_tune(const Run& run, bool with_smaller) {
  zero::Choices choices = choices_of(run, /*keeps_given=*/true);
  choices.stages = stages_of(run);
  if (choices.stages.size() > 2) std::erase(choices.stages, run.options.engine.stage == 2 ? 1 : 2);
  std::vector<Space> places = {Space::device, Space::host};
  if (!choices.gradient.empty()) choices.gradient = places;
  if (!choices.activation.empty()) choices.activation = places;
  if (!run.options.offload.nvme_path.empty()) places.push_back(Space::file);
  if (!choices.optimizer.empty()) choices.optimizer = places;
  if (!choices.parameter.empty()) choices.parameter = places;
  if (run.options.offload.cpu_offload && may_vary(run.options, "--offload-param"))
    choices.parameter = {Space::host};
  choices.ratios.clear();
  choices.batches = choices.axes = false;
  if (!with_smaller) choices.buckets = false, choices.activation.clear();
  return choices;
}

}  // namespace

double samples_per_s(const zero::PlannedSetting& plan, const Run& run) {
  const auto samples = plan.setting.micro_batch * plan.setting.accumulation * run.options.ranks;
  return static_cast<double>(samples) / plan.seconds;
}

zero::Search plan_all(const Run& run, const zero::StepRates& rates, double seconds,
                      double longest_step_s) {
  const zero::ModelSizes model = model_sizes(run);
  const int64_t ranks = run.options.ranks;
  const auto search_with = [&](const zero::Choices& choices, const zero::SearchOptions& options) {
    std::vector<zero::Setting> settings;
    for (const int64_t size : micro_batches_of(run)) {
      const auto some =
          zero::settings_of(with_micro_batch(setting_of(run), size, run), choices, model, ranks);
      settings.insert(settings.end(), some.begin(), some.end());
      if (!has_samples(run) && std::ranges::all_of(some, [&](const zero::Setting& one) {
            return zero::step_seconds(one, model, ranks, rates) > longest_step_s;
          }))
        break;
    }
    return search_list(run, settings, options);
  };
  zero::SearchOptions options = search_options(run, rates, seconds);
  zero::Search search = search_with(choices_of_tune(run, false), options);
  if (search.fitting.empty()) {  // then with the choices that take less memory, until some fit
    options.seconds = std::numeric_limits<double>::infinity();
    options.enough = 8;
    zero::Search smaller = search_with(choices_of_tune(run, true), options);
    search.fitting = std::move(smaller.fitting);
    search.rest.insert(search.rest.end(), smaller.rest.begin(), smaller.rest.end());
    search.complete = true;
  }
  std::ranges::stable_sort(search.fitting, std::greater(),
                           [&](const auto& plan) { return samples_per_s(plan, run); });
  std::ranges::stable_sort(search.rest, {}, &zero::PlannedSetting::load);
  return search;
}

zero::Search plan_largest(const Run& run, const zero::StepRates& rates) {
  const bool solved = has_samples(run);
  const std::vector<int64_t> divisors = solved ? micro_batches_of(run) : std::vector<int64_t>{};
  zero::Search plans;
  for (int stage : stages_of(run)) {
    zero::Setting setting = setting_of(run);
    setting.engine.stage = stage;
    if (stage == 3 && run.options.offload.cpu_offload && may_vary(run.options, "--offload-param"))
      setting.engine.offload.parameter = Space::host;
    const auto of_size = [&](int64_t index) {
      const int64_t size = solved ? divisors[static_cast<size_t>(index)] : index + 1;
      return planned(run, with_micro_batch(setting, size, run), rates);
    };
    const int64_t count = largest_fitting(solved ? std::ssize(divisors) : largest_count,
                                          [&](int64_t size) { return of_size(size - 1).fits(); });
    (count > 0 ? plans.fitting : plans.rest).push_back(of_size(std::max<int64_t>(0, count - 1)));
  }
  return plans;
}

zero::StepRates measured_rates(const Run& run) {
  DeviceOptions options = run.options.device_flags.device;
  options.memory_limit = options.host_limit = 0;
  const Device device = Device::cpu(0, options);
  // Fraction of the matmul peak that whole steps of large models reach.
  constexpr double reached = 0.6;
  constexpr double slowest = 1e9;  // used where the portable instruction set has no measurement
  const double peak = std::max({matmul_peak_or_zero(device, run.options.engine.compute),
                                matmul_peak_or_zero(device, DType::f32), slowest});
  const auto side_by_side = static_cast<double>(std::min<int64_t>(
      run.options.ranks, std::max(1, available_cores() / device.traits().threads)));
  const auto ranks = static_cast<double>(run.options.ranks);
  return rates_of_threads(run, reached * peak * side_by_side / ranks,
                          measure_memory_bandwidth(device));
}

}  // namespace zg::tools
