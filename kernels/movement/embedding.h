#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// y[n] = weight[ids[n]] + position[(first_position + n) % T ...], the position row being n % T
/// plus first_position. An id outside [0, V) is a ShapeError naming the id and its place.
struct EmbeddingForward {
  Tensor ids;                  ///< [N] i32 | i64
  Tensor weight;               ///< [V, C] f64 | f32 | bf16 | f16
  Tensor position;             ///< [P, C] or absent, same dtype
  Tensor y;                    ///< [N, C] out
  int64_t T = 0;               ///< tokens per sequence, with position
  int64_t first_position = 0;  ///< position of each sequence's first token
};

/// Deterministic: each row of dweight sums its tokens in rising n, in the accumulator dtype.
struct EmbeddingBackward {
  Tensor ids, dy;    ///< [N], [N, C]
  Tensor dweight;    ///< [V, C] out (every row written), accumulator dtype; may be absent
  Tensor dposition;  ///< [P, C] out (every row written), accumulator dtype; may be absent
  int64_t T = 0, first_position = 0;
};
ZG_API void validate(const EmbeddingForward&);
ZG_API void validate(const EmbeddingBackward&);
inline std::vector<Operand> operands(const EmbeddingForward& a) {
  return {{"ids", a.ids}, {"weight", a.weight}, {"position", a.position}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const EmbeddingBackward& a) {
  return {{"ids", a.ids},
          {"dy", a.dy},
          {"dweight", a.dweight, Operand::out},
          {"dposition", a.dposition, Operand::out}};
}

namespace kernels {
extern ZG_API Kernel<EmbeddingForward> embedding_forward;
extern ZG_API Kernel<EmbeddingBackward> embedding_backward;
}  // namespace kernels

}  // namespace zg
