#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/tensor.h"

// Operands for the cases of kernels.
namespace zg::bench {

/// Uniform in [low, high), from a seed. Values repeat after 65521 elements, so that large operands
/// are filled quickly. 65521 is a prime, so no two rows are equal.
Tensor operand(const Shape& shape, DType dtype, const Device& device, uint64_t seed,
               double low = -1.0, double high = 1.0);
/// [n] i32, uniform in [0, vocabulary).
Tensor random_ids(int64_t n, int64_t vocabulary, const Device& device);

std::string extents_text(const std::vector<int64_t>& extents);  ///< "1024x768"
/// Bytes of `numel` elements.
double bytes_of(int64_t numel, DType dtype);

/// Relative rounding error of one operation: half an ulp.
constexpr double unit_roundoff(DType dtype) {
  return dtype == DType::f64    ? 0x1p-53
         : dtype == DType::bf16 ? 0x1p-8
         : dtype == DType::f16  ? 0x1p-11
                                : 0x1p-24;
}

/// Makes the operands of a case in one dtype on one device.
struct Operands {
  Device device;
  DType dtype;
  DType values;        ///< random values are rounded to this dtype, then converted to `dtype`
  int64_t offset = 0;  ///< elements between a multiple of 64 bytes and an operand

  Operands(Device on, DType in) : Operands(std::move(on), in, in) {}
  Operands(Device on, DType in, DType rounded_to)
      : device(std::move(on)), dtype(in), values(rounded_to) {}

  DType wide() const { return accumulator(dtype); }
  Tensor random(const Shape& shape, uint64_t seed, double low = -1.0, double high = 1.0) const;
  Tensor zeros(const Shape& shape) const { return shifted(Tensor::zeros(shape, dtype, device)); }
  /// Zeros in the accumulator dtype, for sums and statistics.
  Tensor sums(const Shape& shape) const { return shifted(Tensor::zeros(shape, wide(), device)); }

 private:
  Tensor shifted(const Tensor& tensor) const;  ///< the values, `offset` elements further
};

}  // namespace zg::bench
