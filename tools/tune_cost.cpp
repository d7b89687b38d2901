#include <algorithm>

#include "tools/planner.h"
#include "tools/tune_plan.h"
#include "zerograd/kernels/peak.h"
#include "zerograd/models/gpt.h"

namespace zg::tools {

Rates measured_rates(const Run& run) {
  DeviceOptions options = run.options.place.device;
  options.memory_limit = options.host_limit = 0;
  const Device device = Device::cpu(0, options);
  // Fraction of the matmul peak that whole steps of large models reach.
  constexpr double reached = 0.6;
  constexpr double drive = 1e9;    // bytes/s, a rough rate of NVMe; trials measure the real one
  constexpr double slowest = 1e9;  // used where the portable instruction set has no measurement
  const double peak =
      std::max({matmul_peak_or_zero(device, run.settings.optimisation.engine.compute),
                matmul_peak_or_zero(device, DType::f32), slowest});
  const auto side_by_side = static_cast<double>(std::min<int64_t>(
      run.options.ranks, std::max(1, available_cores() / device.traits().threads)));
  return {.flops = reached * peak * side_by_side,
          .memory = measure_memory_bandwidth(device),
          .drive = drive};
}

double predicted_seconds(const Run& run, const RankMemory& memory, const Rates& rates) {
  const Settings& settings = run.settings;
  const zero::Config& engine = settings.optimisation.engine;
  const zero::OffloadOptions& offload = engine.offload;
  const auto W = static_cast<double>(run.options.ranks);
  const auto micro_batches = static_cast<double>(settings.accumulation);
  const auto walked = static_cast<double>(memory.rows.back().step - memory.rows.front().step + 1) *
                      std::min(1.0, static_cast<double>(walked_micro_batches) / micro_batches);
  const auto value_bytes = static_cast<double>(size_of(engine.compute));
  const double P = static_cast<double>(memory_record(run, {}).parameters);

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
  constexpr double adam = 7.0 * 4.0;  // reads value, gradient and moments; writes all but gradients
  constexpr double moved = 2.0, added = 3.0;  // memory accesses per byte moved, and per byte added
  // Weights read twice, gradients written once.
  const double weights = 3.0 * value_bytes * P * W * micro_batches;
  double bytes = weights + adam * P * (engine.stage == 0 ? W : 1.0) + added * wire / walked * W;
  if (offload.gradient != Space::device) bytes += added * 4.0 * P * micro_batches;
  if (offload.optimizer != Space::device) bytes += moved * value_bytes * P;
  if (offload.parameter != Space::device)
    bytes += moved * value_bytes * P * (2.0 * micro_batches + 1.0);
  bytes += 2.0 * moved * saved_on_host * W * micro_batches;

  const auto drive = static_cast<double>(memory.io.read + memory.io.written);
  return flops / rates.flops + bytes / rates.memory + drive / walked * W / rates.drive;
}

}  // namespace zg::tools
