#include <cmath>

#include "bench/op.h"
#include "zerograd/autograd/convolution.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/window/window.h"

namespace zg::bench {
namespace {

using Function = std::function<Var(std::span<const Var>, const Extents&)>;
using Variables = std::function<std::vector<Tensor>(const Operands&, const Extents&)>;

/// An op made of several kernels: its value and the gradients of its variables.
auto whole_op(const std::string& name, const Function& function, const Variables& variables) {
  return [=](const Operands& operands, const Extents& e) {
    const std::vector<Tensor> values = variables(operands, e);
    const std::vector<Var> constants(values.begin(), values.end());
    const Tensor y = operands.zeros(function(constants, e).shape());
    const Tensor dy = operands.random(y.shape(), 99);
    Call call{.kernel = name, .run = {}, .results = {{"y", y}}};
    for (const Tensor& value : values)
      call.results.push_back(
          {"gradient " + std::to_string(call.results.size() - 1), operands.zeros(value.shape())});
    call.run = [=, results = call.results] {
      Stream& stream = operands.device.compute();
      Tape tape(operands.device);
      std::vector<Var> in;
      for (const Tensor& value : values) in.push_back(tape.variable(value));
      const Var found = function(in, e);
      kernels::cast({found.value(), results[0].tensor}, stream);
      tape.backward({&found, 1}, {&dy, 1});
      for (size_t i = 0; i < in.size(); ++i)
        kernels::cast({tape.gradient(in[i]), results[1 + i].tensor}, stream);
    };
    return call;
  };
}

/// Sums of `terms` products below 1 stay below sqrt(terms) + 2. In bf16 and f16 the gradients of up
/// to `places` windows are rounded before they are added, and so is a sum before its bias.
std::function<Error(DType, const Extents&)> sums_of(int64_t (*terms)(const Extents&),
                                                    double places) {
  return [=](DType dtype, const Extents& e) {
    const auto count = static_cast<double>(terms(e));
    return Error{.absolute = 8.0 * unit_roundoff(accumulator(dtype)) * (count + 1) +
                             (places + 1) * unit_roundoff(dtype) * (std::sqrt(count) + 2)};
  };
}

Op composed(const std::string& name, std::vector<Extents> tested, const Function& function,
            const Variables& variables, int64_t (*terms)(const Extents&)) {
  return {.name = name,
          .kernels = {{.call = whole_op(name, function, variables),
                       .error = sums_of(terms, 9),
                       .is_whole_op = true}},
          .tested = std::move(tested),
          .function = function,
          .variables = variables};
}

/// e: N, channels in, T, channels out, K, groups, stride, padding, dilation, causal.
Op conv1d_op() {
  return composed(
      "conv1d",
      {{1, 1, 5, 1, 1, 1, 1, 0, 1, 0},
       {2, 4, 7, 4, 3, 4, 1, 0, 2, 1},
       {1, 4, 9, 6, 3, 2, 2, 2, 1, 0},
       {3, 3, 8, 3, 4, 3, 3, 2, 2, 0},
       {2, 6, 37, 5, 5, 1, 1, 4, 2, 0},
       {3, 7, 1029, 7, 4, 7, 1, 0, 1, 1}},
      [](std::span<const Var> in, const Extents& e) {
        return conv1d(in[0], in[1], in[2],
                      {.stride = e[6],
                       .padding = e[7],
                       .dilation = e[8],
                       .groups = e[5],
                       .causal = e[9] != 0});
      },
      [](const Operands& o, const Extents& e) -> std::vector<Tensor> {
        return {o.random({e[0], e[1], e[2]}, 1), o.random({e[3], e[1] / e[5], e[4]}, 2),
                o.random({e[3]}, 3)};
      },
      [](const Extents& e) { return e[0] * e[2] + (e[1] + e[3]) / e[5] * e[4]; });
}

/// e: N, channels in, H, W, channels out, rows, columns, groups, stride, padding, dilation. The
/// strides, paddings and dilations of columns are one more than those of rows, but for a stride of
/// 1.
Op conv2d_op() {
  return composed(
      "conv2d",
      {{1, 1, 3, 4, 2, 1, 2, 1, 1, 0, 1},
       {2, 2, 4, 5, 2, 2, 3, 2, 1, 1, 1},
       {1, 4, 5, 4, 2, 3, 2, 2, 2, 1, 1},
       {2, 3, 9, 11, 4, 3, 3, 1, 1, 1, 2},
       {1, 6, 30, 33, 8, 3, 5, 2, 3, 2, 1},
       {2, 5, 34, 67, 17, 3, 3, 1, 1, 1, 1}},
      [](std::span<const Var> in, const Extents& e) {
        const int64_t stride = e[8], padding = e[9];
        return conv2d(in[0], in[1], in[2],
                      {.stride = {stride, stride == 1 ? 1 : stride + 1},
                       .padding = {padding, padding + 1},
                       .dilation = {e[10], e[10] + 1},
                       .groups = e[7]});
      },
      [](const Operands& o, const Extents& e) -> std::vector<Tensor> {
        return {o.random({e[0], e[1], e[2], e[3]}, 1), o.random({e[4], e[1] / e[7], e[5], e[6]}, 2),
                o.random({e[4]}, 3)};
      },
      [](const Extents& e) { return e[0] * e[2] * e[3] + (e[1] + e[4]) / e[7] * e[5] * e[6]; });
}

/// e: N, channels in, H, W, channels out, rows, columns, groups, stride, padding, output padding.
Op conv_transpose2d_op() {
  return composed(
      "conv_transpose2d",
      {{1, 2, 2, 3, 2, 3, 2, 1, 2, 1, 1},
       {2, 2, 3, 2, 2, 2, 2, 2, 1, 0, 0},
       {1, 4, 3, 3, 4, 3, 3, 2, 3, 2, 2},
       {2, 5, 9, 17, 6, 4, 3, 1, 2, 1, 1}},
      [](std::span<const Var> in, const Extents& e) {
        return conv_transpose2d(
            in[0], in[1], in[2],
            {.stride = e[8], .padding = e[9], .output_padding = e[10], .groups = e[7]});
      },
      [](const Operands& o, const Extents& e) -> std::vector<Tensor> {
        return {o.random({e[0], e[1], e[2], e[3]}, 1), o.random({e[1], e[4] / e[7], e[5], e[6]}, 2),
                o.random({e[4]}, 3)};
      },
      [](const Extents& e) {
        return e[0] * (e[2] + 3) * (e[3] + 3) * 9 + (e[1] + e[4]) / e[7] * e[5] * e[6];
      });
}

/// e: N, channels, H, W, kernel, stride, padding.
Op pool_op(const std::string& name, const Function& function) {
  return composed(name,
                  {{1, 2, 5, 4, 2, 0, 0},
                   {2, 1, 6, 5, 3, 2, 1},
                   {1, 1, 5, 1030, 3, 2, 1},
                   {3, 3, 31, 33, 3, 2, 1}},
                  function, variables_of({{0, 1, 2, 3}}),
                  [](const Extents& e) { return e[4] * e[4]; });
}

/// e: N, channels, T, groups.
Op group_norm_op() {
  return composed(
      "group_norm", {{1, 2, 3, 1}, {2, 6, 4, 3}, {3, 32, 65, 8}},
      [](std::span<const Var> in, const Extents& e) {
        return group_norm(in[0], e[3], in[1], in[2]);
      },
      variables_of({{0, 1, 2}, {1}, {1}}), [](const Extents& e) { return 16 * e[0] * e[2]; });
}

/// Sums of windows, each way: of planes by a weight, and of a plane for each place. e: N, channels,
/// rows and columns of the larger planes, size, stride, padding, dilation.
Op window_sum_op() {
  const auto call = [](bool transposed) {
    return calls(kernels::window_reduce, [transposed](auto& o, auto& e) {
      const WindowAxis axis{e[4], e[5], e[6], e[7]};
      const auto count = [&](int64_t extent) {
        return (extent + 2 * e[6] - e[7] * (e[4] - 1) - 1) / e[5] + 1;
      };
      const int64_t H = count(e[2]), W = count(e[3]), places = e[4] * e[4];
      if (transposed)
        return WindowReduce{.x = o.random({e[1], places, e[0], H, W}, 1),
                            .y = o.zeros({e[0], e[1], e[2], e[3]}),
                            .window = {axis, axis},
                            .transposed = true};
      return WindowReduce{.x = o.random({e[0], e[1], e[2], e[3]}, 1),
                          .weight = o.random({e[1], places}, 2),
                          .bias = o.random({e[1]}, 3),
                          .y = o.zeros({e[0], e[1], H, W}),
                          .window = {axis, axis},
                          .divisor = 3};
    });
  };
  const auto error = sums_of([](const Extents& e) { return e[4] * e[4]; }, -1);
  return {.name = "window_reduce",
          .kernels = {{.call = call(false), .error = error}, {.call = call(true), .error = error}},
          .tested = {{1, 1, 1, 1, 1, 1, 0, 1},
                     {2, 3, 7, 5, 3, 1, 1, 2},
                     {1, 2, 9, 34, 2, 3, 1, 1},
                     {2, 2, 20, 1030, 3, 2, 2, 1},
                     {3, 2, 31, 33, 3, 1, 1, 1}}};
}

}  // namespace

OpFamily window_ops() {
  return {
      window_sum_op(),
      conv1d_op(),
      conv2d_op(),
      conv_transpose2d_op(),
      pool_op("avg_pool2d",
              [](std::span<const Var> in, const Extents& e) {
                return avg_pool2d(in[0], e[4], e[5], e[6], e[5] != 2);
              }),
      pool_op("max_pool2d", [](std::span<const Var> in,
                               const Extents& e) { return max_pool2d(in[0], e[4], e[5], e[6]); }),
      group_norm_op()};
}

}  // namespace zg::bench
