#pragma once

#include <optional>

#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/text/format.h"

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

/// Throws ShapeError for the first value of `indices` (i32 | i64) outside [0, bound), with its
/// position. The value `ignored` is always allowed.
inline void check_indices(const char* op, const char* name, const Tensor& indices, int64_t bound,
                          std::optional<int64_t> ignored = {}) {
  const int64_t n = indices.numel();
  const auto are_valid = [&](const auto* all) {  // without branches, so that it has vectors
    bool is_wrong = false;
    for (int64_t i = 0; i < n; ++i)
      is_wrong |= static_cast<uint64_t>(int64_t{all[i]}) >= static_cast<uint64_t>(bound);
    return !is_wrong;
  };
  if (indices.dtype() == DType::i64 ? are_valid(indices.data<int64_t>())
                                    : are_valid(indices.data<int32_t>()))
    return;
  const Indices values(indices);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t value = values[i];
    if ((value >= 0 && value < bound) || value == ignored) continue;
    raise<ShapeError>("{}: {} holds {} at element {}; expected 0 to {}{}", op, name, value, i,
                      bound - 1, ignored ? fmt::format(", or {} to ignore it", *ignored) : "");
  }
}

}  // namespace zg::cpu
