#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/tensor.h"

// What the cases of kernels are made of.
namespace zg::bench {

/// Uniform in [-1, 1), from a seed; repeats after 65521 elements, a prime, so that large operands
/// are there at once and no two rows are alike.
Tensor operand(const Shape& shape, DType dtype, const Device& device, uint64_t seed);
/// [n] i32, uniform in [0, vocabulary).
Tensor random_ids(int64_t n, int64_t vocabulary, const Device& device);

std::string by(const std::vector<int64_t>& extents);  ///< "1024x768"
/// Bytes of so many elements.
double bytes_of(int64_t numel, DType dtype);

}  // namespace zg::bench
