#pragma once

#include "zerograd/kernels/reduce.h"

namespace zg::cpu {

int64_t reduce_workspace(const Reduce&, const Device::Traits&);
void reduce(const Reduce&, Workspace, Stream&);
void argmax(const ArgMax&, Workspace, Stream&);
void softmax_forward(const SoftmaxForward&, Workspace, Stream&);
void softmax_backward(const SoftmaxBackward&, Workspace, Stream&);

}  // namespace zg::cpu
