#pragma once

#include <cstdint>

#include "kernels/fold_gradient.h"

namespace zg::cpu {

void fold_gradient(const FoldGradient&, Workspace, Stream&);

/// sum[0, n) = (first ? 0 : sum) + leaf. The leaf is kept as it is, rounded to bf16, or held in
/// bf16 already.
using Fold = void (*)(const void* leaf, float* sum, int64_t n);
struct FoldTable {
  enum Leaf { whole, rounded, narrow };
  Fold fold[3][2];  ///< by Leaf and by `first`
};

}  // namespace zg::cpu
