#include "zerograd/kernels/cuda/rows.cuh"
#include "zerograd/kernels/cuda/workspace.h"

// Cross-entropy of logits = x weight^T [N, V] without holding all logits: they are computed in
// chunks of rows and columns (projection_chunks.h) by matmul. add_chunk adds each chunk to the
// rows' log-sums; for gradients the chunk is computed again, logit_gradients turns it into dlogits,
// and matmul adds it to dx and dweight.
namespace zg::cuda {
namespace {

constexpr const char* op = "projection_cross_entropy";  // for the host
constexpr FaultSite site = FaultSite::projection_cross_entropy_targets;
constexpr int finish_threads = 256;

/// Adds a chunk of logits, columns [column, column + columns) in rows `distance` apart, to the
/// log-sums of its rows. The chunk at column 0 starts them. A team of threads for each row.
template <class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    add_chunk(const float* logits, const Index* targets, OnlineLogSum* sums, int64_t rows,
              int64_t column, int64_t columns, int64_t distance) {
  const Row<warps> row;
  if (row.n >= rows) return;  // the whole team
  const float* const x = logits + row.n * distance;
  const OnlineLogSum previous = column > 0 ? sums[row.n] : OnlineLogSum{-CUDART_INF_F, 0.0f, 0.0f};
  const float chunk_maximum = row_max<warps>(x, columns, row.first);
  const float maximum =
      previous.max > chunk_maximum ? previous.max : chunk_maximum;  // NaN is kept by `sum`
  // If the maximum is minus infinity, all logits are minus infinity or NaN. Subtracting it would
  // turn minus infinity into NaN, so 0 is subtracted instead.
  const float shift = maximum == -CUDART_INF_F ? 0.0f : maximum;
  const float sum = row_exp_sum<warps>(x, shift, columns, row.first);
  if (row.first != 0) return;
  const int64_t target_column = int64_t{targets[row.n]} - column;
  sums[row.n] = {
      maximum, previous.sum * expf(previous.max - shift) + sum,
      target_column >= 0 && target_column < columns ? x[target_column] : previous.target};
}

/// loss[row + i] from the log-sum of row i, one thread for each row.
template <class Index>
__global__ void __launch_bounds__(finish_threads)
    write_loss(const OnlineLogSum* sums, const Index* targets, float* loss, int64_t row,
               int64_t rows, int64_t V, int64_t ignored, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * finish_threads + threadIdx.x;
  if (i >= rows) return;
  // Subtract the two large terms first; adding the small logarithm to one of them would round it.
  loss[row + i] = has_target(targets, row + i, V, ignored, true, site, fault)
                      ? (sums[i].max - sums[i].target) + logf(sums[i].sum)
                      : 0.0f;
}

/// dlogits = (softmax(logits) - one_hot(target)) * factor. dlogits may be the same memory as
/// logits.
template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    logit_gradients(const float* logits, const Index* targets, const OnlineLogSum* sums, T* dlogits,
                    float factor, int64_t rows, int64_t column, int64_t columns, int64_t distance,
                    int64_t V, int64_t ignored) {
  const Row<warps> row;
  if (row.n >= rows) return;
  const bool is_counted = has_target(targets, row.n, V, ignored, false, site, nullptr);
  const int64_t target_column = int64_t{targets[row.n]} - column;
  const float log_sum = sums[row.n].max + logf(sums[row.n].sum);
  for (int64_t i = row.first; i < columns; i += Row<warps>::threads) {
    const int64_t at = row.n * distance + i;
    const float log_probability = logits[at] - log_sum;
    const float gradient = i == target_column ? expm1f(log_probability) : expf(log_probability);
    dlogits[at] = from_float<T>(is_counted ? gradient * factor : 0.0f);
  }
}

template <class T, class Index>
void run(const ProjectionCrossEntropy& a, Workspace workspace, Stream& stream) {
  const ProjectionPlan plan = projection_plan(a, stream.traits());
  const LogitTiling& tiling = plan.tiling;
  const Index* const targets = a.targets.data<Index>();
  auto* const sums = reinterpret_cast<OnlineLogSum*>(workspace.data + plan.sums);
  const auto multiply = [&](const Matmul& product) {
    kernels::matmul[Device::Type::cuda].function(
        product, {workspace.data + plan.product, workspace.bytes - plan.product}, stream);
  };
  constexpr int64_t size_of_sum = sizeof(OnlineLogSum), index_bytes = sizeof(Index);
  for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
    const int64_t rows = tiling.at(row, 0).rows;
    tiling.for_each_chunk(row, [&](const LogitChunk& chunk) {
      const int64_t elements = rows * chunk.columns;
      const Tensor logits = plan.logits_of(workspace, chunk);
      multiply(plan.logits_product(logits, chunk));
      with_row_warps(chunk.columns, [&](auto warps) {
        launch({op, "add_chunk",
                elements * int64_t{sizeof(float)} + rows * (size_of_sum + index_bytes), elements},
               add_chunk<Index, decltype(warps)::value>, row_grid<decltype(warps)::value>(rows),
               stream, static_cast<const float*>(logits.data<float>()), targets + row, sums, rows,
               chunk.column, chunk.columns, chunk.distance);
      });
    });
    launch({op, "write_loss", rows * (size_of_sum + index_bytes + int64_t{sizeof(float)}), rows},
           write_loss<Index>, {blocks_for(rows, finish_threads), dim3(finish_threads)}, stream,
           static_cast<const OnlineLogSum*>(sums), targets, a.loss.data<float>(), row, rows,
           tiling.V, a.ignore_index, fault_place(stream));
    if (!plan.gradients) continue;
    tiling.for_each_chunk(row, [&](const LogitChunk& chunk) {
      const int64_t elements = rows * chunk.columns;
      const Tensor logits = plan.logits_of(workspace, chunk);
      const Tensor dlogits = plan.dlogits_of(workspace, chunk);
      with_row_warps(chunk.columns, [&](auto warps) {
        launch({op, "logit_gradients",
                elements * int64_t{sizeof(float) + sizeof(T)} + rows * (size_of_sum + index_bytes),
                elements},
               logit_gradients<T, Index, decltype(warps)::value>,
               row_grid<decltype(warps)::value>(rows), stream,
               static_cast<const float*>(logits.data<float>()), targets + row,
               static_cast<const OnlineLogSum*>(sums), dlogits.data<T>(),
               static_cast<float>(a.gradient_factor), rows, chunk.column, chunk.columns,
               chunk.distance, tiling.V, a.ignore_index);
      });
      if (a.dx) multiply(plan.dx_product(dlogits, chunk));
      if (a.dweight) multiply(plan.dweight_product(dlogits, chunk));
    });
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
