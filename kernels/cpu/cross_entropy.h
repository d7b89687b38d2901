#pragma once

#include "zerograd/kernels/cross_entropy.h"

namespace zg::cpu {

void cross_entropy_forward(const CrossEntropyForward&, Workspace, Stream&);
void cross_entropy_backward(const CrossEntropyBackward&, Workspace, Stream&);

int64_t projection_cross_entropy_workspace(const ProjectionCrossEntropy&, const Device::Traits&);
void projection_cross_entropy(const ProjectionCrossEntropy&, Workspace, Stream&);

}  // namespace zg::cpu
