#include "zerograd/kernels/loss/cross_entropy.h"

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/loss/projection_chunks.h"

namespace zg::hpu {

void cross_entropy_forward(const CrossEntropyForward& a, Workspace, Stream& stream) {
  const std::string kernel = std::string("cross_entropy_forward_") + name_of(a.targets.dtype());
  launch(stream, module("cross_entropy", a.logits.dtype()), kernel.c_str(), {a.logits.extent(0)},
         a.logits.raw(), a.targets.raw(), a.loss.raw(), a.log_sum.raw(), a.logits.extent(1),
         a.ignore_index, fault_place(stream), literal("cross_entropy_forward"), literal("targets"));
}

void cross_entropy_backward(const CrossEntropyBackward& a, Workspace, Stream& stream) {
  const std::string kernel = std::string("cross_entropy_backward_") + name_of(a.targets.dtype());
  launch(stream, module("cross_entropy", a.logits.dtype()), kernel.c_str(), {a.logits.extent(0)},
         a.logits.raw(), a.targets.raw(), a.log_sum.raw(), a.dloss.raw(), a.dlogits.raw(),
         a.logits.extent(1), a.ignore_index, fault_place(stream), literal("cross_entropy_backward"),
         literal("targets"));
}

// matmul computes the logits chunk by chunk; the kernels of projection_cross_entropy.cl turn a
// chunk into the loss and into dlogits.
void projection_cross_entropy(const ProjectionCrossEntropy& a, Workspace workspace,
                              Stream& stream) {
  const Code code = module("projection_cross_entropy", a.x.dtype());
  const ProjectionPlan plan = projection_plan(a, stream.traits());
  const LogitTiling& tiling = plan.tiling;
  const std::string index = std::string("_") + name_of(a.targets.dtype());
  std::byte* const sums = workspace.data + plan.sums;
  const auto multiply = [&](const Matmul& product) {
    kernels::matmul[Device::Type::hpu].function(
        product, {workspace.data + plan.product, workspace.bytes - plan.product}, stream);
  };
  if (tiling.V == 0 && a.dx) stream.fill_zero(a.dx.raw(), static_cast<size_t>(a.dx.bytes()));
  if (tiling.N == 0 && a.dweight)
    stream.fill_zero(a.dweight.raw(), static_cast<size_t>(a.dweight.bytes()));
  for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
    const int64_t rows = tiling.at(row, 0).rows;
    std::byte* const targets = a.targets.raw() + row * size_of(a.targets.dtype());
    tiling.for_each_chunk(row, [&](const LogitChunk& chunk) {
      const Tensor logits = plan.logits_of(workspace, chunk);
      plan.make_logits(workspace, chunk, stream, multiply);
      launch(stream, code, ("add_chunk" + index).c_str(), {rows}, logits.raw(), targets, sums,
             chunk.column, chunk.columns, chunk.distance);
    });
    launch(stream, code, ("write_loss" + index).c_str(), {groups_for(rows)}, sums, a.targets.raw(),
           a.loss.raw(), row, rows, tiling.V, a.ignore_index, fault_place(stream),
           literal("projection_cross_entropy"), literal("targets"));
    if (!plan.gradients) continue;
    tiling.for_each_chunk(row, [&](const LogitChunk& chunk) {
      const Tensor logits = plan.logits_of(workspace, chunk);
      const Tensor dlogits = plan.dlogits_of(workspace, chunk);
      launch(stream, code, ("logit_gradients" + index).c_str(), {rows}, logits.raw(), targets, sums,
             dlogits.raw(), static_cast<float>(a.gradient_factor), chunk.column, chunk.columns,
             chunk.distance, tiling.V, a.ignore_index);
      if (a.dx) multiply(plan.dx_product(dlogits, chunk));
      if (a.dweight) multiply(plan.dweight_product(dlogits, chunk));
    });
  }
}

}  // namespace zg::hpu
