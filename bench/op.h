#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bench/operands.h"
#include "zerograd/autograd/tape.h"
#include "zerograd/bench.h"
#include "zerograd/kernels/kernel.h"

// One declaration of an op (struct Op) is used three times: tests/kernels/ops_test.cpp compares its
// results on each backend with the plain CPU version, tests/autograd/ops_gradient_test.cpp checks
// its gradient, and `zerograd bench kernels` times it.
namespace zg::bench {

struct Sizes;

/// The extents of one case. Each op defines their order: a product has {M, N, K, ...}.
using Extents = std::vector<int64_t>;

/// One call of a kernel, with allocated operands.
struct Call {
  struct Result {
    std::string name;  ///< the operand's name: "dx"
    Tensor tensor;
  };
  std::string kernel;           ///< "gelu_forward"
  std::function<void()> run;    ///< queues the kernel on device.compute()
  std::vector<Result> results;  ///< tensors that the kernel writes
};

template <class Args>
Call call_of(const Kernel<Args>& kernel, const Args& args, const Device& device) {
  Call call{.kernel = kernel.name,
            .run = [&kernel, args, device] { kernel(args, device.compute()); },
            .results = {}};
  for (const Operand& operand : operands(args))
    if (operand.is_written && operand.tensor)
      call.results.push_back({operand.name, operand.tensor});
  return call;
}

/// Calls of a kernel on the arguments that `make(const Operands&, const Extents&)` allocates.
template <class Args, class Make>
auto calls(const Kernel<Args>& kernel, Make make) {
  return [&kernel, make = std::move(make)](const Operands& operands, const Extents& e) {
    const Args args = make(operands, e);
    return call_of(kernel, args, operands.device);
  };
}

/// Bounds of a result's error before it is rounded to its dtype: absolute + relative * |value|.
struct Error {
  double absolute = 0.0, relative = 0.0;
};

/// The error of `absolute` roundings of values near 1 and `relative` roundings of values near the
/// result, in the accumulator dtype.
std::function<Error(DType, const Extents&)> roundings(double absolute, double relative = 0.0);

/// Variables uniform in [low, high). `places` has, for each variable, the indices of its extents in
/// those of the case: {{0, 1}, {1}}.
std::function<std::vector<Tensor>(const Operands&, const Extents&)> variables_of(
    std::vector<std::vector<size_t>> places, double low = -1.0, double high = 1.0);

/// One kernel of an op.
struct OpKernel {
  /// Allocates the operands. Their values depend only on seeds and extents.
  std::function<Call(const Operands&, const Extents&)> call;
  /// The work of one run: the name, shape, FLOP and bytes of its row in the table. Absent: not
  /// timed.
  std::function<Work(DType, const Extents&)> work = {};
  /// The allowed error against the plain version in f64 on the same values. Absent: the result must
  /// have the same bits as the plain version in the same dtype.
  std::function<Error(DType, const Extents&)> error = {};
  bool is_whole_op = false;  ///< the call runs an op that is made of several kernels
};

/// An op of the library: its forward and backward kernels, and its function in autograd.
struct Op {
  std::string name;
  std::vector<OpKernel> kernels;
  std::vector<Extents> tested;
  std::vector<DType> dtypes = {DType::f64, DType::f32, DType::bf16, DType::f16};

  /// Cases of the benchmark. Absent: none.
  std::function<std::vector<Extents>(const Sizes&)> timed = {};
  std::vector<DType> timed_dtypes = {DType::f32, DType::bf16};

  /// The function that gradcheck() differentiates, and its variables. Absent: not differentiable.
  std::function<Var(std::span<const Var>, const Extents&)> function = {};
  std::function<std::vector<Tensor>(const Operands&, const Extents&)> variables = {};
};

/// Ops whose cases are timed together, all in f32 and then all in bf16.
using OpFamily = std::vector<Op>;

OpFamily product_ops();
OpFamily attention_ops();
OpFamily row_ops();      ///< layer_norm and others that work on rows
OpFamily element_ops();  ///< AdamW, gelu and others, element by element
OpFamily unary_ops();
OpFamily binary_ops();
OpFamily movement_ops();  ///< gather and others that read by an index
OpFamily window_ops();    ///< convolutions, pooling, group_norm
OpFamily cast_ops();
std::vector<OpFamily> every_op();  ///< all of these, in the order of the table

}  // namespace zg::bench
