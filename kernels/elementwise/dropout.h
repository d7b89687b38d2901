#pragma once

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/random.h"

namespace zg {

/// Where the elements of a sample's slice are in the whole sample. Rows of the slice are contiguous
/// in both.
struct DropoutSlice {
  int64_t first = 0, row = 0, whole_row = 0;

  /// Index in the whole sample of the slice's element e.
  constexpr int64_t at(int64_t e) const {
    return first + (e < row ? e : e / row * whole_row + e % row);
  }
  /// at(e) / 4 if is_aligned(), by divisions of 32 bits: they take fewer registers of a GPU.
  constexpr uint32_t counter_at(int64_t e) const {
    const auto of = [](int64_t element) { return static_cast<uint32_t>(element / 4); };
    if (e < row) return of(first) + of(e);
    return of(first) + of(e) / of(row) * of(whole_row) + of(e) % of(row);
  }
  /// Whether each four elements of a slice of `elements` have a Philox counter of their own.
  constexpr bool is_aligned(int64_t elements) const {
    return first % 4 == 0 && (row == elements || (row % 4 == 0 && whole_row % 4 == 0));
  }
};

/// y = (kept ? x / (1 - p) : 0) + residual, for each element (Srivastava et al. 2014). The mask is
/// not stored: it is a function of DropoutKey and the element's index (Philox), so backward is the
/// same kernel on dy.
struct Dropout {
  Tensor x;                  ///< [samples, ...] f64 | f32 | bf16 | f16; axis 0 counts samples, the
                             ///< other axes are its elements
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
/// Where a tensor of this shape is in the whole one. Throws ConfigError unless probability is in
/// [0, 1), and ShapeError when the key's slice does not fit or the whole sample has too many
/// elements.
ZG_API DropoutSlice dropout_slice(const char* op, float probability, const Shape& shape,
                                  const DropoutKey& key);

namespace kernels {
extern ZG_API Kernel<Dropout> dropout;
}

}  // namespace zg
