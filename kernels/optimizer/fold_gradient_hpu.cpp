#include "zerograd/kernels/optimizer/fold_gradient.h"

#include "zerograd/kernels/hpu/launch.h"

namespace zg::hpu {

void fold_gradient(const FoldGradient& a, Workspace, Stream& stream) {
  std::string kernel = "fold";
  for (const DType dtype : {a.leaf.dtype(), a.rounding, a.sum.dtype()})
    kernel += std::string("_") + word("fold_gradient", dtype, {DType::f32, DType::bf16});
  const int64_t n = a.leaf.numel();
  launch(stream, module("fold_gradient"), kernel.c_str(), {groups_for(n)}, a.leaf.raw(),
         a.sum.raw(), n, int32_t{a.first});
}

}  // namespace zg::hpu
