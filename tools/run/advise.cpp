#include "tools/run/advise.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tools/options/fields.h"
#include "tools/run/inputs.h"
#include "tools/run/planner.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

using zero::Setting;

Setting setting_of(const Run& run) {
  const TrainOptions& options = run.options;
  return {.engine = options.engine,
          .recomputes = options.activation_checkpoint,
          .micro_batch = options.micro_batch,
          .accumulation = options.accumulation,
          .tensor = options.axes.tensor,
          .pipeline = options.axes.pipeline};
}

Run with_setting(const Run& run, const Setting& setting) {
  Run other = run;
  TrainOptions& options = other.options;
  options.engine = setting.engine;
  // DeepSpeed's default depends on the stage.
  const zero::Config& own = run.options.engine;
  if (!options.config.path.empty() && may_vary(options, "--overlap-comm") &&
      own.overlap_comm == (own.stage == 3))
    options.engine.overlap_comm = setting.engine.stage == 3;
  options.activation_checkpoint = setting.recomputes;
  options.micro_batch = setting.micro_batch;
  options.accumulation = setting.accumulation;
  options.axes.tensor = setting.tensor;
  options.axes.pipeline = setting.pipeline;
  options.data_ranks = options.ranks / (setting.tensor * setting.pipeline);
  options.rampup = {};
  return other;
}

zero::ModelSizes model_sizes(const Run& run) {
  ParameterStore store;
  const WholeModel model(store, run.options);
  zero::ModelSizes sizes = zero::ModelSizes::of(store);
  const models::GPTConfig& config = run.options.model;
  sizes.layers = config.layers;
  sizes.width = config.width;
  sizes.tokens = config.block_size;
  const bool is_decoder = run.options.seq2seq.config.empty();
  sizes.operations =
      is_decoder ? models::matmul_flops_per_token(config) * static_cast<double>(config.block_size)
                 : 6.0 * static_cast<double>(sizes.parameters * config.block_size);
  sizes.divides_layers = is_decoder;
  const OptimizerRule rule = run.options.engine.update.rule;
  const models::FamilyRow& family = models::row_of(config.family);
  const bool attention_is_whole =  // as nn::Attention demands
      is_decoder && (family.wide_query_key_norm ||
                     (family.names.attention.qkv && models::kv_heads_of(config) != config.heads));
  if (rule != OptimizerRule::muon && rule != OptimizerRule::adafactor && !attention_is_whole)
    sizes.heads = is_decoder ? std::gcd(config.heads, models::kv_heads_of(config)) : config.heads;
  return sizes;
}

bool may_vary(const TrainOptions& options, const std::string& flag) {
  return !options.has(flag) || options.defaulted.contains(flag);
}

zero::Choices choices_of(const Run& run, bool keeps_given) {
  const TrainOptions& options = run.options;
  const auto open = [&](const char* flag) { return !keeps_given || may_vary(options, flag); };
  zero::Choices choices;
  if (!open("--zero-stage") || !open("--strategy")) choices.stages.clear();
  if (!open("--activation-checkpoint")) choices.recomputes.clear();
  if (!open("--offload-optimizer") || !open("--offload-optimizer-ratio")) choices.ratios.clear();
  if (!open("--offload-optimizer") || !open("--cpu-offload")) choices.optimizer.clear();
  if (!open("--offload-gradients") || !open("--cpu-offload")) choices.gradient.clear();
  if (!open("--offload-param") || !open("--cpu-offload")) choices.parameter.clear();
  if (!open("--offload-activations")) choices.activation.clear();
  choices.buckets = open("--reduce-bucket-size") && open("--prefetch-bucket-size");
  choices.batches = open("--batch-size") && open("--grad-accum") && options.rampup.start == 0;
  if (!options.config.path.empty()) choices.ratios.clear();  // its ratio overrides the flag's
  choices.axes = open("--tensor-parallel") && open("--pipeline-parallel") && !options.process &&
                 !options.axes.sequence_parallel && options.axes.reduction_groups == 0 &&
                 options.rampup.start == 0;
  return choices;
}

const std::vector<std::string>& searched_flags() {
  static const std::vector<std::string> flags = {
      "--zero-stage",           "--strategy",
      "--tensor-parallel",      "--pipeline-parallel",
      "--batch-size",           "--grad-accum",
      "--offload-optimizer",    "--offload-gradients",
      "--offload-param",        "--offload-activations",
      "--cpu-offload",          "--offload-optimizer-ratio",
      "--reduce-bucket-size",   "--prefetch-bucket-size",
      "--activation-checkpoint"};
  return flags;
}

std::vector<std::string> flags_of(const Setting& setting, const Run& run, bool whole) {
  const TrainOptions other = with_setting(run, setting).options;
  static const TrainOptions initial;
  const TrainOptions& base = whole ? initial : run.options;
  const bool has_config = whole && !run.options.config.path.empty();
  std::vector<std::string> flags = {"--zero-stage", std::to_string(setting.engine.stage)};
  for (const Field* row :
       fields_named({"--tensor-parallel", "--pipeline-parallel", "--offload-optimizer",
                     "--offload-optimizer-ratio", "--offload-gradients", "--offload-param",
                     "--offload-activations", "--reduce-bucket-size", "--prefetch-bucket-size",
                     "--activation-checkpoint"})) {
    const Json now = value_of(*row, other);
    if (now == value_of(*row, base) && !has_config) continue;
    flags.push_back(now == Json(false) ? row->name() + "=false" : row->name());
    if (!now.is_boolean()) flags.push_back(shown_value(*row, now, other));
  }
  if (whole || setting.micro_batch != run.options.micro_batch ||
      setting.accumulation != run.options.accumulation)
    flags.insert(flags.end(), {"--batch-size", std::to_string(setting.micro_batch), "--grad-accum",
                               std::to_string(setting.accumulation)});
  if (uses_disk(setting.engine.offload) && run.options.offload.nvme_path.empty())
    flags.insert(flags.end(), {"--nvme-path", "DIR"});
  return flags;
}

zero::PlannedSetting plan_setting(const Run& run, const Setting& setting,
                                  const zero::ModelSizes& model, const zero::StepRates& rates,
                                  const Peaks* peaks, bool whole_steps) {
  Run candidate = largest_steps(with_setting(run, setting));
  TrainOptions& options = candidate.options;
  if (whole_steps) options.accumulation = setting.accumulation;
  options.kernels = peaks ? "counted" : "";
  options.device_flags.device.count_launches = peaks != nullptr;
  // Validations and samples of later steps are planned in the first ones.
  for (int64_t* interval : {&options.eval_interval, &options.sample_interval})
    if (*interval > 0 && *interval <= run.options.steps) *interval = 1;
  zero::PlannedSetting planned{.setting = setting};
  for (const RankMemory& memory : plan_stages(candidate)) {
    const Needs needs = needs_of(memory);
    planned.bytes = {.device = std::max(planned.bytes.device, needs.device),
                     .host = std::max(planned.bytes.host, needs.host),
                     .file = std::max(planned.bytes.file, needs.file)};
    if (!peaks || !memory.launches) continue;
    const StepTime time =
        predict(*memory.launches, *peaks, {.micro_batches = setting.accumulation});
    planned.seconds =
        std::max(planned.seconds,
                 zero::step_seconds(setting, model, run.options.ranks, rates, time.seconds));
  }
  return planned;
}

std::optional<zero::PlannedSetting> exact(const Run& run, const zero::PlannedSetting& found) {
  const Setting& setting = found.setting;
  zero::PlannedSetting one = found;
  // Layers of all micro-batches: a plan of more takes longer than a search.
  constexpr int64_t most_layers = 8192;
  one.part_of_step = setting.pipeline > 1 && setting.accumulation > setting.pipeline + 2;
  if (one.part_of_step && setting.accumulation * run.options.model.layers <= most_layers) {
    one.bytes = plan_setting(run, setting, {}, {}, nullptr, /*whole_steps=*/true).bytes;
    one.part_of_step = false;
  }
  one.load = 0.0;
  const DeviceOptions& limits = run.options.device_flags.device;
  for (const auto& [name, bytes, limit] :
       {std::tuple("device", one.bytes.device, limits.memory_limit),
        std::tuple("host", one.bytes.host, limits.host_limit)})
    if (const double share = static_cast<double>(bytes) / static_cast<double>(limit);
        limit > 0 && share > one.load)
      one.load = share, one.tight = name;
  // All micro-batches of 176B on 8 x 12 and 8 x 24 ranks took 3 to 5 % more.
  constexpr double most_of_part = 0.95;
  if (one.load > (one.part_of_step ? most_of_part : 1.0)) return std::nullopt;
  return one;
}

std::vector<zero::PlannedSetting> exact_rows(const Run& run,
                                             const std::vector<zero::PlannedSetting>& fitting,
                                             double seconds) {
  constexpr size_t most = 8;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                   std::chrono::duration<double>(seconds));
  std::vector<zero::PlannedSetting> rows;
  zero::SpaceBytes least{.device = INT64_MAX, .host = INT64_MAX, .file = INT64_MAX};
  const auto takes_less = [&](const zero::SpaceBytes& bytes) {
    return bytes.device < least.device || bytes.host < least.host || bytes.file < least.file;
  };
  for (const zero::PlannedSetting& found : fitting) {
    if (rows.size() == most || (!rows.empty() && Clock::now() > end)) break;
    if (!takes_less(found.bytes)) continue;
    const std::optional<zero::PlannedSetting> one = exact(run, found);
    if (!one || !takes_less(one->bytes)) continue;
    least = {.device = std::min(least.device, one->bytes.device),
             .host = std::min(least.host, one->bytes.host),
             .file = std::min(least.file, one->bytes.file)};
    rows.push_back(*one);
  }
  return rows;
}

zero::StepRates rates_of_threads(const Run& run, double operations, double bandwidth) {
  const auto ranks = static_cast<double>(run.options.ranks);
  const double memory = bandwidth / ranks;
  constexpr double disk = 1e9;  // bytes/s, a rough rate of NVMe
  return {.operations = operations,
          .memory = memory,
          .wire = memory / 3.0,
          .link = memory / 2.0,
          .host = memory,
          .disk = disk / ranks};
}

zero::StepRates rates_of(const Run& run, const Peaks* peaks) {
  zero::StepRates rates;
  if (run.options.device_flags.type == Device::Type::cpu)
    rates = rates_of_threads(
        run, 60e9 * static_cast<double>(run.options.device_flags.device.threads), 20e9);
  if (!peaks) return rates;
  rates.memory = peaks->bandwidth.at(1e9);
  if (const auto found = peaks->operations.find(name_of(run.options.engine.compute));
      found != peaks->operations.end())
    rates.operations = 0.5 * found->second;
  if (peaks->collective_bandwidth > 0.0) rates.wire = peaks->collective_bandwidth;
  return rates;
}

zero::Search search_list(const Run& run, const std::vector<Setting>& settings,
                         const zero::SearchOptions& options, const Peaks* peaks) {
  const zero::ModelSizes model = model_sizes(run);
  return zero::find_fitting(settings, model, run.options.ranks, options,
                            [&](const Setting& setting) {
                              return plan_setting(run, setting, model, options.rates, peaks);
                            });
}

zero::Search search_settings(const Run& run, const zero::Choices& choices,
                             zero::SearchOptions options, const Peaks* peaks) {
  const DeviceOptions& limits = run.options.device_flags.device;
  options.limits.device = limits.memory_limit;
  options.limits.host = limits.host_limit;
  options.threads = available_cores();
  return search_list(
      run, zero::settings_of(setting_of(run), choices, model_sizes(run), run.options.ranks),
      options, peaks);
}

namespace {

// The small changes of a run, smallest first, and their flags.
std::vector<std::pair<Setting, std::string>> small_changes(const Run& run) {
  const Setting own = setting_of(run);
  const zero::OffloadOptions& places = own.engine.offload;
  const bool may_offload = run.options.device_flags.device.memory_limit > 0 &&
                           places.optimizer == Space::device && places.parameter == Space::device;
  std::vector<std::pair<Setting, std::string>> changes;
  for (const auto& [offload, recomputes] : {std::pair(false, false), std::pair(false, true),
                                            std::pair(true, false), std::pair(true, true)}) {
    if ((own.recomputes && !recomputes) || (offload && !may_offload)) continue;
    for (int stage = 0; stage <= 3; ++stage) {
      const bool moves = offload || places.parameter != Space::device;
      const bool shares = run.options.data_ranks > 1 || (moves && stage == 3);
      if ((stage > 0 && !shares) || (stage > 1 && own.engine.reduce_at_boundary) ||
          (stage < 3 && places.parameter != Space::device))
        continue;
      auto& [setting, flags] = changes.emplace_back(own, fmt::format("--zero-stage {}", stage));
      setting.recomputes = recomputes;
      setting.engine.stage = stage;
      if (offload) {
        setting.engine.offload.optimizer = setting.engine.offload.gradient = Space::host;
        if (stage == 3) setting.engine.offload.parameter = Space::host;
        flags += " --cpu-offload";
      }
      if (recomputes && !own.recomputes) flags += " --activation-checkpoint";
    }
  }
  return changes;
}

}  // namespace

std::string refusals_of(const zero::Search& search, size_t most) {
  std::vector<std::pair<size_t, std::string>> reasons;
  for (const auto& [reason, settings] : search.refused) reasons.emplace_back(settings, reason);
  std::ranges::sort(reasons, std::greater());
  reasons.resize(std::min(reasons.size(), most));
  std::string text;
  for (const auto& [settings, reason] : reasons)
    text += fmt::format("; refused, {} of them: {}", settings, reason);
  return text;
}

SmallestSetting smallest_fitting(const Run& run, const zero::Search* known) {
  const DeviceOptions& limits = run.options.device_flags.device;
  const zero::ModelSizes model = model_sizes(run);
  for (const auto& [setting, flags] : small_changes(run)) {
    const zero::SpaceBytes least = zero::least_bytes(setting, model, run.options.ranks);
    if (!Needs{.device = least.device, .host = least.host}.fit(limits)) continue;
    const zero::Search one = search_list(
        run, {setting}, {.limits = {.device = limits.memory_limit, .host = limits.host_limit}});
    if (!one.fitting.empty() && exact(run, one.fitting.front())) return {.flags = flags};
  }
  constexpr double seconds = 10.0;
  const zero::Search search =
      known ? *known
            : search_settings(run, choices_of(run),
                              {.rates = rates_of(run), .enough = 1, .seconds = seconds});
  const auto text_of = [&](const zero::PlannedSetting& one) {
    return join(flags_of(one.setting, run), " ");
  };
  for (const zero::PlannedSetting& one : search.fitting)
    if (known || exact(run, one)) return {.flags = text_of(one)};
  const std::string refused = refusals_of(search, 1);
  if (search.rest.empty()) return {.none = "none; try more --ranks or a smaller model" + refused};
  const zero::PlannedSetting& smallest = search.rest.front();
  const int64_t bytes = smallest.tight == "host" ? smallest.bytes.host : smallest.bytes.device;
  const std::string takes =
      fmt::format("the smallest of those planned takes {} of {} memory, with {}", size_text(bytes),
                  smallest.tight, text_of(smallest));
  if (!search.complete)
    return {.none = fmt::format(
                "not found yet, {} settings are left to plan; {}; try plan --advise with a longer "
                "--time{}",
                search.unplanned, takes, refused)};
  return {.none = fmt::format(
              "none, with any stage, place of states, micro-batch and axis of the ranks: {}; try "
              "more --ranks, --precision bf16 or fsdp-memory, or a smaller model{}",
              takes, refused)};
}

}  // namespace zg::tools
