#include "zerograd/kernels/norm/layer_norm.h"

#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/kernels/hpu/modules.h"
#include "zerograd/kernels/hpu/variant.h"
#include "zerograd/kernels/norm/norm_blocks.h"

namespace zg::hpu {
namespace {

/// The kernels with a work-group for each row.
Code team_code(const Tensor& x, const Stream& stream) {
  return module("layer_norm", x.dtype(), uses_sub_groups(stream) ? "sg16" : "");
}

int32_t columns_of(const Tensor& x) { return static_cast<int32_t>(x.extent(1)); }

/// Computes dgamma and dbeta; either may be absent.
void add_columns(const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd,
                 const Tensor& dgamma, const Tensor& dbeta, Workspace workspace, Stream& stream) {
  if (!dgamma && !dbeta) return;
  const int64_t N = x.extent(0);
  const int32_t C = columns_of(x);
  const NormBlocks cut = NormBlocks::on_hpu(N);
  float* const gamma_sums = dgamma ? reinterpret_cast<float*>(workspace.data) : nullptr;
  float* const beta_sums =
      dbeta ? reinterpret_cast<float*>(workspace.data) + (dgamma ? cut.blocks * C : 0) : nullptr;
  const Code code = team_code(x, stream);
  const int64_t groups = groups_for(C, 256);  // of 32 spans of 8 columns
  launch(stream, code, "norm_columns", {groups, cut.blocks}, dy.raw(), x.raw(), mean.raw(),
         rstd.raw(), gamma_sums, beta_sums, N, C, cut.rows);
  launch(stream, code, "add_parts", {groups, 2}, gamma_sums, dgamma.raw(), beta_sums, dbeta.raw(),
         cut.blocks, C);
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a, Workspace, Stream& stream) {
  launch(stream, team_code(a.x, stream), "layer_norm_forward", {a.x.extent(0)}, a.x.raw(),
         a.residual.raw(), a.gamma.raw(), a.beta.raw(), a.y.raw(), a.sum.raw(), a.mean.raw(),
         a.rstd.raw(), columns_of(a.x), a.epsilon);
}

void rms_norm_forward(const RmsNormForward& a, Workspace, Stream& stream) {
  launch(stream, team_code(a.x, stream), "rms_norm_forward", {a.x.extent(0)}, a.x.raw(),
         a.residual.raw(), a.gamma.raw(), a.y.raw(), a.sum.raw(), a.rstd.raw(), columns_of(a.x),
         a.epsilon);
}

void layer_norm_backward(const LayerNormBackward& a, Workspace workspace, Stream& stream) {
  launch(stream, team_code(a.x, stream), "layer_norm_backward", {a.x.extent(0)}, a.dy.raw(),
         a.x.raw(), a.gamma.raw(), a.dsum.raw(), a.mean.raw(), a.rstd.raw(), a.dx.raw(),
         columns_of(a.x), int32_t{a.rounds_twice});
  add_columns(a.dy, a.x, a.mean, a.rstd, a.dgamma, a.dbeta, workspace, stream);
}

void rms_norm_backward(const RmsNormBackward& a, Workspace workspace, Stream& stream) {
  launch(stream, team_code(a.x, stream), "rms_norm_backward", {a.x.extent(0)}, a.dy.raw(),
         a.x.raw(), a.gamma.raw(), a.dsum.raw(), a.rstd.raw(), a.dx.raw(), columns_of(a.x),
         int32_t{a.rounds_twice});
  add_columns(a.dy, a.x, Tensor(), a.rstd, a.dgamma, Tensor(), workspace, stream);
}

}  // namespace zg::hpu
