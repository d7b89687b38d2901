#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/device.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/storage.h"
#include "zerograd/zero/states/transfer.h"

// How an update reads and writes the states of a storage, wherever they are stored.
namespace zg::zero {

/// Indices of the tensors that the optimizer reads and writes. At stage 0 `sums` is absent, because
/// every rank needs the accumulators of all.
enum StateIndex : size_t { masters, moment1, moment2, low_precision, sums, state_count };
using StateTensors = std::array<Tensor, state_count>;

StateTensors states_of(const Storage& storage);
/// Elements [begin, begin + numel) of one state, relative to storage.state_begin; absent if the
/// state is. The range of moment2 must not begin before storage.moment2_begin.
Tensor part_of(const Storage& storage, const StateTensors& states, size_t state, int64_t begin,
               int64_t numel);
/// The states before this index, relative to storage.state_begin, are of parameters that the
/// optimizer needs whole.
int64_t whole_in(const Storage& storage);

/// ZeRO-Offload: the CPU updates states that are stored on the host of an accelerator. Gradient
/// accumulators are copied from the device and parameters to it: 6 bytes for each element in bf16.
/// An update on the device would transfer all states in both directions.
bool is_updated_by_host(const Storage& storage);

Streaming::Lane lane_of(const Storage& storage, const StateTensors& states, size_t state);
/// True if some state of the storage goes through a buffer.
bool streams(const Storage& storage);
/// Number of elements that are updated at a time. Chunks end on multiples of the alignment.
int64_t step_of(int64_t numel, bool streams, const Config& config);
int64_t step_of(const Storage& storage, const Config& config);

/// Appends the tensors that are updated in elements [begin, begin + gradients.numel()) of the
/// storage's flat array: one for each range of equal numbers. With stochastic rounding one for
/// each parameter, because the random bits depend on its name.
void append(const Storage& storage, int64_t begin, const Tensor& gradients,
            std::span<const Tensor> states, const UpdateOptions& options,
            std::vector<OptimizerTensor>& to);

/// The numbers of one update.
struct OptimizerStep {
  float gradient_scale;
  Tensor scale;  ///< if the device decides: the factor (OptimizerUpdate::scale), NaN to skip
  float rate;
  Betas betas;
  int64_t step;  ///< counts from 1, without skipped steps
  bool skipped = false;
};

/// A stream that runs CPU kernels at once, on the caller's thread, on host memory of any device.
/// The caller must have waited for the device's own work on that memory.
class HostStream final : public Stream {
 public:
  explicit HostStream(const Device& device) : device_(device), traits_(device.traits()) {
    traits_.backend = Device::Type::cpu;
  }
  Device device() const override { return device_; }
  const Device::Traits& traits() const override { return traits_; }
  Device::Type type() const override {
    return device_.type() == Device::Type::meta ? Device::Type::meta : Device::Type::cpu;
  }
  Trace* trace() const override { return device_.trace(); }
  const char* name() const override { return "host"; }
  void synchronize() override {}
  void copy(void* to, const void* from, size_t bytes) override;
  void fill_zero(void* to, size_t bytes) override;

 private:
  const Device device_;
  Device::Traits traits_;
};

}  // namespace zg::zero
