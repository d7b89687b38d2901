#pragma once

#include <cstdint>

#include "zerograd/kernels/cpu/philox.h"
#include "zerograd/kernels/optimizer/update_constants.h"
#include "zerograd/runtime/dtype.h"

namespace zg::cpu {

/// The stochastic rounding of a range of elements.
struct UpdateRounding {
  bf16* to;  ///< element 0 of the range: of low_precision, or of the parameter
  RoundingKey key;
  PhiloxKeys keys;  ///< Philox keys derived from the seed
  int64_t first;    ///< index of element 0 of the range in its parameter
};

/// Elements [0, n) of the tensors of an OptimizerTensor, or of a part of them.
struct UpdateRange {
  void* parameter;
  const void* gradient;
  void* moment1;  ///< null when absent, like moment2
  void* moment2;
  void* low_precision;  ///< null when absent
  int64_t n;
  const UpdateRounding* rounding;  ///< null: to nearest even
};

using Update = void (*)(const UpdateRange&, const UpdateConstants&);

/// By the dtypes of gradient (f32, bf16) and low_precision (absent, bf16, f16).
struct UpdateVariants {
  Update update[2][3];
  Update narrow[2];  ///< with parameter and moments in bf16, low_precision absent
};
struct UpdateTable {
  UpdateVariants kinds[update_kinds];  ///< by UpdateKind
};

/// The sums of squares of `count` granules of x, in f64, in the order that zg::SumOfSquares states,
/// then zeros up to a multiple of 8 sums.
using GranuleSums = void (*)(const void* x, int64_t count, double* sums);

/// Adds sums of granules to the limbs of a zg::SumOfSquares. `count` is a multiple of 8, at most
/// 2^20. Returns false, and adds nothing, if a sum is 2^520 or more, not finite, or so small that
/// limb 0 does not hold all of it.
using AddSums = bool (*)(const double* sums, int64_t count, int64_t* limbs);

struct GranuleTable {
  GranuleSums sums[4];  ///< by dtype: f64, f32, bf16, f16
  AddSums add;          ///< null: one by one is faster
};

/// sum[0, n) = (first ? 0 : sum) + the leaf rounded.
using Fold = void (*)(const void* leaf, void* sum, int64_t n);
/// By leaf and rounding (f32, bf16, f16), sum (f32, bf16) and `first`.
struct FoldTable {
  struct Sums {
    Fold sum[2][2];
  };
  struct Roundings {
    Sums rounding[3];
  };
  Roundings leaf[3];
};

}  // namespace zg::cpu
