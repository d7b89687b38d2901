#include <math_constants.h>

#include "zerograd/kernels/reduce/numbers.cuh"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

/// Sums of floating types are accumulated in f64, of integers in 64 bits with wraparound.
template <class X>
struct Sums {
  using State = std::conditional_t<std::is_integral_v<X>, unsigned long long, double>;
  using Y = X;
  static constexpr bool has_values = false;
  __device__ static State start() { return 0; }
  __device__ static State of(X x, int64_t) { return static_cast<State>(widened(x)); }
  __device__ static State joined(State a, State b) { return a + b; }
  __device__ static Y stored(State sum) {
    if constexpr (std::is_integral_v<X>)
      return static_cast<X>(sum);
    else
      return from_float<X>(static_cast<float>(sum));
  }
};

template <class X>
struct Largest {
  struct State {
    std::conditional_t<std::is_integral_v<X>, X, float> value;
    int64_t place;
  };
  using Y = int64_t;
  static constexpr bool has_values = true;
  __device__ static State start() {
    if constexpr (std::is_integral_v<X>)
      return {std::numeric_limits<X>::min(), 0};
    else
      return {-CUDART_INF_F, 0};
  }
  __device__ static State of(X x, int64_t place) { return {widened(x), place}; }
  __device__ static State joined(State a, State b) {
    return b.value >= a.value || b.value != b.value ? b : a;
  }
  __device__ static Y stored(State best) { return best.place; }
  __device__ static X value(State best) {
    if constexpr (std::is_integral_v<X>)
      return best.value;
    else
      return from_float<X>(best.value);
  }
};

/// One thread for each row and chunk (blockIdx.y); neighbouring threads have neighbouring rows.
/// Without y it writes the chunk's state to `parts`; else it begins with the state there.
template <class Op, class X>
__global__ void __launch_bounds__(threads)
    scan_chunks(const X* x, typename Op::Y* y, X* values, typename Op::State* parts, ScanChunks n,
                bool reversed) {
  const int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= n.rows) return;
  const int64_t begin = row / n.inner * n.extent * n.inner + row % n.inner;
  const int64_t first = int64_t{blockIdx.y} * n.chunk, last = min(first + n.chunk, n.extent);
  typename Op::State* part = parts ? parts + int64_t{blockIdx.y} * n.rows + row : nullptr;
  typename Op::State state = Op::start();
  if (y && part) state = *part;
  for (int64_t i = first; i < last; ++i) {
    const int64_t place = reversed ? n.extent - 1 - i : i, at = begin + place * n.inner;
    state = Op::joined(state, Op::of(x[at], place));
    if (!y) continue;
    y[at] = Op::stored(state);
    if constexpr (Op::has_values) values[at] = Op::value(state);
  }
  if (!y) *part = state;
}

/// Replaces the state of each chunk by that of all chunks before it, one thread for each row.
template <class Op>
__global__ void __launch_bounds__(threads)
    scan_before(typename Op::State* parts, int64_t rows, int64_t chunks) {
  const int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= rows) return;
  typename Op::State before = Op::start();
  for (int64_t at = row; at < rows * chunks; at += rows) {
    const typename Op::State state = Op::joined(before, parts[at]);
    parts[at] = before;
    before = state;
  }
}

template <class Op, class X>
void run(const Scan& a, const ScanChunks& n, Workspace workspace, Stream& stream) {
  auto* parts = reinterpret_cast<typename Op::State*>(n.chunks > 1 ? workspace.data : nullptr);
  X* values = a.values ? a.values.data<X>() : nullptr;
  const dim3 rows = blocks_for(n.rows, threads);
  const auto chunks = [&](typename Op::Y* y) {
    launch({"scan", "scan_chunks", y ? operand_bytes(a) : a.x.bytes(), a.x.numel()},
           scan_chunks<Op, X>, {dim3(rows.x, static_cast<unsigned>(n.chunks)), dim3(threads)},
           stream, static_cast<const X*>(a.x.data<X>()), y, values, parts, n, a.reversed);
  };
  if (parts) {
    chunks(nullptr);
    launch({"scan", "scan_before", 2 * n.scratch_bytes(), n.rows * n.chunks}, scan_before<Op>,
           {rows, dim3(threads)}, stream, parts, n.rows, n.chunks);
  }
  chunks(a.y.data<typename Op::Y>());
}

}  // namespace

void scan(const Scan& a, Workspace workspace, Stream& stream) {
  const ScanChunks n(a.x.shape(), a.axis, a.finds_places());
  if (a.y.numel() == 0) return;
  visit_number(a.x.dtype(), [&]<class X>(X) {
    if (a.finds_places())
      run<Largest<X>, X>(a, n, workspace, stream);
    else
      run<Sums<X>, X>(a, n, workspace, stream);
  });
}

}  // namespace zg::cuda
