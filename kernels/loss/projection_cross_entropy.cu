#include "zerograd/kernels/cuda/rows.cuh"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/kernels/matmul/matmul.h"

// Cross-entropy of logits = x weight^T [N, V] without holding all logits: matmul computes them for
// a block of rows, all columns at once (LogitLimits::for_gpus). loss_of_rows turns them into the
// loss and into dlogits, which matmul multiplies for dx and adds to dweight.
namespace zg::cuda {
namespace {

constexpr const char* op = "projection_cross_entropy";  // for the host
constexpr FaultSite site = FaultSite::projection_cross_entropy_targets;

constexpr int width = 8;  // logits that a thread handles at a time: one vector of bf16 gradients
// Shared memory of a block for its logits. Two such blocks fit a multiprocessor of sm_80 and above,
// with 164 KiB or more. An H100 handles 264 rows at a time. Their logits that do not fit in shared
// memory are 32 MB if V is 50257; its L2 cache has 50 MB.
constexpr int shared_bytes = 80 << 10;

/// The running log-sum-exp of some logits. Milakov, Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct OnlineLogSum {
  float max, sum;  ///< sum of exp(logit - max)

  /// The number that is subtracted for a maximum. Minus infinity minus itself would be NaN.
  __device__ static float shift_of(float maximum) {
    return maximum == -CUDART_INF_F ? 0.0f : maximum;
  }
  template <int n>
  __device__ void add(const float (&x)[n]) {
    float largest = max;
#pragma unroll
    for (int k = 0; k < n; ++k) largest = fmaxf(largest, x[k]);  // NaN is kept by the sum
    const float shift = shift_of(largest);
    float added = sum * expf(max - shift);
#pragma unroll
    for (int k = 0; k < n; ++k) added += expf(x[k] - shift);
    max = largest;
    sum = added;
  }
  /// The log-sum-exp of the logits of all threads of a team.
  template <int warps>
  __device__ OnlineLogSum of_team() const {
    OnlineLogSum all;
    all.max = block_max<warps>(max);
    all.sum = block_sum<warps>(sum * expf(max - shift_of(all.max)));
    return all;
  }
};

/// The logits of one row that a thread handles, `width` neighbours in each of `passes` passes; a
/// pass covers `width` logits for each thread of the team. Shared memory keeps those of the first
/// passes, so that they are read from global memory once.
template <int warps>
struct RowPasses {
  static constexpr int threads = Row<warps>::threads;
  float* kept;  ///< of the team: [kept_passes][width / 4][threads] vectors of 4
  int kept_passes;
  int first;  ///< index of the thread in the team

  __device__ float* place(int pass, int part) const {
    return kept + ((pass * (width / 4) + part) * threads + first) * 4;
  }
  __device__ void read(const float* x, int pass, float (&values)[width]) const {
    const Vec<float, width> from = load<width>(x + (int64_t{pass} * threads + first) * width);
#pragma unroll
    for (int k = 0; k < width; ++k) values[k] = from.v[k];
  }
  __device__ void keep(int pass, const float (&values)[width]) const {
#pragma unroll
    for (int part = 0; part < width / 4; ++part)
      store(place(pass, part), Vec<float, 4>{values[part * 4], values[part * 4 + 1],
                                             values[part * 4 + 2], values[part * 4 + 3]});
  }
  /// Reads the kept logits, or reads x again.
  __device__ void read_again(const float* x, int pass, float (&values)[width]) const {
    if (pass >= kept_passes) return read(x, pass, values);
#pragma unroll
    for (int part = 0; part < width / 4; ++part) {
      const Vec<float, 4> from = load<4>(static_cast<const float*>(place(pass, part)));
#pragma unroll
      for (int k = 0; k < 4; ++k) values[part * 4 + k] = from.v[k];
    }
  }
};

/// loss[row + n] of row n of logits [rows, V], which are `distance` apart, and, unless dlogits is
/// null, dlogits = (softmax(logits) - one_hot(target)) * factor in rows `gradient_distance` apart.
/// A team of threads for each row, which it reads from memory once, and from shared memory or L2 a
/// second time. Memory bound: 4 + sizeof(T) bytes an element. dlogits may begin where logits begin,
/// if their rows do: row n of dlogits is then the first part of row n of logits, in T.
template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    loss_of_rows(const float* logits, const Index* targets, float* loss, T* dlogits, float factor,
                 int64_t first_row, int64_t rows, int64_t V, int64_t distance,
                 int64_t gradient_distance, int kept_passes, int64_t ignored, Fault* fault) {
  const Row<warps> row;
  if (row.n >= rows) return;  // the whole team
  constexpr int threads = Row<warps>::threads;
  const float* const x = logits + row.n * distance;
  const int team = static_cast<int>(threadIdx.x) / threads;
  const RowPasses<warps> part{dynamic_shared<float>() + team * kept_passes * width * threads,
                              kept_passes, row.first};
  const int vectors = static_cast<int>(V / width);
  const int passes = (vectors + threads - 1) / threads;

  OnlineLogSum sums{-CUDART_INF_F, 0.0f};
  constexpr int at_once = 2;  // passes whose loads are in flight at a time
  for (int pass = 0; pass < passes; pass += at_once) {
    float values[at_once][width];
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      if ((pass + k) * threads + row.first < vectors) {
        part.read(x, pass + k, values[k]);
      } else {
#pragma unroll
        for (float& value : values[k]) value = -CUDART_INF_F;
      }
    }
#pragma unroll
    for (int k = 0; k < at_once; ++k) {
      if (pass + k < kept_passes) part.keep(pass + k, values[k]);
      sums.add(values[k]);
    }
  }
  // The last V % width logits, one a thread.
  const int64_t last = int64_t{vectors} * width + row.first;
  const bool has_last = last < V && row.first < width;
  const float last_value[1] = {has_last ? x[last] : -CUDART_INF_F};
  if (has_last) sums.add(last_value);

  const bool is_counted =
      has_target(targets, first_row + row.n, V, ignored, row.first == 0, site, fault);
  const int64_t target = is_counted ? int64_t{targets[first_row + row.n]} : -1;
  const float target_value = is_counted ? x[target] : 0.0f;  // before dlogits are written over it
  const OnlineLogSum all = sums.of_team<warps>();
  // Subtract the two large terms first; adding the small logarithm to one of them would round it.
  if (row.first == 0)
    loss[first_row + row.n] = is_counted ? (all.max - target_value) + logf(all.sum) : 0.0f;
  if (!dlogits) return;

  T* const y = dlogits + row.n * gradient_distance;
  const float log_sum = all.max + logf(all.sum);
  // Exact near a probability of 1. Computed once: a branch for each element would cost more.
  const T gradient_of_target = from_float<T>(expm1f(target_value - log_sum) * factor);
  const auto gradient = [&](float value, int64_t column) {
    const float probability = expf(value - log_sum);
    const T other = from_float<T>(is_counted ? probability * factor : 0.0f);
    return column == target ? gradient_of_target : other;
  };
  if constexpr (warps == 1)
    __syncwarp();  // all lanes have read the target's logit and the last ones
#pragma unroll 1
  for (int pass = 0; pass < passes; ++pass) {
    float values[width];
    const int vector = pass * threads + row.first;
    const bool is_inside = vector < vectors;
    if (is_inside) part.read_again(x, pass, values);
    // dlogits may overwrite logits. A pass of narrower gradients overwrites logits of passes up to
    // this one, so all threads must have read these.
    if constexpr (warps > 1) {
      if (pass >= kept_passes) __syncthreads();
    }
    if (!is_inside) continue;
    Vec<T, width> results;
#pragma unroll
    for (int k = 0; k < width; ++k) results.v[k] = gradient(values[k], int64_t{vector} * width + k);
    store(y + int64_t{vector} * width, results);
  }
  if (has_last) y[last] = gradient(last_value[0], last);
}

/// Launches loss_of_rows for a block of rows.
template <class T, class Index>
void add_loss(const ProjectionCrossEntropy& a, const ProjectionPlan& plan, const LogitChunk& chunk,
              Workspace workspace, Stream& stream) {
  const int64_t elements = chunk.rows * chunk.columns;
  const bool has_gradients = plan.gradients && elements > 0;  // without columns there is no scratch
  const float* const logits =
      elements > 0 ? plan.logits_of(workspace, chunk).data<float>() : nullptr;
  T* const dlogits = has_gradients ? plan.dlogits_of(workspace, chunk).data<T>() : nullptr;
  constexpr int64_t size = sizeof(T), row_bytes = sizeof(Index) + sizeof(float);
  const int64_t bytes =
      elements * (int64_t{sizeof(float)} + (dlogits ? size : 0)) + chunk.rows * row_bytes;
  with_row_warps(chunk.columns, [&](auto team) {
    constexpr int warps = decltype(team)::value, teams = row_warps / warps;
    constexpr int64_t pass = int64_t{width} * Row<warps>::threads;  // elements
    constexpr int64_t most = shared_bytes / (teams * pass * int64_t{sizeof(float)});
    const int64_t kept =
        dlogits ? std::min((chunk.columns / width * width + pass - 1) / pass, most) : 0;
    Grid grid = row_grid<warps>(chunk.rows);
    grid.shared = static_cast<size_t>(kept * teams * pass) * sizeof(float);
    launch({op, "loss_of_rows", bytes, elements}, loss_of_rows<T, Index, warps>, grid, stream,
           logits, static_cast<const Index*>(a.targets.data<Index>()), a.loss.data<float>(),
           dlogits, static_cast<float>(a.gradient_factor), chunk.row, chunk.rows, chunk.columns,
           chunk.distance, chunk.distance * plan.dlogits_step, static_cast<int>(kept),
           a.ignore_index, fault_place(stream));
  });
}

template <class T, class Index>
void run(const ProjectionCrossEntropy& a, Workspace workspace, Stream& stream) {
  const ProjectionPlan plan = projection_plan(a, stream.traits());
  const LogitTiling& tiling = plan.tiling;
  const auto multiply = [&](const Matmul& product) {
    kernels::matmul[Device::Type::cuda].function(
        product, {workspace.data + plan.product, workspace.bytes - plan.product}, stream);
  };
  for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
    const LogitChunk chunk = tiling.at(row, 0);
    if (tiling.V > 0) plan.make_logits(workspace, chunk, stream, multiply);
    add_loss<T, Index>(a, plan, chunk, workspace, stream);
    if (!plan.gradients || tiling.V == 0) continue;
    const Tensor dlogits = plan.dlogits_of(workspace, chunk);
    if (a.dx) multiply(plan.dx_product(dlogits, chunk));
    if (a.dweight) multiply(plan.dweight_product(dlogits, chunk));
  }
}

}  // namespace

void projection_cross_entropy(const ProjectionCrossEntropy& a, Workspace workspace,
                              Stream& stream) {
  if (a.weight.extent(0) == 0 && a.dx) fill_zero(a.dx, stream);
  if (a.x.extent(0) == 0 && a.dweight) fill_zero(a.dweight, stream);
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    visit_index(a.targets.dtype(),
                [&]<class Index>(Index) { run<T, Index>(a, workspace, stream); });
  });
}

}  // namespace zg::cuda
