#include "tools/tune/tune.h"

#include <algorithm>
#include <vector>

#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/machine.h"

namespace zg::tools {

namespace {

using Clock = std::chrono::steady_clock;

// Later steps need no more memory than the third.
constexpr int64_t planned_steps = 3;

struct Load {
  const char* what;
  int64_t bytes, limit;  // limit 0: none
};

/// Predicted time of one step: the sum over its computations and transfers. Matrix products run at
/// 0.6 of their peak (a third more operations with activation checkpointing). Weights, update,
/// collectives and host offload run at the memory bandwidth, disk offload at 1 GB/s. `memory` comes
/// from a dry run with at most planned_micro_batches micro-batches.
double predicted_seconds(const Run& run, const RankMemory& memory, const Rates& rates) {
  const RunSpec& settings = run.options;
  const zero::Config& engine = settings.engine;
  const zero::OffloadOptions& offload = engine.offload;
  const auto W = static_cast<double>(run.options.ranks);
  const auto micro_batches = static_cast<double>(settings.accumulation);
  const auto counted_steps =
      static_cast<double>(memory.rows.back().step - memory.rows.front().step + 1) *
      std::min(1.0, static_cast<double>(planned_micro_batches) / micro_batches);
  const auto value_bytes = static_cast<double>(size_of(engine.compute));
  const double P = static_cast<double>(memory_record(run).parameters);

  const double again = run.options.activation_checkpoint ? 4.0 / 3.0 : 1.0;
  const double flops = again * models::matmul_flops_per_token(settings.model) *
                       static_cast<double>(settings.samples_per_step()) *
                       static_cast<double>(settings.model.block_size);

  double wire = 0.0, saved_on_host = 0.0;
  for (const WireCount& count : memory.wire) wire += static_cast<double>(count.bytes);
  for (const MemoryRow& row : memory.rows)
    saved_on_host = std::max(
        saved_on_host, static_cast<double>(row.spaces[static_cast<size_t>(Space::host)]
                                                     [static_cast<size_t>(Purpose::activation)]));
  // Reads value, gradient and states; writes all but gradients. Where every rank has the states of
  // all parameters, kernels read or write 18 times the gradients or what is made of them.
  const std::vector<zero::Optimizers::Array> states = zero::Optimizers(engine.update).arrays();
  const bool everywhere =
      std::ranges::any_of(states, [](const auto& state) { return state.everywhere; });
  const double update = (everywhere ? 21.0 : 3.0 + 2.0 * zero::moments_of(engine.update)) * 4.0;
  constexpr double moved = 2.0, added = 3.0;  // memory accesses per byte moved, and per byte added
  // Weights read twice, gradients written once.
  const double weights = 3.0 * value_bytes * P * W * micro_batches;
  double bytes = weights + update * P * (engine.stage == 0 || everywhere ? W : 1.0) +
                 added * wire / counted_steps * W;
  if (offload.gradient != Space::device) bytes += added * 4.0 * P * micro_batches;
  if (offload.optimizer != Space::device) bytes += moved * value_bytes * P;
  if (offload.parameter != Space::device)
    bytes += moved * value_bytes * P * (2.0 * micro_batches + 1.0);
  bytes += 2.0 * moved * saved_on_host * W * micro_batches;

  const auto disk = static_cast<double>(memory.file_io.read + memory.file_io.written);
  return flops / rates.flops + bytes / rates.memory + disk / counted_steps * W / rates.disk;
}

}  // namespace

double Planned::samples_per_s(const Run& run) const {
  return static_cast<double>(tuning.micro_batch * tuning.accumulation * run.options.ranks) /
         seconds;
}

Planned planned(const Run& run, const Tuning& tuning, const Rates& rates) {
  Run candidate = tuned(run, tuning);
  candidate.options.steps = planned_steps;
  candidate.options.accumulation = std::min(tuning.accumulation, planned_micro_batches);
  const RankMemory memory = dry_run(candidate, 0);
  Planned plan{.tuning = tuning, .needs = needs_of(memory)};
  candidate.options.accumulation = tuning.accumulation;
  plan.seconds = predicted_seconds(candidate, memory, rates);
  const DeviceOptions& limits = run.options.device_flags.device;
  const DiskBudget disk = disk_budget(run, plan.needs);
  const int64_t together = run.options.ranks * (plan.needs.device + plan.needs.host);
  for (const Load& load :
       {Load{"--device-memory", plan.needs.device, limits.memory_limit},
        Load{"--host-memory", plan.needs.host, limits.host_limit},
        Load{"the machine's free memory", together, available_memory_bytes()},
        Load{"--nvme-path's free space", disk.needed, std::max<int64_t>(1, disk.free)}}) {
    const double share = static_cast<double>(load.bytes) / static_cast<double>(load.limit);
    if (load.limit == 0 || share <= plan.load) continue;
    plan.load = share;
    plan.tight = load.what;
  }
  plan.fits = plan.load <= 1.0 && plan.needs.fit(limits);
  return plan;
}

Plans plan_all(const Run& run, const Rates& rates, double seconds, double longest_step_s) {
  const Clock::time_point begin = Clock::now();
  Plans plans;
  const std::vector<int64_t> sizes = micro_batches_of(run);
  const bool free = may_vary(run.options, "--train-batch-size");
  for (const Tuning& combination : combinations_of(run))
    for (int64_t size : sizes) {
      plans.whole = std::chrono::duration<double>(Clock::now() - begin).count() < seconds;
      if (!plans.whole && !plans.fitting.empty()) break;
      std::vector<Planned>& fitting = plans.fitting;
      const size_t before = fitting.size();
      for (const Tuning& one : smaller_variants(with_micro_batch(combination, size, run), run)) {
        const Planned plan = planned(run, one, rates);
        (plan.fits ? fitting : plans.rest).push_back(plan);
        if (plan.fits) break;
      }
      if (fitting.size() == before || (free && fitting.back().seconds > longest_step_s)) break;
    }
  std::ranges::stable_sort(plans.fitting, [&](const Planned& a, const Planned& b) {
    return a.samples_per_s(run) > b.samples_per_s(run);
  });
  std::ranges::stable_sort(plans.rest,
                           [](const Planned& a, const Planned& b) { return a.load < b.load; });
  return plans;
}

Plans plan_largest(const Run& run, const Rates& rates) {
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

Rates measured_rates(const Run& run) {
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
  return {.flops = reached * peak * side_by_side,
          .memory = measure_memory_bandwidth(device),
          .disk = disk};
}

}  // namespace zg::tools
