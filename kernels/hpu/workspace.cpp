#include "zerograd/kernels/hpu/workspace.h"

#include <algorithm>

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"

namespace zg::hpu {

NormParts::NormParts(int64_t N) {
  constexpr int64_t max_parts = 256, fewest_rows = 8;
  rows = std::max(fewest_rows, (N + max_parts - 1) / max_parts);
  parts = (N + rows - 1) / rows;
}

int64_t workspace_bytes(const LayerNormBackward& a, const Device::Traits&) {
  const int64_t wanted = (a.dgamma ? 1 : 0) + (a.dbeta ? 1 : 0);
  return NormParts(a.x.extent(0)).parts * wanted * a.x.extent(1) * int64_t{sizeof(float)};
}

int64_t workspace_bytes(const RmsNormBackward& a, const Device::Traits&) {
  return a.dgamma ? NormParts(a.x.extent(0)).parts * a.x.extent(1) * int64_t{sizeof(float)} : 0;
}

SquareGroups::SquareGroups(int64_t numel) : granules(numel / SumOfSquares::granule) {
  // A work-item adds one granule at a time; after more than `max_granules` granules the counters of
  // a work-group could overflow.
  constexpr int64_t group = 256, enough_groups = 256, max_granules = int64_t{1} << 18;
  groups = std::max(std::min(enough_groups, (granules + group - 1) / group),
                    (granules + max_granules - 1) / max_granules);
}

int64_t workspace_bytes(const SumOfSquares& a, const Device::Traits&) {
  int64_t groups = 0;
  for (const SumOfSquares::Part& part : a.parts)
    groups = std::max(groups, SquareGroups(part.x.numel()).groups);
  return groups * (SumOfSquares::limb_count + 1) * int64_t{sizeof(int64_t)};
}

int64_t workspace_bytes(const Reduce& a, const Device::Traits&) {
  return ReduceChunks(a).scratch_bytes();
}

int64_t workspace_bytes(const Matmul& m, const Device::Traits& traits) {
  return m.row_sums ? workspace_bytes(reduce_rows(m), traits) : 0;
}

int64_t workspace_bytes(const EmbeddingBackward& a, const Device::Traits&) {
  return a.dweight ? a.dy.extent(0) * int64_t{sizeof(int64_t)} : 0;
}

ProjectionPlan projection_plan(const ProjectionCrossEntropy& a, const Device::Traits& traits) {
  return {a, traits, LogitLimits::for_caches(), 4 * int64_t{sizeof(float)},
          kernels::matmul[Device::Type::hpu].workspace_bytes};
}

int64_t workspace_bytes(const ProjectionCrossEntropy& a, const Device::Traits& traits) {
  return projection_plan(a, traits).bytes;
}

int64_t workspace_bytes(const AttentionBackward& a, const Device::Traits&) {
  return a.shape.B * a.shape.H * a.shape.T * int64_t{sizeof(float)};
}

}  // namespace zg::hpu
