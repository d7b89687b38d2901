#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer.h"
#include "zerograd/zero/states/storage.h"
#include "zerograd/zero/states/transfer.h"

// How an update reads and writes the states of a storage, wherever they are stored.
namespace zg::zero {

/// The tensors that an update reads and writes: masters, then Storage::states, values in low
/// precision, and gradient accumulators. The latter are absent at stage 0, because every rank needs
/// those of all.
using StateTensors = std::vector<Tensor>;
inline constexpr size_t masters_lane = 0, first_state_lane = 1;
inline size_t values_lane(const Storage& storage) {
  return first_state_lane + storage.states.size();
}
inline size_t sums_lane(const Storage& storage) { return values_lane(storage) + 1; }

StateTensors states_of(const Storage& storage);
/// Elements [begin, begin + numel) of one tensor, relative to storage.state_begin. Absent if the
/// tensor is, or has not all of them.
Tensor part_of(const Storage& storage, const StateTensors& states, size_t lane, int64_t begin,
               int64_t numel);
/// The states before this index, relative to storage.state_begin, are of GatheredOptimizer.
int64_t whole_in(const Storage& storage);

/// ZeRO-Offload: the CPU updates states that are stored on the host of an accelerator. Gradient
/// accumulators are copied from the device and parameters to it: 6 bytes for each element in bf16.
/// An update on the device would transfer all states in both directions.
bool is_updated_by_host(const Storage& storage);
/// Whether masters or states are stored outside of the device's memory.
bool is_offloaded(const Storage& storage);

Streaming::Lane lane_of(const Storage& storage, const StateTensors& states, size_t lane);
/// True if some state of the storage goes through a buffer.
bool streams(const Storage& storage);
/// Number of elements that are updated at a time. Chunks end on multiples of the alignment.
int64_t step_of(int64_t numel, bool streams, const Config& config);
int64_t step_of(const Storage& storage, const Config& config);

/// Elements that are updated together, after those of GatheredOptimizer: of one optimizer, and one
/// parameter if it needs whole parameters.
struct Chunk {
  int64_t begin, numel;              ///< begin: relative to Storage::state_begin
  size_t optimizer = 0;              ///< index in Optimizers::all()
  const Parameter* whole = nullptr;  ///< the parameter; null: a range of elements
};
std::vector<Chunk> chunks_of(const Storage& storage, const Config& config);
/// The tensors of a chunk.
Streaming::Part part_of(const Storage& storage, const StateTensors& states, const Chunk& chunk);

/// Appends the ranges of a chunk: one for adjacent parameters with equal numbers, or one for each
/// parameter if it is needed whole or rounded stochastically, because the random bits depend on its
/// name. `states` are those of its elements, as StateTensors; absent ones stay absent.
void append(const Storage& storage, const Chunk& chunk, const Tensor& gradients,
            std::span<const Tensor> states, const UpdateOptions& options,
            std::vector<OptimizerRange>& to);

/// The operands of kernels::optimizer_update: the first states are its moments.
std::vector<OptimizerTensor> tensors_of(std::span<const OptimizerRange> ranges);

/// A stream that runs CPU kernels at once, on the caller's thread, on host memory of any device.
/// The caller must have waited for the device's own work on that memory.
class HostStream final : public Stream {
 public:
  explicit HostStream(const Device& device) : device_(device), traits_(device.traits()) {
    traits_.backend = Device::Type::cpu;
  }
  /// Its kernels take the memory that they would take on `stream`, and compute nothing.
  static HostStream idle(const Stream& stream) {
    HostStream idle(stream.device());
    idle.traits_ = stream.traits();
    idle.is_idle_ = true;
    return idle;
  }
  Device device() const override { return device_; }
  const Device::Traits& traits() const override { return traits_; }
  Device::Type type() const override {
    return is_idle_ || device_.type() == Device::Type::meta ? Device::Type::meta
                                                            : Device::Type::cpu;
  }
  Trace* trace() const override { return device_.trace(); }
  const char* name() const override { return "host"; }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* to, size_t bytes) override;

 private:
  const Device device_;
  Device::Traits traits_;
  bool is_idle_ = false;
};

}  // namespace zg::zero
