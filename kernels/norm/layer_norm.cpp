#include "zerograd/kernels/norm/layer_norm.h"

#include "zerograd/kernels/norm/norm_blocks.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// Checks the tensors of a norm: x [N, C] of a floating type, values per row [N], values per column
/// [C].
struct Rows {
  const char* op;
  const Tensor& x;

  Rows(const char* op, const Tensor& x) : op(op), x(x) {
    check_dtype(op, "x", x, floating);
    if (x.shape().rank() != 2)
      raise<ShapeError>("{}: x has shape {}; expected [N, C], view it as that", op, x.shape());
  }
  void like(const char* name, const Tensor& tensor) const {
    check(name, tensor, x.shape(), x.dtype());
  }
  void residual(const Tensor& residual, const Tensor& sum) const {
    if (residual) like("residual", residual);
    if (residual) like("sum", sum);
    if (sum && !residual)
      raise<ShapeError>("{}: sum is given without a residual; leave it absent", op);
  }
  void per_column(const char* name, const Tensor& tensor) const {
    check(name, tensor, {x.extent(1)}, x.dtype());
  }
  void column_sum(const char* name, const Tensor& tensor) const {
    check(name, tensor, {x.extent(1)}, accumulator(x.dtype()));
  }
  void statistic(const char* name, const Tensor& tensor) const {
    check(name, tensor, {x.extent(0)}, accumulator(x.dtype()));
  }

 private:
  void check(const char* name, const Tensor& tensor, const Shape& shape, DType dtype) const {
    check_shape(op, name, tensor, shape);
    check_dtype(op, name, tensor, dtype);
  }
};

void check(const Rows& rows, const LayerNormForward& a, bool centred) {
  rows.per_column("gamma", a.gamma);
  if (a.beta) rows.per_column("beta", a.beta);
  rows.like("y", a.y);
  rows.residual(a.residual, a.sum);
  if (centred) rows.statistic("mean", a.mean);
  rows.statistic("rstd", a.rstd);
}

void check(const Rows& rows, const LayerNormBackward& a, bool centred) {
  rows.like("dy", a.dy);
  rows.per_column("gamma", a.gamma);
  if (centred) rows.statistic("mean", a.mean);
  rows.statistic("rstd", a.rstd);
  if (a.dsum) rows.like("dsum", a.dsum);
  rows.like("dx", a.dx);
  if (a.dgamma) rows.column_sum("dgamma", a.dgamma);
  if (a.dbeta) rows.column_sum("dbeta", a.dbeta);
}

}  // namespace

void validate(const LayerNormForward& a) { check({"layer_norm_forward", a.x}, a, true); }
void validate(const LayerNormBackward& a) { check({"layer_norm_backward", a.x}, a, true); }
void validate(const RmsNormForward& a) {
  check({"rms_norm_forward", a.x}, as_layer_norm(a), /*centred=*/false);
}
void validate(const RmsNormBackward& a) {
  check({"rms_norm_backward", a.x}, as_layer_norm(a), /*centred=*/false);
}

namespace cpu {
int64_t workspace_bytes(const LayerNormBackward&, const Device::Traits&);
int64_t workspace_bytes(const RmsNormBackward&, const Device::Traits&);
}  // namespace cpu

namespace {

/// The partial sums of the blocks for dgamma and dbeta.
template <NormBlocks blocks_of(int64_t N)>
int64_t column_bytes(const LayerNormBackward& a, const Device::Traits&) {
  const int64_t wanted = (a.dgamma ? 1 : 0) + (a.dbeta ? 1 : 0);
  return blocks_of(a.x.extent(0)).blocks * wanted * a.x.extent(1) * int64_t{sizeof(float)};
}
template <NormBlocks blocks_of(int64_t N)>
int64_t column_bytes(const RmsNormBackward& a, const Device::Traits& traits) {
  return column_bytes<blocks_of>(as_layer_norm(a), traits);
}

}  // namespace

ZG_KERNEL(LayerNormForward, layer_norm_forward)
ZG_KERNEL(LayerNormBackward, layer_norm_backward, cpu::workspace_bytes,
          column_bytes<NormBlocks::on_cuda>, column_bytes<NormBlocks::on_hpu>)
ZG_KERNEL(RmsNormForward, rms_norm_forward)
ZG_KERNEL(RmsNormBackward, rms_norm_backward, cpu::workspace_bytes,
          column_bytes<NormBlocks::on_cuda>, column_bytes<NormBlocks::on_hpu>)

}  // namespace zg
