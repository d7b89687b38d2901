#include "zerograd/kernels/reduce/numbers.cuh"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

/// Sums of floating types are accumulated in f64, of integers in 64 bits with wraparound.
template <class X>
using Sum = std::conditional_t<std::is_integral_v<X>, unsigned long long, double>;

template <class X>
__device__ inline X stored(Sum<X> sum) {
  if constexpr (std::is_integral_v<X>)
    return static_cast<X>(sum);
  else
    return from_float<X>(static_cast<float>(sum));
}

/// One thread for each row and chunk (blockIdx.y); neighbouring threads have neighbouring rows.
/// Without y it writes the chunk's sum to `parts`; else it begins with the sum there.
template <class X>
__global__ void __launch_bounds__(threads)
    sum_chunks(const X* x, X* y, Sum<X>* parts, SumChunks n, bool reversed) {
  const int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= n.rows) return;
  const int64_t begin = row / n.inner * n.extent * n.inner + row % n.inner;
  const int64_t first = int64_t{blockIdx.y} * n.chunk, last = min(first + n.chunk, n.extent);
  Sum<X>* part = parts ? parts + int64_t{blockIdx.y} * n.rows + row : nullptr;
  Sum<X> sum = y && part ? *part : 0;
  for (int64_t i = first; i < last; ++i) {
    const int64_t at = begin + (reversed ? n.extent - 1 - i : i) * n.inner;
    sum += static_cast<Sum<X>>(widened(x[at]));
    if (y) y[at] = stored<X>(sum);
  }
  if (!y) *part = sum;
}

/// Replaces the sum of each chunk by that of all chunks before it, one thread for each row.
template <class T>
__global__ void __launch_bounds__(threads) sum_before(T* parts, int64_t rows, int64_t chunks) {
  const int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= rows) return;
  T before = 0;
  for (int64_t at = row; at < rows * chunks; at += rows) {
    const T sum = before + parts[at];
    parts[at] = before;
    before = sum;
  }
}

}  // namespace

void cumsum(const CumulativeSum& a, Workspace workspace, Stream& stream) {
  const SumChunks n(a.x.shape(), a.axis);
  if (a.y.numel() == 0) return;
  visit_number(a.x.dtype(), [&]<class X>(X) {
    auto* parts = reinterpret_cast<Sum<X>*>(n.chunks > 1 ? workspace.data : nullptr);
    const dim3 rows = blocks_for(n.rows, threads);
    const auto chunks = [&](X* y) {
      launch({"cumsum", "sum_chunks", y ? operand_bytes(a) : a.x.bytes(), a.x.numel()},
             sum_chunks<X>, {dim3(rows.x, static_cast<unsigned>(n.chunks)), dim3(threads)}, stream,
             static_cast<const X*>(a.x.data<X>()), y, parts, n, a.reversed);
    };
    if (parts) {
      chunks(nullptr);
      launch({"cumsum", "sum_before", 2 * n.scratch_bytes(), n.rows * n.chunks}, sum_before<Sum<X>>,
             {rows, dim3(threads)}, stream, parts, n.rows, n.chunks);
    }
    chunks(a.y.data<X>());
  });
}

}  // namespace zg::cuda
