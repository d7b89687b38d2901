#include "zerograd/kernels/cuda/rows.cuh"
#include "zerograd/kernels/cuda/workspace.h"

// Products of the own matmul, and row by row what happens to a chunk of logits between them.
namespace zg::cuda {
namespace {

constexpr const char* op = "projection_cross_entropy";
constexpr int finish_threads = 256;

/// Adds a chunk of logits, columns [column, column + columns), to its rows' sums; the first chunk
/// starts them.
template <class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    add_chunk(const float* logits, const Index* targets, OnlineLogSum* sums, int64_t rows,
              int64_t column, int64_t columns) {
  const Row<warps> row;
  if (row.n >= rows) return;  // whole teams
  const float* const x = logits + row.n * columns;
  const OnlineLogSum before = column > 0 ? sums[row.n] : OnlineLogSum{-CUDART_INF_F, 0.0f, 0.0f};
  const float own = row_max<warps>(x, columns, row.first);
  const float best = before.max > own ? before.max : own;  // NaN stays in sum
  // Without a largest logit all are minus infinity or NaN; a shift of 0 keeps them what they are.
  const float shift = best == -CUDART_INF_F ? 0.0f : best;
  const float sum = row_exp_sum<warps>(x, shift, columns, row.first);
  if (row.first != 0) return;
  const int64_t place = int64_t{targets[row.n]} - column;
  sums[row.n] = {best, before.sum * expf(before.max - shift) + sum,
                 place >= 0 && place < columns ? x[place] : before.target};
}

template <class Index>
__global__ void __launch_bounds__(finish_threads)
    write_loss(const OnlineLogSum* sums, const Index* targets, float* loss, int64_t row,
               int64_t rows, int64_t V, int64_t ignored, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * finish_threads + threadIdx.x;
  if (i >= rows) return;
  // The difference of the two large terms first: the logarithm is small.
  loss[row + i] = has_target(targets, row + i, V, ignored, true, op, fault)
                      ? (sums[i].max - sums[i].target) + logf(sums[i].sum)
                      : 0.0f;
}

/// dlogits may be logits.
template <class T, class Index, int warps>
__global__ void __launch_bounds__(lanes* row_warps)
    logit_gradients(const float* logits, const Index* targets, const OnlineLogSum* sums, T* dlogits,
                    float factor, int64_t rows, int64_t column, int64_t columns, int64_t V,
                    int64_t ignored) {
  const Row<warps> row;
  if (row.n >= rows) return;
  const bool counts = has_target(targets, row.n, V, ignored, false, op, nullptr);
  const int64_t place = int64_t{targets[row.n]} - column;
  const float log_sum = sums[row.n].max + logf(sums[row.n].sum);
  for (int64_t i = row.first; i < columns; i += Row<warps>::threads) {
    const int64_t at = row.n * columns + i;
    const float log_share = logits[at] - log_sum;
    const float slope = i == place ? expm1f(log_share) : expf(log_share);
    dlogits[at] = from_float<T>(counts ? slope * factor : 0.0f);
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
  for (int64_t row = 0; row < tiling.N; row += tiling.rows) {
    const int64_t rows = tiling.at(row, 0).rows;
    tiling.for_each_chunk(row, [&](const LogitChunk& chunk) {
      const Tensor logits = plan.logits_of(workspace, chunk);
      multiply(plan.logits_product(logits, chunk));
      with_row_warps(chunk.columns, [&](auto warps) {
        launch(op, add_chunk<Index, decltype(warps)::value>, row_grid<decltype(warps)::value>(rows),
               stream, static_cast<const float*>(logits.data<float>()), targets + row, sums, rows,
               chunk.column, chunk.columns);
      });
    });
    launch(op, write_loss<Index>, {blocks_for(rows, finish_threads), dim3(finish_threads)}, stream,
           static_cast<const OnlineLogSum*>(sums), targets, a.loss.data<float>(), row, rows,
           tiling.V, a.ignore_index, fault_place(stream));
    if (!plan.gradients) continue;
    tiling.for_each_chunk(row, [&](const LogitChunk& chunk) {
      const Tensor logits = plan.logits_of(workspace, chunk);
      const Tensor dlogits = plan.dlogits_of(workspace, chunk);
      with_row_warps(chunk.columns, [&](auto warps) {
        launch(op, logit_gradients<T, Index, decltype(warps)::value>,
               row_grid<decltype(warps)::value>(rows), stream,
               static_cast<const float*>(logits.data<float>()), targets + row,
               static_cast<const OnlineLogSum*>(sums), dlogits.data<T>(),
               static_cast<float>(a.gradient_factor), rows, chunk.column, chunk.columns, tiling.V,
               a.ignore_index);
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
