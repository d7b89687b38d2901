#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "zerograd/runtime/api.h"

// Products of sizes that come from files, flags and programs. They are not in shape.h, because
// every translation unit includes shape.h.
namespace zg {

/// 2^60 - 1: the bytes of this many elements of eight bytes fit into int64_t.
constexpr int64_t largest_product = INT64_MAX / 8;

/// The product of sizes; 1 for none. Absent if a size is negative, or if the product of all sizes
/// that are not 0 is above largest_product.
ZG_API std::optional<int64_t> checked_product(std::span<const int64_t> sizes);

/// Returns the same product. Throws ShapeError, whose message begins with `what`, where the
/// function above returns no value.
ZG_API int64_t checked_product(std::initializer_list<int64_t> sizes, const char* what);

}  // namespace zg
