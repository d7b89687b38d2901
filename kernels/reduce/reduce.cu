#include "zerograd/kernels/reduce/reduce.h"

#include <climits>

#include "zerograd/kernels/cuda/nest.cuh"
#include "zerograd/kernels/reduce/numbers.cuh"
#include "zerograd/kernels/reduce/reduce_chunks.h"

namespace zg::cuda {
namespace {

constexpr int threads = 256;

// Reductions over some axes of x (sum, mean, max). Memory bound: x is read once.
// A result is either computed by one block (reduce_blocks), if there are few results with many
// elements each, or by one thread (reduce_chunks). With few results and too few threads the
// elements are cut into chunks, whose partial results join_chunks combines in order. ReduceChunks
// decides only by the shape, so the bits depend only on x and its shape.

/// Sums of floating types are accumulated in f64, of integers in 64 bits with wraparound.
template <class X>
using SumOf = std::conditional_t<std::is_integral_v<X>, unsigned long long, double>;

template <class X>
struct Sum {
  using State = SumOf<X>;
  __device__ static State start() { return 0; }
  __device__ static State of(X x) {
    if constexpr (std::is_integral_v<X>)
      return static_cast<State>(static_cast<long long>(x));
    else
      return static_cast<State>(to_float(x));
  }
  __device__ static State join(State a, State b) { return a + b; }
};
template <class X>
struct Max {
  using State = std::conditional_t<std::is_integral_v<X>, long long, double>;
  __device__ static State start() {
    if constexpr (std::is_integral_v<X>)
      return LLONG_MIN;
    else
      return -INFINITY;
  }
  __device__ static State of(X x) { return static_cast<State>(widened(x)); }
  __device__ static State join(State a, State b) { return b > a || b != b ? b : a; }
};

/// Offsets in x: `kept` gives that of the first element of each result, `reduced` those of the
/// result's other elements from there.
struct Indexing {
  Nest<1> kept, reduced;
  /// Whether V neighbouring results have V neighbours as their elements, all on multiples of V.
  bool have_vectors(int V) const {
    bool all = kept.has_vectors(V) && kept.numel % V == 0;
    for (int axis = 0; axis < reduced.rank; ++axis) all = all && reduced.strides[axis][0] % V == 0;
    return all;
  }
};

template <class Y, class State>
__device__ inline Y result(State state, double scale) {
  if constexpr (std::is_integral_v<Y>)
    return static_cast<Y>(static_cast<long long>(state));
  else
    return from_float<Y>(static_cast<float>(static_cast<double>(state) * scale));
}

/// One block for each result. Thread i reduces elements i, i + 256, ...; then a tree joins the
/// threads.
template <class X, class Y, class Op>
__global__ void __launch_bounds__(threads)
    reduce_blocks(const X* x, Y* y, Indexing indexing, double scale) {
  using State = typename Op::State;
  __shared__ State parts[threads];
  int64_t begin[1], at[1];
  indexing.kept.locate(blockIdx.x, begin);
  State state = Op::start();
  for (int64_t i = threadIdx.x; i < indexing.reduced.numel; i += threads) {
    indexing.reduced.locate(i, at);
    state = Op::join(state, Op::of(x[begin[0] + at[0]]));
  }
  parts[threadIdx.x] = state;
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half)
      parts[threadIdx.x] = Op::join(parts[threadIdx.x], parts[threadIdx.x + half]);
  }
  if (threadIdx.x == 0) y[blockIdx.x] = result<Y>(parts[0], scale);
}

/// One thread for V results and a chunk of their elements. Neighbouring threads have neighbouring
/// results. Without `parts` there is one chunk, whose result goes to y.
template <class X, class Y, class Op, int V>
__global__ void __launch_bounds__(threads, 4)
    reduce_chunks(const X* x, Y* y, typename Op::State* parts, Indexing indexing, int64_t chunk,
                  double scale) {
  const int64_t first = int64_t{blockIdx.y} * chunk;
  const int64_t last = min(first + chunk, indexing.reduced.numel);
  indexing.kept.template each<V>([&](auto width, int64_t r, const int64_t(&begin)[1]) {
    constexpr int W = decltype(width)::value;
    Vec<typename Op::State, W> states;
#pragma unroll
    for (int k = 0; k < W; ++k) states.v[k] = Op::start();
    for (int64_t i = first; i < last; ++i) {
      int64_t at[1];
      indexing.reduced.locate(i, at);
      const auto values = load<W>(x + begin[0] + at[0]);
#pragma unroll
      for (int k = 0; k < W; ++k) states.v[k] = Op::join(states.v[k], Op::of(values.v[k]));
    }
    if (parts) return store(parts + int64_t{blockIdx.y} * indexing.kept.numel + r, states);
    Vec<Y, W> results;
#pragma unroll
    for (int k = 0; k < W; ++k) results.v[k] = result<Y>(states.v[k], scale);
    store(y + r, results);
  });
}

/// y[r] = the chunks of result r, joined in rising order.
template <class Y, class Op>
__global__ void __launch_bounds__(threads)
    join_chunks(const typename Op::State* parts, Y* y, int64_t results, int64_t chunks,
                double scale) {
  const int64_t r = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (r >= results) return;
  typename Op::State state = Op::start();
  for (int64_t c = 0; c < chunks; ++c) state = Op::join(state, parts[c * results + r]);
  y[r] = result<Y>(state, scale);
}

template <class X, class Y, class Op>
void run(const Reduce& a, Workspace workspace, Stream& stream) {
  const ReduceChunks chunks_plan(a.x.shape(), a.axes);
  const Indexing indexing{nest_of_axes<Nest<1>>(a.x.shape(), ~a.axes),
                          nest_of_axes<Nest<1>>(a.x.shape(), a.axes)};
  const double scale =
      a.op == ReduceOp::mean ? 1.0 / static_cast<double>(chunks_plan.elements) : 1.0;
  const X* x = a.x.data<X>();
  Y* y = a.y.data<Y>();
  if (chunks_plan.results == 0) return;
  const int64_t elements = a.x.numel();
  if (chunks_plan.group_each) {
    launch({"reduce", "reduce_blocks", operand_bytes(a), elements}, reduce_blocks<X, Y, Op>,
           {dim3(static_cast<unsigned>(chunks_plan.results)), dim3(threads)}, stream, x, y,
           indexing, scale);
    return;
  }
  auto* parts =
      reinterpret_cast<typename Op::State*>(chunks_plan.chunks > 1 ? workspace.data : nullptr);
  const int64_t bytes_of_parts = parts ? chunks_plan.scratch_bytes() : 0;
  const auto run_chunks = [&]<int V>(std::integral_constant<int, V>) {
    launch(
        {"reduce", "reduce_chunks", a.x.bytes() + (parts ? bytes_of_parts : a.y.bytes()), elements},
        reduce_chunks<X, Y, Op, V>,
        {dim3(blocks_for(chunks_plan.results, threads * V).x,
              static_cast<unsigned>(chunks_plan.chunks)),
         dim3(threads)},
        stream, x, y, parts, indexing, chunks_plan.chunk, scale);
  };
  constexpr int V = vector_width<X>;
  if (indexing.have_vectors(V) && starts_vector<V>(x) && starts_vector<V>(y))
    run_chunks(std::integral_constant<int, V>());
  else
    run_chunks(std::integral_constant<int, 1>());
  if (parts)
    launch({"reduce", "join_chunks", bytes_of_parts + a.y.bytes(),
            chunks_plan.results * chunks_plan.chunks},
           join_chunks<Y, Op>, {blocks_for(chunks_plan.results, threads), dim3(threads)}, stream,
           static_cast<const typename Op::State*>(parts), y, chunks_plan.results,
           chunks_plan.chunks, scale);
}

}  // namespace

void reduce(const Reduce& a, Workspace workspace, Stream& stream) {
  visit_number(a.x.dtype(), [&]<class X>(X) {
    const auto to = [&]<class Y>(Y) {
      if (a.op == ReduceOp::max)
        run<X, Y, Max<X>>(a, workspace, stream);
      else
        run<X, Y, Sum<X>>(a, workspace, stream);
    };
    if constexpr (std::is_integral_v<X>)
      visit_index(a.y.dtype(), to);
    else
      visit_floating(a.y.dtype(), to);
  });
}

}  // namespace zg::cuda
