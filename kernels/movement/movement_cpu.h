#pragma once

#include "zerograd/kernels/movement/movement.h"

namespace zg::cpu {

void strided_copy(const StridedCopy&, Workspace, Stream&);
void gather(const Gather&, Workspace, Stream&);
void scatter_add(const ScatterAdd&, Workspace, Stream&);

}  // namespace zg::cpu
