#pragma once

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/random.h"

namespace zg {

/// y = (kept ? x / (1 - p) : 0) + residual, for each element (Srivastava et al. 2014). The mask is
/// not stored: it is a function of DropoutKey and the element's index (Philox), so backward is the
/// same kernel on dy.
struct Dropout {
  Tensor x;                  ///< [samples, elements] f64 | f32 | bf16 | f16; axis 0 counts samples,
                             ///< the other axes are its elements
  Tensor residual;           ///< like x, or absent
  Tensor y;                  ///< out, like x; may be x
  float probability = 0.0f;  ///< in [0, 1)
  DropoutKey key;
};
ZG_API void validate(const Dropout&);
inline std::vector<Operand> operands(const Dropout& a) {
  return {{"x", a.x}, {"residual", a.residual}, {"y", a.y, Operand::out}};
}

/// The most elements of a sample: 2^32 Philox counters of four words.
inline constexpr int64_t max_dropout_elements = int64_t{1} << 34;
/// Throws ConfigError unless probability is in [0, 1), ShapeError when there are too many elements.
ZG_API void check_dropout(const char* op, float probability, int64_t elements);

namespace kernels {
extern ZG_API Kernel<Dropout> dropout;
}

}  // namespace zg
