#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/lanes.h"
#include "zerograd/zero/states/storage.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::zero {

/// Reads states while the engine continues, as a snapshot for a checkpoint does.
class StateReader {
 public:
  /// Returns when elements [0, end) of the storage's trainable array have been read.
  virtual void wait_until_read(const Storage& storage, int64_t end) = 0;
  virtual void wait_until_read() = 0;  ///< until everything has been read
  /// Until what shares memory with this tensor has been read.
  virtual void wait_until_read(const Tensor& tensor) = 0;

 protected:
  ~StateReader() = default;
};

/// Sums over the gradients of a data axis since the last step, which are accumulated and not
/// averaged. They are on the device and may not be complete: work that needs them is queued.
struct GradientSums {
  Tensor all;                          ///< i64: limbs(), then non_finite()
  std::shared_ptr<Streaming> buffers;  ///< that queued work still reads

  Tensor limbs() const { return all.flat(0, SumOfSquares::limb_count); }
  /// By index in the store: how many elements of a parameter's gradient are infinite or NaN.
  Tensor non_finite() const {
    return all.flat(SumOfSquares::limb_count, all.numel() - SumOfSquares::limb_count);
  }
};
/// Collective on the data axis.
GradientSums sum_gradients(std::span<const Storage> storages, const ParameterStore& store,
                           const Config& config, const Device& device, Communicator& comm);

/// Statistics of the gradients of all ranks.
struct GradientSummary {
  std::vector<int64_t> limbs;  ///< of the exact sum of squares over finite gradients
  /// The first parameter in store order with an infinity or NaN.
  std::optional<std::string> non_finite;

  /// Does not depend on an order.
  double sum_of_squares() const { return value_of_limbs(limbs.data()); }
};
/// Waits for the sums. `mesh` is null when there is only a data axis. Over a mesh the result is the
/// whole model's: a parameter that several tensor ranks have is counted once, and `non_finite` is
/// of the lowest pipeline stage that has one.
GradientSummary summarise(const GradientSums& sums, const ParameterStore& store,
                          const Device& device, const Mesh* mesh);

/// Whether a step needs no wait of the host between gradients and update: a kernel computes the
/// clip factor from the sums, and the update reads it from the device's memory. Otherwise the host
/// decides: on CPU; if it updates states or streams them; over a mesh, where parts of the
/// model have sums of different parameters; and for optimizers that need whole parameters or are
/// not fused.
bool device_decides(std::span<const Storage> storages, const Optimizers& optimizers,
                    const Device& device, const Mesh* mesh);

/// Runs the optimizer on the states that the ZeRO stage assigns to this rank, then gathers the
/// parameters that stay whole. A parameter without a gradient is updated with a zero gradient. A
/// skipped step changes nothing but has the same collectives, so memory and traffic do not depend
/// on values. If `reader` is not null, a state is overwritten only after it has been read. Storages
/// that are updated already take the same memory for buffers. `buffers`: reused; null: new ones.
void update(std::span<Storage> storages, const Optimizers& optimizers, const OptimizerStep& step,
            const Config& config, const Device& device, Communicator& comm,
            StateReader* reader = nullptr, std::shared_ptr<StreamingBuffers> buffers = nullptr);

}  // namespace zg::zero
