#pragma once

#include "kernels/kernel.h"
#include "runtime/random.h"

namespace zg {

/// y = x / (1 - p) where kept, else 0, then + residual. No mask is stored: backward is the same
/// kernel on dy. Srivastava et al. 2014; Philox keyed by place, see DropoutKey.
struct Dropout {
  Tensor x;                  ///< [samples, elements] f64 | f32 | bf16 | f16; axis 0 counts samples
  Tensor residual;           ///< like x, or absent
  Tensor y;                  ///< out, like x; may be x
  float probability = 0.0f;  ///< in [0, 1)
  DropoutKey key;
};
ZG_API void validate(const Dropout&);

namespace kernels {
extern ZG_API Kernel<Dropout> dropout;
}

}  // namespace zg
