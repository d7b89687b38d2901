#pragma once

#include "zerograd/kernels/reduce/reduce.h"

namespace zg::cpu {

void reduce(const Reduce&, Workspace, Stream&);
void argmax(const ArgMax&, Workspace, Stream&);
void softmax_forward(const SoftmaxForward&, Workspace, Stream&);
void softmax_backward(const SoftmaxBackward&, Workspace, Stream&);

}  // namespace zg::cpu
