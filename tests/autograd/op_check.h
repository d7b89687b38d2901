#pragma once

#include "tests/support/error_message.h"
#include "tests/support/op_case.h"
#include "zerograd/autograd/grad.h"
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

/// Beginnings of names of fused ops that have no second derivative.
inline const char* const first_only[] = {
    "attention", "feed_forward", "gated_feed_forward", "projection_cross_entropy", "split_linears",
    "split_sum", "max_pool"};

/// Whether the gradients of grad() by other ops are those of backward. False if an op has no second
/// derivative.
inline bool check_composed(const std::function<Var(Tape&, Vars)>& function,
                           const std::vector<Tensor>& inputs) {
  Tape tape(inputs[0].device());
  std::vector<Var> in;
  for (const Tensor& input : inputs) in.push_back(tape.variable(input));
  const Var y = function(tape, in);
  if (!y.needs_gradient()) return true;
  const Var weights = random_tensor(y.shape(), DType::f64, shared_device(), 77);
  std::vector<Var> composed;
  try {
    composed = grad({&y, 1}, in, {.create_graph = true, .cotangents = {weights}});
  } catch (const Unsupported& error) {
    const std::string message = error.what();
    bool is_known = false;
    for (const std::string name : first_only)
      is_known = is_known || message.starts_with("grad: " + name);
    CAPTURE(message);
    CHECK(is_known);
    return false;
  }
  const std::vector<Var> fused = grad({&y, 1}, in, {.cotangents = {weights}});
  for (size_t i = 0; i < in.size(); ++i) {
    CAPTURE(i);
    CAPTURE(values_of(composed[i]));
    CAPTURE(values_of(fused[i]));
    CHECK(excess(composed[i].value(), values_of(fused[i]), 1e-12, 1e-12) < 1);
  }
  return true;
}

/// Central differences with step 1e-6 in f64 have errors of about 1e-10 for values of order 1. The
/// second derivatives are checked, too, but of ops in `first_only`.
inline void check_gradient(const std::function<Var(Tape&, Vars)>& function,
                           const std::vector<Tensor>& inputs) {
  const int orders = check_composed(function, inputs) ? 2 : 1;
  for (int order = 1; order <= orders; ++order) {
    const GradcheckResult result =
        gradcheck(function, inputs, {.step = 1e-6, .tolerance = 1e-6, .order = order});
    CAPTURE(order);
    INFO(result.report);
    CHECK(result.ok);
  }
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
