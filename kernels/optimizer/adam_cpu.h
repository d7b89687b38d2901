#pragma once

#include <cstdint>

#include "zerograd/kernels/cpu/philox.h"
#include "zerograd/kernels/optimizer/adam_constants.h"
#include "zerograd/runtime/dtype.h"

namespace zg::cpu {

/// The stochastic rounding of a range of elements.
struct AdamRounding {
  bf16* to;  ///< element 0 of the range: of low_precision, or of the parameter
  RoundingKey key;
  PhiloxKeys keys;  ///< Philox keys derived from the seed
  int64_t first;    ///< index of element 0 of the range in its parameter
};

/// Elements [0, n) of the tensors of an AdamTensor, or of a part of them.
struct AdamRange {
  void* parameter;
  const void* gradient;
  void* moment1;
  void* moment2;
  void* low_precision;  ///< null when absent
  int64_t n;
  const AdamRounding* rounding;  ///< null: to nearest even
};

using AdamUpdate = void (*)(const AdamRange&, const AdamConstants&);

/// By the dtypes of gradient (f32, bf16) and low_precision (absent, bf16, f16).
struct AdamTable {
  AdamUpdate update[2][3];
  AdamUpdate narrow[2];  ///< with parameter and moments in bf16, low_precision absent
};

}  // namespace zg::cpu
