#pragma once

#include <algorithm>

#include "zerograd/kernels/kernel.h"

namespace zg {

/// Copies a strided block; permute, slice and concat are calls of this kernel. For each index i of
/// `extents`: y[y_offset + sum i*y_strides] = x[x_offset + sum i*x_strides], in elements. Strides
/// of x may be 0 (broadcast); strides of both may be negative; x and y must not overlap. Throws
/// ShapeError if an element is outside of its tensor, or if y has a stride of 0.
struct StridedCopy {
  Tensor x, y;  ///< same dtype, any
  Shape extents;
  Strides x_strides{}, y_strides{};
  int64_t x_offset = 0, y_offset = 0;
};

/// y[i][j][k] = x[i][index[i][j][k]][k] along `axis`, for every element of index (torch.gather). y
/// has index's shape; x has index's rank and, except along `axis`, at least its extents. An index
/// [n] stands for n of x's slices along `axis`. An index out of range is a ShapeError.
struct Gather {
  Tensor x;
  Tensor index;  ///< i32 | i64
  Tensor y;      ///< x's dtype, any
  int axis;
};
/// y[i][index[i][j][k]][k] += x[i][j][k] for every element of index, in rising j
/// (torch.Tensor.scatter_add_), deterministic. Summed in the accumulator dtype and rounded once;
/// integers wrap around. x and y have index's rank and at least its extents; y may be smaller along
/// `axis`. An index [n] stands for n of x's slices along `axis`. An index out of range is a
/// ShapeError.
struct ScatterAdd {
  Tensor x, index;  ///< index: i32 | i64
  Tensor y;         ///< in and out, floating, i32 or i64, x's dtype
  int axis;
};

ZG_API void validate(const StridedCopy&);
ZG_API void validate(const Gather&);
ZG_API void validate(const ScatterAdd&);
inline std::vector<Operand> operands(const StridedCopy& a) {
  return {{"x", a.x}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const Gather& a) {
  return {{"x", a.x}, {"index", a.index}, {"y", a.y, Operand::out}};
}
inline std::vector<Operand> operands(const ScatterAdd& a) {
  return {{"x", a.x}, {"index", a.index}, {"y", a.y, Operand::out}};
}
inline std::string sizes(const StridedCopy& a) { return a.extents.str(); }
/// Counts only the elements that are read and written.
inline void adjust_count(OpCount& count, const StridedCopy& a) {
  count.operations = a.extents.numel();
  count.bytes = 2 * count.operations * static_cast<int64_t>(size_of(a.x.dtype()));
}
inline void adjust_count(OpCount& count, const Gather& a) {
  count.operations = a.y.numel();
  count.bytes = a.index.bytes() + 2 * a.y.bytes();
}
inline void adjust_count(OpCount& count, const ScatterAdd& a) { count.bytes += a.y.bytes(); }

namespace kernels {
extern ZG_API Kernel<StridedCopy> strided_copy;
extern ZG_API Kernel<Gather> gather;
extern ZG_API Kernel<ScatterAdd> scatter_add;
}  // namespace kernels

/// y[n] = weight[ids[n]] + position[first_position + n % T]; without `position`, only the first
/// term. An id outside [0, V) is a ShapeError that names the id and its index.
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
  bool adds = false;  ///< the sums, or 0, are added to each row of dweight
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

/// Counts only the rows that are read; each row of `position` counts once.
inline void adjust_count(OpCount& count, const EmbeddingForward& a) {
  count.operations = a.y.numel();
  count.bytes = a.ids.bytes() + 2 * a.y.bytes();
  if (a.position)
    count.bytes += std::min(a.T * a.y.extent(1) * static_cast<int64_t>(size_of(a.y.dtype())),
                            a.position.bytes());
}
inline void adjust_count(OpCount& count, const EmbeddingBackward& a) {
  if (a.adds) count.bytes += a.dweight.bytes();
}

namespace kernels {
extern ZG_API Kernel<EmbeddingForward> embedding_forward;
extern ZG_API Kernel<EmbeddingBackward> embedding_backward;
}  // namespace kernels

}  // namespace zg
