#pragma once

#include "zerograd/kernels/loss/cross_entropy.h"

namespace zg::cpu {

void cross_entropy_forward(const CrossEntropyForward&, Workspace, Stream&);
void cross_entropy_backward(const CrossEntropyBackward&, Workspace, Stream&);

void projection_cross_entropy(const ProjectionCrossEntropy&, Workspace, Stream&);

}  // namespace zg::cpu
