#include "bench/operands.h"

#include <algorithm>

#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/random.h"

namespace zg::bench {
namespace {

/// Uniform in [low, low + width), from a seed.
Tensor random_values(int64_t n, DType dtype, const Device& device, uint64_t seed, double low,
                     double width) {
  std::vector<float> values(static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        width * uniform(Philox::block({static_cast<uint32_t>(i), 0, 0, 0}, seed)[0]) + low);
  const Tensor wide = Tensor::from(values, {n}, device);
  if (dtype == DType::f32) return wide;
  const Tensor narrow = Tensor::empty({n}, dtype, device);
  kernels::cast({.x = wide, .y = narrow}, device.compute());
  return narrow;
}

}  // namespace

Tensor operand(const Shape& shape, DType dtype, const Device& device, uint64_t seed, double low,
               double high) {
  constexpr int64_t period = 65521;
  const Tensor tensor = Tensor::empty(shape, dtype, device);
  const int64_t numel = tensor.numel();
  const Tensor values =
      random_values(std::min(period, numel), dtype, device, seed, low, high - low);
  for (int64_t begin = 0; begin < numel; begin += period) {
    const int64_t count = std::min(period, numel - begin);
    copy(values.flat(0, count), tensor.flat(begin, count), device.compute());
  }
  return tensor;
}

Tensor random_ids(int64_t n, int64_t vocabulary, const Device& device) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] =
        static_cast<int32_t>(uniform(Philox::block({static_cast<uint32_t>(i), 1, 0, 0}, 1)[0]) *
                             static_cast<double>(vocabulary));
  return Tensor::from(ids, {n}, device);
}

Tensor Operands::random(const Shape& shape, uint64_t seed, double low, double high) const {
  const Tensor rounded = operand(shape, values, device, seed, low, high);
  if (dtype == values) return shifted(rounded);
  const Tensor converted = Tensor::empty(shape, dtype, device);
  kernels::cast({.x = rounded, .y = converted}, device.compute());
  return shifted(converted);
}

Tensor Operands::shifted(const Tensor& tensor) const {
  if (offset == 0) return tensor;
  const int64_t numel = tensor.numel();
  const Tensor place = Tensor::empty({offset + numel}, tensor.dtype(), device).flat(offset, numel);
  copy(tensor, place, device.compute());
  return place.view(tensor.shape());
}

std::string extents_text(const std::vector<int64_t>& extents) {
  std::string text;
  for (int64_t extent : extents) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

double bytes_of(int64_t numel, DType dtype) {
  return static_cast<double>(numel) * static_cast<double>(size_of(dtype));
}

}  // namespace zg::bench
