#include "bench/case.h"
#include "bench/element_rows.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/movement/movement.h"

namespace zg::bench {
namespace {

Op cast_op(DType to, std::vector<DType> timed_dtypes) {
  const auto call = calls(kernels::cast, [to](auto& operands, auto& e) {
    return Cast{.x = operands.random({e[0]}, 1, -100.0, 100.0),
                .y = Tensor::zeros({e[0]}, to, operands.device)};
  });
  const auto work = [to](DType from, const Extents& e) {
    return element_work(std::string("cast to ") + name_of(to),
                        {.flops = 0.0,
                         .read_bytes = static_cast<double>(size_of(from)),
                         .written_bytes = static_cast<double>(size_of(to))})(from, e);
  };
  return {.name = std::string("cast to ") + name_of(to),
          .kernels = {{.call = call, .work = work}},
          .tested = tested_lengths,
          .dtypes = {DType::f32, DType::bf16},
          .timed = elements(&Sizes::flat),
          .timed_dtypes = std::move(timed_dtypes)};
}

Op where_op() {
  const auto call = calls(kernels::where, [](auto& operands, auto& e) {
    const Tensor a = operands.random({e[0]}, 1), b = operands.random({e[0]}, 2);
    const Tensor condition = Tensor::zeros({e[0]}, DType::boolean, operands.device);
    kernels::binary({.op = BinaryOp::less, .a = a, .b = b, .y = condition},
                    operands.device.compute());
    return Where{.condition = condition, .a = a, .b = b, .y = operands.zeros({e[0]})};
  });
  return {.name = "where",
          .kernels = {{.call = call}},
          .tested = tested_lengths,
          .function =
              [](std::span<const Var> in, const Extents& e) {
                // A condition that does not depend on the variables of the gradient check.
                const Operands operands(in[0].value().device(), in[0].dtype());
                const Var even(operands.random({e[0]}, 3));
                return where(even < 0.0, in[0], in[1]);
              },
          .variables = variables_in({{-1.0, 1.0}, {-1.0, 1.0}})};
}

/// Row numbers in [V, C], a random one for each of [N, C] elements; e: N, C, V.
Tensor row_ids(const Extents& e, const Device& device) {
  return random_ids(e[0] * e[1], e[2], device).view({e[0], e[1]});
}

/// [N, C] rows of [V, C], each element from the row that its index names.
Op gather_op() {
  const auto call = calls(kernels::gather, [](auto& operands, auto& e) {
    return Gather{.x = operands.random({e[2], e[1]}, 1),
                  .index = row_ids(e, operands.device),
                  .y = operands.zeros({e[0], e[1]}),
                  .axis = 0};
  });
  return {.name = "gather",
          .kernels = {{.call = call}},
          .tested = {{1, 1, 1}, {5, 3, 4}, {31, 33, 7}, {3, 1023, 65}},
          .function =
              [](std::span<const Var> in, const Extents& e) {
                return gather(in[0], 0, row_ids(e, in[0].value().device()));
              },
          .variables = variables_of({{2, 1}})};
}

Op scatter_add_op() {
  const auto call = calls(kernels::scatter_add, [](auto& operands, auto& e) {
    return ScatterAdd{.x = operands.random({e[0], e[1]}, 1),
                      .index = row_ids(e, operands.device),
                      .y = operands.random({e[2], e[1]}, 2),
                      .axis = 0};
  });
  return {.name = "scatter_add",
          // N + 1 terms below 1 in the accumulator.
          .kernels = {{.call = call,
                       .error =
                           [](DType dtype, const Extents& e) {
                             return Error{.absolute = unit_roundoff(accumulator(dtype)) *
                                                      static_cast<double>(2 * e[0] + 8)};
                           }}},
          .tested = {{1, 1, 1}, {5, 3, 4}, {31, 33, 7}, {3, 1023, 65}},
          .function =
              [](std::span<const Var> in, const Extents& e) {
                return scatter_add(in[0], 0, row_ids(e, in[0].value().device()), in[1]);
              },
          .variables = variables_of({{2, 1}, {0, 1}})};
}

}  // namespace

OpFamily cast_ops() {
  return {cast_op(DType::bf16, {DType::f32}), cast_op(DType::f32, {DType::bf16}),
          cast_op(DType::i32, {}), cast_op(DType::i64, {})};
}

OpFamily movement_ops() { return {where_op(), gather_op(), scatter_add_op()}; }

}  // namespace zg::bench
