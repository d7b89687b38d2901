#pragma once

#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/loss/cross_entropy.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/norm/layer_norm.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/kernels/reduce/reduce.h"

// Bytes of scratch memory of the CPU kernels, computed from shapes and traits alone. Kernels that
// are not listed need none.
namespace zg::cpu {

int64_t workspace_bytes(const AttentionForward&, const Device::Traits&);
int64_t workspace_bytes(const AttentionBackward&, const Device::Traits&);
int64_t workspace_bytes(const EmbeddingBackward&, const Device::Traits&);
int64_t workspace_bytes(const LayerNormBackward&, const Device::Traits&);
int64_t workspace_bytes(const Matmul&, const Device::Traits&);
int64_t workspace_bytes(const ProjectionCrossEntropy&, const Device::Traits&);
int64_t workspace_bytes(const Reduce&, const Device::Traits&);
int64_t workspace_bytes(const RmsNormBackward&, const Device::Traits&);
int64_t workspace_bytes(const ScatterAdd&, const Device::Traits&);
int64_t workspace_bytes(const SumOfSquares&, const Device::Traits&);

}  // namespace zg::cpu
