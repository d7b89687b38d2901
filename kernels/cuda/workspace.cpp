#include "kernels/cuda/workspace.h"

#include <algorithm>

namespace zg::cuda {

NormBlocks::NormBlocks(int64_t N) {
  // Two blocks for each of the 132 multiprocessors of an H100 or H200; a row has work for one warp.
  constexpr int64_t most_blocks = 264, fewest_rows = 8;
  rows = std::max(fewest_rows, (N + most_blocks - 1) / most_blocks);
  blocks = (N + rows - 1) / rows;
}

int64_t layer_norm_backward_bytes(const LayerNormBackward& a, const Device::Traits&) {
  const int64_t wanted = (a.dgamma ? 1 : 0) + (a.dbeta ? 1 : 0);
  return NormBlocks(a.x.extent(0)).blocks * wanted * a.x.extent(1) * int64_t{sizeof(float)};
}

int64_t rms_norm_backward_bytes(const RmsNormBackward& a, const Device::Traits&) {
  return a.dgamma ? NormBlocks(a.x.extent(0)).blocks * a.x.extent(1) * int64_t{sizeof(float)} : 0;
}

ReduceChunks::ReduceChunks(const Reduce& a) : results(1), elements(1), chunks(1) {
  const Shape& shape = a.x.shape();
  for (int axis = 0; axis < shape.rank(); ++axis)
    (a.axes >> axis & 1u ? elements : results) *= shape[axis];
  constexpr int64_t enough_for_a_block = 256, enough_threads = 1 << 16, fewest_elements = 64;
  constexpr int64_t most_chunks = 4096;
  const int last = shape.rank() - 1;
  block_each = last >= 0 && (a.axes >> last & 1u) && elements >= enough_for_a_block;
  if (!block_each && results > 0)
    chunks = std::clamp<int64_t>(enough_threads / results, 1,
                                 std::clamp<int64_t>(elements / fewest_elements, 1, most_chunks));
  chunk = (elements + chunks - 1) / chunks;
}

int64_t reduce_bytes(const Reduce& a, const Device::Traits&) {
  const ReduceChunks cut(a);
  return cut.chunks > 1 ? cut.chunks * cut.results * int64_t{sizeof(double)} : 0;
}

ProjectionPlan projection_plan(const ProjectionCrossEntropy& a, const Device::Traits& traits) {
  return {a, traits, int64_t{sizeof(OnlineLogSum)}, kernels::matmul.cuda_workspace_bytes};
}

int64_t projection_cross_entropy_bytes(const ProjectionCrossEntropy& a,
                                       const Device::Traits& traits) {
  return projection_plan(a, traits).bytes;
}

int64_t attention_backward_bytes(const AttentionBackward& a, const Device::Traits&) {
  return a.shape.B * a.shape.H * a.shape.T * int64_t{sizeof(float)};
}

int64_t matmul_bytes(const Matmul& m, const Device::Traits&) {
  // NVIDIA's advice for Hopper, whose kernels take less for small products.
  constexpr int64_t bytes = int64_t{32} << 20;
  constexpr double small = 1e8;
  const double products = static_cast<double>(m.M) * static_cast<double>(m.N) *
                          static_cast<double>(m.K) * static_cast<double>(m.batch);
  return m.a.dtype() == DType::f64 || products < small ? 0 : bytes;
}

}  // namespace zg::cuda
