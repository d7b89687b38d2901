#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/tensor.h"

// Operands for the benchmark cases of kernels.
namespace zg::bench {

/// Uniform in [-1, 1), from a seed. Values repeat after 65521 elements, so large operands are
/// filled quickly. That is a prime, so no two rows are equal.
Tensor operand(const Shape& shape, DType dtype, const Device& device, uint64_t seed);
/// [n] i32, uniform in [0, vocabulary).
Tensor random_ids(int64_t n, int64_t vocabulary, const Device& device);

std::string by(const std::vector<int64_t>& extents);  ///< "1024x768"
/// Bytes of `numel` elements.
double bytes_of(int64_t numel, DType dtype);

}  // namespace zg::bench
