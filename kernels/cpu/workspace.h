#pragma once

#include "zerograd/runtime/device.h"

namespace zg {

struct AttentionBackward;
struct AttentionForward;
struct EmbeddingBackward;
struct LayerNormBackward;
struct Matmul;
struct ProjectionCrossEntropy;
struct Reduce;
struct RmsNormBackward;
struct ScatterAdd;
struct SumOfSquares;

}  // namespace zg

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
