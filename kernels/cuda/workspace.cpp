#include "zerograd/kernels/cuda/workspace.h"

#include <algorithm>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"

namespace zg::cuda {

NormBlocks::NormBlocks(int64_t N) {
  // Two blocks for each of the 132 multiprocessors of an H100 or H200; each of a block's 8 warps
  // has at least one row.
  constexpr int64_t most_blocks = 264, fewest_rows = 8;
  rows = std::max(fewest_rows, (N + most_blocks - 1) / most_blocks);
  blocks = (N + rows - 1) / rows;
}

int64_t workspace_bytes(const LayerNormBackward& a, const Device::Traits&) {
  const int64_t wanted = (a.dgamma ? 1 : 0) + (a.dbeta ? 1 : 0);
  return NormBlocks(a.x.extent(0)).blocks * wanted * a.x.extent(1) * int64_t{sizeof(float)};
}

int64_t workspace_bytes(const RmsNormBackward& a, const Device::Traits&) {
  return a.dgamma ? NormBlocks(a.x.extent(0)).blocks * a.x.extent(1) * int64_t{sizeof(float)} : 0;
}

int64_t workspace_bytes(const EmbeddingBackward& a, const Device::Traits&) {
  return a.dweight ? a.dy.extent(0) * int64_t{sizeof(uint64_t)} : 0;
}

int64_t workspace_bytes(const Reduce& a, const Device::Traits&) {
  return ReduceChunks(a).scratch_bytes();
}

ProjectionPlan projection_plan(const ProjectionCrossEntropy& a, const Device::Traits& traits) {
  constexpr int64_t no_sums = 0;  // a chunk has whole rows
  return {a, traits, LogitLimits::for_gpus(), no_sums,
          kernels::matmul[Device::Type::cuda].workspace_bytes};
}

int64_t workspace_bytes(const ProjectionCrossEntropy& a, const Device::Traits& traits) {
  return projection_plan(a, traits).bytes;
}

int64_t workspace_bytes(const AttentionBackward& a, const Device::Traits&) {
  return a.shape.B * a.shape.H * a.shape.T * int64_t{sizeof(float)};
}

int64_t workspace_bytes(const Matmul& m, const Device::Traits& traits) {
  // 32 MiB is the size that the cuBLAS documentation recommends for Hopper. Small products need
  // none.
  constexpr int64_t bytes = int64_t{32} << 20;
  constexpr double small = 1e8;
  const double products = static_cast<double>(m.M) * static_cast<double>(m.N) *
                          static_cast<double>(m.K) * static_cast<double>(m.batch);
  const int64_t sums = m.row_sums ? workspace_bytes(reduce_rows(m), traits) : 0;
  return std::max(sums, m.a.dtype() == DType::f64 || products < small ? 0 : bytes);
}

}  // namespace zg::cuda
