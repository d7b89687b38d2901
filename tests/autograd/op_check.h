#pragma once

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/autograd/gradcheck.h"
#include "zerograd/autograd/ops.h"

// Helpers for tests of ops: f64 inputs from a seed, and a gradient check that reports the location.
namespace zg::testing {

using Vars = std::span<const Var>;

/// The device shared by a test file's tensors. One thread: threads cost more than the tiny work.
inline const Device& shared_device() {
  static const Device device = Device::cpu(0, {.threads = 1, .separate = true});
  return device;
}

inline Tensor doubles(const Shape& shape, uint64_t seed, double low = -1.0, double high = 1.0) {
  return random_tensor(shape, DType::f64, shared_device(), seed, low, high);
}

inline Tensor indices(const std::vector<int64_t>& values, const Shape& shape) {
  return Tensor::from(values, shape, shared_device());
}

/// The values of a Var of any floating dtype.
inline std::vector<double> values_of(const Var& x) { return x.value().to_doubles(); }

/// Central differences with step 1e-6 in f64 have errors of about 1e-10 for values of order 1.
inline void check_gradient(const std::function<Var(Tape&, Vars)>& function,
                           const std::vector<Tensor>& inputs) {
  const GradcheckResult result = gradcheck(function, inputs, {.step = 1e-6, .tolerance = 1e-6});
  INFO(result.report);
  CHECK(result.ok);
}

/// The index of the element in `from` that is broadcast to element `place` (row-major) of `shape`.
inline size_t source_of(int64_t place, const Shape& shape, const Shape& from) {
  int64_t source = 0, stride = 1;
  for (int i = 1; i <= shape.rank(); ++i) {
    const int64_t index = place % shape[-i];
    place /= shape[-i];
    if (i > from.rank()) continue;
    source += (from[-i] == 1 ? 0 : index) * stride;
    stride *= from[-i];
  }
  return static_cast<size_t>(source);
}

}  // namespace zg::testing
