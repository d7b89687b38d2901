#pragma once

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/loss/projection_chunks.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/reduce/reduce_chunks.h"

// Scratch of the HPU kernels: plain arithmetic on shapes, in every build, so that a machine without
// Level Zero can plan a run for a machine with Level Zero.
namespace zg::hpu {

/// How a norm's backward pass cuts N rows: by shape alone, so its sums have one order.
struct NormParts {
  int64_t rows;   ///< rows in a part
  int64_t parts;  ///< each writes its partial sums for dgamma and dbeta
  explicit NormParts(int64_t N);
};
int64_t workspace_bytes(const LayerNormBackward&, const Device::Traits&);
int64_t workspace_bytes(const RmsNormBackward&, const Device::Traits&);

/// How granules are shared out: each group leaves its integers, which are added in order.
struct SquareGroups {
  int64_t granules, groups;
  explicit SquareGroups(int64_t numel);
};
int64_t workspace_bytes(const SumOfSquares&, const Device::Traits&);

int64_t workspace_bytes(const Reduce&, const Device::Traits&);

/// A link from each token to the next one of its id.
int64_t workspace_bytes(const EmbeddingBackward&, const Device::Traits&);

/// Four floats for each row of a block: projection_cross_entropy.cl.
ProjectionPlan projection_plan(const ProjectionCrossEntropy&, const Device::Traits&);
int64_t workspace_bytes(const ProjectionCrossEntropy&, const Device::Traits&);

/// A float for each query of each head.
int64_t workspace_bytes(const AttentionBackward&, const Device::Traits&);

}  // namespace zg::hpu
