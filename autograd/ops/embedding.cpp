#include "zerograd/kernels/movement/embedding.h"

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/gradient.h"
#include "zerograd/autograd/ops/operand.h"

namespace zg {
namespace {

struct Places {
  int64_t T = 0, first_position = 0, C = 0;
};

void check_positions(const Tensor& weight, const Tensor& position, const Places& n) {
  check_alike("embedding", "weight", weight, "position", position);
  if (position.shape().rank() != 2 || position.extent(1) != n.C)
    refuse_shape("embedding", "position", position.shape(), "[P, " + std::to_string(n.C) + "]");
  if (n.first_position < 0 || n.first_position + n.T > position.extent(0))
    throw ShapeError("embedding: position " + position.shape().str() + " has no rows " +
                     std::to_string(n.first_position) + " to " +
                     std::to_string(n.first_position + n.T) +
                     "; expected a longer table or fewer tokens");
}

void backward_of_embedding(const Places& n, const BackwardPass& pass) {
  const Tensor ids = pass.saved(0), dy = pass.gradient_of_output();
  const InputGradient dweight(pass, 0, accumulator(dy.dtype()));
  const InputGradient dposition(pass, 1, accumulator(dy.dtype()));
  kernels::embedding_backward({.ids = ids,
                               .dy = dy.view({ids.numel(), n.C}),
                               .dweight = dweight.tensor(),
                               .dposition = dposition.tensor(),
                               .T = n.T,
                               .first_position = n.first_position},
                              pass.stream());
  dweight.accumulate();
  dposition.accumulate();
}

}  // namespace

Var embedding(const Tensor& ids, const Var& weight, const Var& position, int64_t first_position) {
  check_index("embedding", "ids", ids);
  if (ids.shape().rank() != 2) refuse_shape("embedding", "ids", ids.shape(), "rank 2: [B, T]");
  const Tensor table = floating_operand("embedding", "weight", weight);
  if (table.shape().rank() != 2)
    refuse_shape("embedding", "weight", table.shape(), "rank 2: [V, C]");
  const Tensor positions = position ? position.value() : Tensor();
  const int64_t B = ids.extent(0);
  const Places n{.T = ids.extent(1), .first_position = first_position, .C = table.extent(1)};
  if (positions) check_positions(table, positions, n);

  const Tensor flat_ids = ids.view({ids.numel()});
  const Tensor y = empty_like(table, {B, n.T, n.C});
  kernels::embedding_forward({.ids = flat_ids,
                              .weight = table,
                              .position = positions,
                              .y = y.view({ids.numel(), n.C}),
                              .T = n.T,
                              .first_position = first_position},
                             y.device().compute());
  return record("embedding", {weight, position}, y, {flat_ids}, n,
                [](const Places& p, const BackwardPass& pass) { backward_of_embedding(p, pass); });
}

}  // namespace zg
