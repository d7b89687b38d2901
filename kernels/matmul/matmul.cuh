#pragma once

#include "zerograd/kernels/elementwise/gelu.cuh"
#include "zerograd/kernels/matmul/matmul.h"

// Shared by matmul.cu (f32), matmul_mma.cu (bf16, f16) and matmul_cublaslt.cu: operands, and the
// epilogue that turns a sum into an element of c. The products are c = a b for each item of a
// batch, with a [M, K], b [K, N], c [M, N].
namespace zg::cuda {

/// An operand of a product. i is a row of a or a column of b, k the index that is summed over.
/// Element (i, k) of item n is at n * item_stride + i * row_stride + k. If `k_strided`, i is the
/// contiguous index: the element is at n * item_stride + k * row_stride + i.
struct Operand {
  const void* data;
  int64_t item_stride, row_stride;
  bool k_strided;
  __host__ __device__ int64_t along_rows() const { return k_strided ? 1 : row_stride; }
  __host__ __device__ int64_t along_k() const { return k_strided ? row_stride : 1; }
};

struct Product {
  Operand a, b;
  void *c, *pre_activation;
  const void* bias;
  int64_t M, N, K, ldc, stride_c, batch;
  bool accumulate;
  bool c_is_f32;  ///< else c has the dtype of a
  Activation activation;
};

/// Stores the sum as element `at` of c, after `accumulate` and the activation.
template <class C>
__device__ inline void store_element(const Product& p, float sum, int64_t at) {
  C* const destination = static_cast<C*>(p.c) + at;
  if (p.accumulate) sum += to_float(*destination);
  // The activation reads the rounded sum, which is what pre_activation keeps for backward.
  const C kept = from_float<C>(sum);
  if (p.pre_activation) static_cast<C*>(p.pre_activation)[at] = kept;
  switch (p.activation) {
    case Activation::none:
      *destination = kept;
      return;
    case Activation::gelu_tanh:
      *destination = from_float<C>(gelu<Activation::gelu_tanh>(to_float(kept)));
      return;
    case Activation::gelu_erf:
      *destination = from_float<C>(gelu<Activation::gelu_erf>(to_float(kept)));
      return;
  }
}

/// Adds the bias to a sum, applies the activation and stores the result at (row, column) of an
/// item's c; T is a's type.
template <class T>
__device__ inline void finish(const Product& p, float sum, int64_t item, int64_t row,
                              int64_t column) {
  if (p.bias) sum += to_float(static_cast<const T*>(p.bias)[column]);
  const int64_t at = item * p.stride_c + row * p.ldc + column;
  if (p.c_is_f32)
    store_element<float>(p, sum, at);
  else
    store_element<T>(p, sum, at);
}

/// One block for each tile of c and each item of the batch; at most 65535 items at a time, the
/// limit of a grid's z.
inline dim3 blocks_of(const Product& p, int tile) {
  constexpr int64_t most_batches = 65535;
  return dim3(blocks_for(p.N, tile).x, blocks_for(p.M, tile).x,
              static_cast<unsigned>(p.batch < most_batches ? p.batch : most_batches));
}

/// Computes the product with cuBLASLt if the library is installed and accepts it: f32, bf16 or f16,
/// rows and addresses aligned to 16 bytes. Otherwise it does nothing and returns false. The
/// algorithm is the library's first choice for the device and shape among those that add in a fixed
/// order; it is chosen once and cached. So equal calls on one device and library version give the
/// same bits. A call with row_sums is also refused if the library has no algorithm that computes
/// them; without them it may be accepted.
bool cublaslt_matmul(const Matmul&, Workspace, Stream&);

/// The count of the launch of a product. The library does not apply the activation.
inline Work matmul_work(const Matmul& m, const char* kernel, bool by_library = false) {
  OpCount count;
  adjust_count(count, m);
  if (by_library && m.pre_activation)
    count.bytes -= m.batch * m.M * m.N * static_cast<int64_t>(size_of(m.pre_activation.dtype()));
  return {"matmul", kernel, count};
}

/// Computes on the tensor cores; operands are bf16 or f16.
void mma_matmul(DType dtype, const Product&, const Work&, Stream&);

}  // namespace zg::cuda
