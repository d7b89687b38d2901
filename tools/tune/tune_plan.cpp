#include <algorithm>
#include <vector>

#include "tools/run/advise.h"
#include "tools/tune/tune.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/file_io.h"

namespace zg::tools {

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

Tuning tuning_of(const Run& run, const zero::Setting& setting) {
  Tuning tuning = with_setting(run, setting).options;
  tuning.rampup = run.options.rampup;
  return tuning;
}

Planned planned_of(const Run& run, const zero::PlannedSetting& one) {
  return {.tuning = tuning_of(run, one.setting),
          .needs = {.device = one.bytes.device, .host = one.bytes.host, .file = one.bytes.file},
          .seconds = one.seconds,
          .load = one.load,
          .tight = one.tight == "device" ? "--device-memory"
                   : one.tight == "host" ? "--host-memory"
                   : one.tight == "both" ? "the machine's free memory"
                                         : "--nvme-path's free space",
          .fits = one.fits()};
}

zero::Search search_list(const Run& run, const std::vector<zero::Setting>& settings,
                         const zero::SearchOptions& options) {
  const zero::ModelSizes model = model_sizes(run);
  return zero::find_fitting(settings, model, run.options.ranks, options,
                            [&](const zero::Setting& setting) {
                              return plan_setting(run, setting, model, options.rates, nullptr);
                            });
}

}  // namespace

double Planned::samples_per_s(const Run& run) const {
  return static_cast<double>(tuning.micro_batch * tuning.accumulation * run.options.ranks) /
         seconds;
}

Planned planned(const Run& run, const Tuning& tuning, const zero::StepRates& rates) {
  const zero::Search search =
      search_list(run, {setting_of(tuned(run, tuning))}, search_options(run, rates, 1e9));
  if (search.refused > 0) dry_run(tuned(run, tuning), 0);  // throws the reason
  return planned_of(run, (search.fitting.empty() ? search.rest : search.fitting).front());
}

Plans plan_all(const Run& run, const zero::StepRates& rates, double seconds,
               double longest_step_s) {
  const zero::ModelSizes model = model_sizes(run);
  const bool free = may_vary(run.options, "--train-batch-size");
  std::vector<zero::Setting> settings, variants;
  for (const Tuning& combination : combinations_of(run))
    for (const int64_t size : micro_batches_of(run)) {
      const std::vector<Tuning> ones =
          smaller_variants(with_micro_batch(combination, size, run), run);
      for (const Tuning& one : ones)
        (&one == &ones.front() ? settings : variants).push_back(setting_of(tuned(run, one)));
      if (free &&
          zero::step_seconds(settings.back(), model, run.options.ranks, rates) > longest_step_s)
        break;
    }
  zero::SearchOptions options = search_options(run, rates, seconds);
  zero::Search search = search_list(run, settings, options);
  const bool found = !search.fitting.empty();
  if (!found) {  // then the variants that take less memory, until some fit
    options.seconds = std::numeric_limits<double>::infinity();
    options.enough = 8;
    zero::Search smaller = search_list(run, variants, options);
    search.fitting = std::move(smaller.fitting);
    search.rest.insert(search.rest.end(), smaller.rest.begin(), smaller.rest.end());
  }
  Plans plans{.whole = !found || search.complete};
  for (const zero::PlannedSetting& one : search.fitting)
    plans.fitting.push_back(planned_of(run, one));
  for (const zero::PlannedSetting& one : search.rest) plans.rest.push_back(planned_of(run, one));
  std::ranges::stable_sort(plans.fitting, [&](const Planned& a, const Planned& b) {
    return a.samples_per_s(run) > b.samples_per_s(run);
  });
  std::ranges::stable_sort(plans.rest, {}, &Planned::load);
  return plans;
}

Plans plan_largest(const Run& run, const zero::StepRates& rates) {
  const bool solved = !may_vary(run.options, "--train-batch-size");
  const std::vector<int64_t> divisors = solved ? micro_batches_of(run) : std::vector<int64_t>{};
  Plans plans;
  std::vector<int> stages = stages_of(run);
  for (int stage : stages) {
    Tuning tuning = run.options;
    tuning.engine.stage = stage;
    if (stage == 3 && run.options.offload.cpu_offload && may_vary(run.options, "--offload-param"))
      tuning.engine.offload.parameter = Space::host;
    const auto of_size = [&](int64_t index) {
      const int64_t size = solved ? divisors[static_cast<size_t>(index)] : index + 1;
      return planned(run, with_micro_batch(tuning, size, run), rates);
    };
    const int64_t count =
        largest_fitting(solved ? static_cast<int64_t>(divisors.size()) : largest_count,
                        [&](int64_t size) { return of_size(size - 1).fits; });
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
  constexpr double disk = 1e9;     // bytes/s, a rough rate of NVMe; trials measure the real one
  constexpr double slowest = 1e9;  // used where the portable instruction set has no measurement
  const double peak = std::max({matmul_peak_or_zero(device, run.options.engine.compute),
                                matmul_peak_or_zero(device, DType::f32), slowest});
  const auto side_by_side = static_cast<double>(std::min<int64_t>(
      run.options.ranks, std::max(1, available_cores() / device.traits().threads)));
  // Ranks that are threads share the machine. A received byte is read and written, and so is a
  // byte that is copied to "the host".
  const auto ranks = static_cast<double>(run.options.ranks);
  const double memory = measure_memory_bandwidth(device) / ranks;
  return {.operations = reached * peak * side_by_side / ranks,
          .memory = memory,
          .wire = memory / 3.0,
          .link = memory / 2.0,
          .host = memory,
          .disk = disk / ranks};
}

}  // namespace zg::tools
