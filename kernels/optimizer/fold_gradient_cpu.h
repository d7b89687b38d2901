#pragma once

#include <cstdint>

#include "zerograd/kernels/optimizer/fold_gradient.h"

namespace zg::cpu {

void fold_gradient(const FoldGradient&, Workspace, Stream&);

/// sum[0, n) = (first ? 0 : sum) + the leaf rounded.
using Fold = void (*)(const void* leaf, void* sum, int64_t n);
struct FoldTable {
  Fold fold[3][3][2][2];  ///< by leaf and rounding (f32, bf16, f16), sum (f32, bf16) and `first`
};

/// The table of one level from its fold<Leaf, Rounding, Sum, first>.
#define ZG_FOLD_SUMS(fold, Leaf, Rounding)                                     \
  {                                                                            \
    {fold<Leaf, Rounding, float, false>, fold<Leaf, Rounding, float, true>}, { \
      fold<Leaf, Rounding, bf16, false>, fold<Leaf, Rounding, bf16, true>      \
    }                                                                          \
  }
#define ZG_FOLD_ROUNDINGS(fold, Leaf) \
  { ZG_FOLD_SUMS(fold, Leaf, float), ZG_FOLD_SUMS(fold, Leaf, bf16), ZG_FOLD_SUMS(fold, Leaf, f16) }
#define ZG_FOLD_TABLE(fold)                                                                       \
  {                                                                                               \
    {                                                                                             \
      ZG_FOLD_ROUNDINGS(fold, float), ZG_FOLD_ROUNDINGS(fold, bf16), ZG_FOLD_ROUNDINGS(fold, f16) \
    }                                                                                             \
  }

}  // namespace zg::cpu
