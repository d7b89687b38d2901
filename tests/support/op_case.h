#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "bench/operands.h"
#include "tests/support/tested_type.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/random.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/runtime/text/format.h"

// Inputs of tests from a seed, and comparison with doubles.
namespace zg::testing {

inline constexpr DType floating_dtypes[] = {DType::f64, DType::f32, DType::bf16, DType::f16};
inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Instruction sets this machine can run (up to ZG_CPU_ISA), in rising order.
inline std::vector<Isa> available_levels() {
  std::vector<Isa> levels;
  for (Isa isa : every_isa)
    if (isa <= best_isa()) levels.push_back(isa);
  return levels;
}

/// On the CPU a new cpu:0 for each instruction set, with two threads so that work is divided; else
/// the first device of the tested type.
inline std::vector<Device> devices_at_every_level(int threads = 2) {
  if (tested_type != Device::Type::cpu)
    return {device_of_rank(tested_type, 0, {.threads = threads})};
  std::vector<Device> devices;
  for (Isa isa : available_levels())
    devices.push_back(Device::cpu(0, {.threads = threads, .isa = isa}));
  return devices;
}

/// The same, and the emulator's CUDA device without sm_90a, for which kernels differ.
inline std::vector<Device> devices_of_every_generation() {
  constexpr int older = 7;
  std::vector<Device> devices = devices_at_every_level();
  if (tested_type == Device::Type::cuda && Device::count(tested_type) > older)
    devices.push_back(Device::cuda(older));
  return devices;
}

/// Only the CPU has f64, and HPU has no f16.
inline bool has_dtype(const Device& device, DType dtype) {
  return device.type() == Device::Type::cpu ||
         (dtype != DType::f64 && (dtype != DType::f16 || device.type() != Device::Type::hpu));
}
/// Those of `dtypes` that the device has.
inline std::vector<DType> on_device(std::span<const DType> dtypes, const Device& device) {
  std::vector<DType> found;
  for (DType dtype : dtypes)
    if (has_dtype(device, dtype)) found.push_back(dtype);
  return found;
}
inline std::vector<DType> on_device(std::initializer_list<DType> dtypes, const Device& device) {
  return on_device(std::span(dtypes.begin(), dtypes.size()), device);
}

inline std::string level_of(const Device& device) { return name_of(device.traits().isa); }

/// Uniform in [low, high), rounded to dtype; the same values for the same seed at any dtype.
inline Tensor random_tensor(const Shape& shape, DType dtype, const Device& device, uint64_t seed,
                            double low = -1.0, double high = 1.0) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] =
        low + (high - low) * uniform(Philox::block({static_cast<uint32_t>(i), 0, 0, 0}, seed)[0]);
  auto store = [&]<class T>(T) {
    std::vector<T> typed(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<T, bf16> || std::is_same_v<T, f16>)
        typed[i] = T(static_cast<float>(values[i]));
      else
        typed[i] = static_cast<T>(values[i]);
    }
    return Tensor::from(typed, shape, device);
  };
  switch (dtype) {
    case DType::f64:
      return store(double{});
    case DType::f32:
      return store(float{});
    case DType::bf16:
      return store(bf16{});
    case DType::f16:
      return store(f16{});
    case DType::i32:
      return store(int32_t{});
    case DType::i64:
      return store(int64_t{});
    default:
      return store(uint8_t{});
  }
}

using bench::unit_roundoff;

/// The largest |actual - expected| / (absolute + relative * |expected|); below 1 is within bounds.
/// NaN against a number counts as infinite.
inline double excess(const Tensor& actual, const std::vector<double>& expected, double absolute,
                     double relative = 0.0) {
  const std::vector<double> values = actual.to_doubles();
  if (values.size() != expected.size()) return INFINITY;
  double worst = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i]))) continue;
    const double ratio =
        std::fabs(values[i] - expected[i]) / (absolute + relative * std::fabs(expected[i]));
    if (!(ratio <= worst)) worst = std::isnan(ratio) ? INFINITY : ratio;
  }
  return worst;
}

inline std::vector<uint8_t> bytes_of(const Tensor& x) {
  return x.alias(x.byte_offset(), {x.bytes()}, DType::u8).to_host<uint8_t>();
}

/// A copy of x that begins `begin` elements behind an address that is aligned for any vector.
inline Tensor moved(const Tensor& x, int64_t begin) {
  const Tensor wide = Tensor::empty({begin + x.numel()}, x.dtype(), x.device());
  const Tensor copy = wide.flat(begin, x.numel()).view(x.shape());
  if (x.numel() > 0) x.device().compute().copy(copy.raw(), x.raw(), static_cast<size_t>(x.bytes()));
  return copy;
}

/// The result of a comparison. A failed CHECK prints the first element that differs.
struct SameBits {
  std::string difference;

  operator bool() const { return difference.empty(); }  // NOLINT: implicit, for CHECK and &&
  std::string str() const { return difference.empty() ? "the same bits" : difference; }
};

template <class T>
SameBits same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return {fmt::format("{} and {} elements", a.size(), b.size())};
  size_t first = a.size(), count = 0;
  for (size_t i = a.size(); i-- > 0;)
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) first = i, ++count;
  if (count == 0) return {};
  return {fmt::format("element {} of {} is {} and {}; {} differ", first, a.size(), a[first],
                      b[first], count)};
}

inline SameBits same_bits(const Tensor& a, const Tensor& b) {
  if (!a && !b) return {};
  if (!a || !b) return {"one tensor is absent"};
  if (a.shape() != b.shape() || a.dtype() != b.dtype())
    return {fmt::format("{} {} and {} {}", name_of(a.dtype()), a.shape().str(), name_of(b.dtype()),
                        b.shape().str())};
  if (bytes_of(a) == bytes_of(b)) return {};
  const SameBits values = same_bits(a.to_doubles(), b.to_doubles());
  return values ? SameBits{"NaNs of different bits"} : values;
}

}  // namespace zg::testing
