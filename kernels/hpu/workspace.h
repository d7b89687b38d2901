#pragma once

#include "zerograd/runtime/device.h"

namespace zg {

struct AttentionBackward;
struct EmbeddingBackward;
struct LayerNormBackward;
struct Matmul;
struct ProjectionCrossEntropy;
struct ProjectionPlan;
struct Reduce;
struct RmsNormBackward;
struct SumOfSquares;

}  // namespace zg

// Scratch memory of the HPU kernels, in bytes. Computed from shapes alone and compiled in every
// build, so that a machine without Level Zero can plan a run for a machine with Level Zero.
namespace zg::hpu {

/// How the backward pass of a norm divides N rows into parts. It depends on N alone, so the order
/// of the additions is fixed.
struct NormParts {
  int64_t rows;   ///< rows in a part
  int64_t parts;  ///< each writes its partial sums for dgamma and dbeta
  explicit NormParts(int64_t N);
};
int64_t workspace_bytes(const LayerNormBackward&, const Device::Traits&);
int64_t workspace_bytes(const RmsNormBackward&, const Device::Traits&);

/// How the granules of SumOfSquares are distributed over work-groups. Each work-group writes its
/// integers to scratch; they are added in order.
struct SquareGroups {
  int64_t granules, groups;
  explicit SquareGroups(int64_t numel);
};
int64_t workspace_bytes(const SumOfSquares&, const Device::Traits&);

int64_t workspace_bytes(const Reduce&, const Device::Traits&);

/// For row_sums.
int64_t workspace_bytes(const Matmul&, const Device::Traits&);

/// One index for each token: the next token with the same id.
int64_t workspace_bytes(const EmbeddingBackward&, const Device::Traits&);

/// Scratch of projection_cross_entropy: also four floats for each row of a block; see
/// projection_cross_entropy.cl.
ProjectionPlan projection_plan(const ProjectionCrossEntropy&, const Device::Traits&);
int64_t workspace_bytes(const ProjectionCrossEntropy&, const Device::Traits&);

/// row_dots: one float for each query of each head.
int64_t workspace_bytes(const AttentionBackward&, const Device::Traits&);

}  // namespace zg::hpu
