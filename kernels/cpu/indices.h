#pragma once

#include <optional>

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
void check_indices(const char* op, const char* name, const Tensor& indices, int64_t bound,
                   std::optional<int64_t> ignored = {});

}  // namespace zg::cpu
