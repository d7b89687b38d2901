#pragma once

#include "kernels/cross_entropy.h"

namespace zg::cpu {

void cross_entropy_forward(const CrossEntropyForward&, Workspace, Stream&);
void cross_entropy_backward(const CrossEntropyBackward&, Workspace, Stream&);

int64_t projection_forward_workspace(const ProjectionCrossEntropyForward&, const Device::Traits&);
int64_t projection_backward_workspace(const ProjectionCrossEntropyBackward&, const Device::Traits&);
void projection_cross_entropy_forward(const ProjectionCrossEntropyForward&, Workspace, Stream&);
void projection_cross_entropy_backward(const ProjectionCrossEntropyBackward&, Workspace, Stream&);

}  // namespace zg::cpu
