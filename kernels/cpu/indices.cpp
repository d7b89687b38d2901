#include "zerograd/kernels/cpu/indices.h"

#include <string>

#include "zerograd/runtime/error.h"

namespace zg::cpu {

void check_indices(const char* op, const char* name, const Tensor& indices, int64_t bound,
                   std::optional<int64_t> ignored) {
  const Indices values(indices);
  for (int64_t i = 0; i < indices.numel(); ++i) {
    const int64_t value = values[i];
    if ((value >= 0 && value < bound) || value == ignored) continue;
    throw ShapeError(std::string(op) + ": " + name + " holds " + std::to_string(value) +
                     " at element " + std::to_string(i) + "; expected 0 to " +
                     std::to_string(bound - 1) +
                     (ignored ? ", or " + std::to_string(*ignored) + " to ignore it" : ""));
  }
}

}  // namespace zg::cpu
