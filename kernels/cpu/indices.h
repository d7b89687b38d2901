#pragma once

#include <optional>

#include "runtime/tensor.h"

namespace zg::cpu {

/// Throws ShapeError naming the first value of `indices` (i32 | i64) outside [0, bound) and its
/// place; `ignored` is allowed anywhere.
void check_indices(const char* op, const char* name, const Tensor& indices, int64_t bound,
                   std::optional<int64_t> ignored = {});

}  // namespace zg::cpu
