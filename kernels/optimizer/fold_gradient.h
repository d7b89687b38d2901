#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// The gradient of one micro-batch joins the running sum: sum = (first ? 0 : sum) + rounded(leaf).
/// In one pass, so that no rounded copy exists. The same bits at every level and for any split.
struct FoldGradient {
  Tensor leaf;                  ///< [n] f32 | bf16 | f16
  Tensor sum;                   ///< [n] f32 | bf16 (added in f32, rounded once), in and out; not
                                ///< read when `first`; may then be an f32 leaf, rounded in place
  DType rounding = DType::f32;  ///< f32 | bf16 | f16: what the leaf is rounded to, to nearest even
  bool first = false;           ///< +0 stands for the sum, whatever the tensor holds
};
ZG_API void validate(const FoldGradient&);  ///< throws ShapeError, DTypeError
inline std::vector<Operand> operands(const FoldGradient& a) {
  return {{"leaf", a.leaf}, {"sum", a.sum, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<FoldGradient> fold_gradient;
}

}  // namespace zg
