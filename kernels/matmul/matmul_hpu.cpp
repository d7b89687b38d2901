#include "zerograd/kernels/matmul/matmul_hpu.h"

#include "zerograd/kernels/hpu/dpas.h"
#include "zerograd/kernels/hpu/variant.h"

namespace zg::hpu {
namespace {

constexpr int64_t tile = 64;  // rows and columns of c, as in matmul.cl and matmul_tiles.cl

/// As matmul.clh reads them.
int32_t flags_of(const Matmul& m) {
  return (m.accumulate ? 1 : 0) | (m.c.dtype() == DType::f32 ? 2 : 0) |
         (m.activation == Activation::gelu_tanh ? 4 : 0) |
         (m.activation == Activation::gelu_erf ? 8 : 0);
}

}  // namespace

void multiply(const Matmul& m, const Code& code, Stream& stream) {
  const int64_t lda = m.lda ? m.lda : m.transpose_a ? m.M : m.K;
  const int64_t ldb = m.ldb ? m.ldb : m.transpose_b ? m.K : m.N;
  const Long8 extents{m.M, m.N, m.K, m.ldc ? m.ldc : m.N, m.stride_c};
  const Long8 operands{m.stride_a, m.transpose_a ? 1 : lda, m.transpose_a ? lda : 1,
                       m.stride_b, m.transpose_b ? ldb : 1, m.transpose_b ? 1 : ldb};
  launch(stream, code, "matmul", {groups_for(m.N, tile), groups_for(m.M, tile), m.batch}, m.a.raw(),
         m.b.raw(), operands, m.c.raw(), m.pre_activation.raw(), m.bias.raw(), extents,
         flags_of(m));
}

void matmul(const Matmul& m, Workspace, Stream& stream) {
  const Variant variant = variant_of(stream);
  const DType dtype = m.a.dtype();
  if (variant == Variant::dpas && dtype == DType::bf16)
    multiply(m, module("matmul_tiles", dtype, dpas_variant(stream)), stream);
  else
    multiply(m, module("matmul", dtype, variant == Variant::portable ? "" : "sg16"), stream);
}

}  // namespace zg::hpu
