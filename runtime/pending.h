#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/tensor.h"

// Values and marks of queued work: a program makes them at once and waits for them later.
namespace zg {

/// The value of a one-element tensor, on its way to the host. Unlike Tensor::item() it does not
/// wait for the device, so a program can queue more work before it reads the value:
///
///     const PendingItem loss(output.value());
///     ...                                     // backward, an update
///     device.compute().synchronize();
///     print(loss.value());
class ZG_API PendingItem {
 public:
  explicit PendingItem(const Tensor& tensor);  ///< throws ShapeError unless it has one element
  /// Call it after synchronize() of the device's compute stream. Before that, and if synchronize()
  /// threw, an accelerator's value is NaN, or -1 for integers. On a meta device the value is 0.
  double value() const;

 private:
  std::shared_ptr<const std::vector<std::byte>> bytes_;
  DType dtype_;
};

/// A point in the queued work of a stream, like an event of CUDA.
class ZG_API StreamMark {
 public:
  virtual ~StreamMark() = default;
  /// Blocks the calling thread until the work that was queued before the mark is done. Any thread
  /// may call it. Throws the errors that kernels found; Stream::synchronize() throws them, too.
  virtual void wait() = 0;
  /// Work that is queued on `stream` from now on runs after the mark. Does not wait.
  virtual void make_wait(Stream& stream) = 0;
};

/// The end of the work that is queued on the device's compute stream. Null: the work is done
/// already, because the device works synchronously, or because its backend has no marks and this
/// call has waited.
ZG_API std::unique_ptr<StreamMark> mark_compute(const Device& device);

}  // namespace zg
