#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "zerograd/autograd/values.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/optimizers.h"

namespace zg::zero {

/// Optimizers for Values, which have no engine: their states, in memory beside the values.
///
///   ValuesOptimizer optimizer(values, {.weight_decay = 0.0f});  // or .optimizer = one of your own
///   for (int step = 0; step < 100; ++step) {
///     Tape tape = values.tape();
///     tape.backward(loss(tape));
///     optimizer.step(1e-2f);
///   }
class ZG_API ValuesOptimizer {
 public:
  /// `values` must outlive this. Throws ConfigError, Unsupported.
  ValuesOptimizer(zg::Values& values, const UpdateOptions& options);
  /// Updates the values by their gradients, which may have been clipped, and clears these. A
  /// parameter without a gradient keeps its value and states. Values are f32 or bf16, and states
  /// have the dtype of the value unless they declare one; otherwise DTypeError.
  void step(float rate);
  /// Writes the number of steps ("steps") and all states ("weight.moment1") as safetensors, beside
  /// Values::save().
  void save(const std::string& path);
  /// Reads them back. FileError, with nothing changed, if names, shapes or dtypes differ.
  void load(const std::string& path);

 private:
  std::vector<Tensor>& states_of(const Parameter& parameter);
  NamedTensors named();  ///< the states' memory, and the number of steps

  zg::Values& values_;
  const UpdateOptions options_;
  const Optimizers optimizers_;
  std::map<const Parameter*, std::vector<Tensor>> states_;
  int64_t steps_ = 0;
};

}  // namespace zg::zero
