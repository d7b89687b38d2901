#pragma once

#include <optional>
#include <string>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/tensor.h"

namespace zg::cpu {

/// Elements of an i32 or i64 tensor.
class Indices {
 public:
  explicit Indices(const Tensor& tensor)
      : data_(tensor.raw()), wide_(tensor.dtype() == DType::i64) {}
  int64_t operator[](int64_t i) const {
    return wide_ ? reinterpret_cast<const int64_t*>(data_)[i]
                 : reinterpret_cast<const int32_t*>(data_)[i];
  }

 private:
  const std::byte* data_;
  bool wide_;
};

/// Throws ShapeError naming the first value of `indices` (i32 | i64) outside [0, bound) and its
/// place; `ignored` is allowed anywhere.
inline void check_indices(const char* op, const char* name, const Tensor& indices, int64_t bound,
                          std::optional<int64_t> ignored = {}) {
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
