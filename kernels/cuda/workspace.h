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

}  // namespace zg

// Scratch memory of the CUDA kernels, in bytes. Computed from shapes alone and compiled in every
// build, so that a machine without CUDA can plan a run for a machine with CUDA.
namespace zg::cuda {

/// How the backward pass of a norm distributes N rows over blocks. It depends on N alone, so the
/// sums for dgamma and dbeta have a fixed order.
struct NormBlocks {
  int64_t rows;    ///< rows in a block
  int64_t blocks;  ///< each writes its partial sums for dgamma and dbeta
  explicit NormBlocks(int64_t N);
};
int64_t workspace_bytes(const LayerNormBackward&, const Device::Traits&);
int64_t workspace_bytes(const RmsNormBackward&, const Device::Traits&);

/// Tokens and their ids, sorted by id: a key of 8 bytes for each token.
int64_t workspace_bytes(const EmbeddingBackward&, const Device::Traits&);

int64_t workspace_bytes(const Reduce&, const Device::Traits&);

ProjectionPlan projection_plan(const ProjectionCrossEntropy&, const Device::Traits&);
int64_t workspace_bytes(const ProjectionCrossEntropy&, const Device::Traits&);

/// row_dots: one float for each query of each head.
int64_t workspace_bytes(const AttentionBackward&, const Device::Traits&);

/// For cuBLASLt algorithms that cut K into parts; they pay when c has too few tiles for the GPU.
/// And for row_sums, if the library does not compute them.
int64_t workspace_bytes(const Matmul&, const Device::Traits&);

}  // namespace zg::cuda
