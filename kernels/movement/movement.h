#pragma once

#include "zerograd/kernels/kernel.h"

namespace zg {

/// Copies a strided block: permute, slice and concat are this with other numbers. For each index i
/// of `extents`: y[y_offset + sum i*y_strides] = x[x_offset + sum i*x_strides], in elements.
/// Strides of x may be 0 (broadcast), those of either negative; x and y do not overlap. ShapeError
/// when an element lies outside its tensor, or when y has stride 0.
struct StridedCopy {
  Tensor x, y;  ///< same dtype, any
  Shape extents;
  Strides x_strides{}, y_strides{};
  int64_t x_offset = 0, y_offset = 0;
};

/// y[i][j][k] = x[i][index[i][j][k]][k] along `axis`, for every element of index (torch.gather). y
/// has index's shape; x has its rank and, but for `axis`, at least its extents. An index outside is
/// a ShapeError.
struct Gather {
  Tensor x;
  Tensor index;  ///< i32 | i64
  Tensor y;      ///< x's dtype, any
  int axis;
};
/// y[i][index[i][j][k]][k] += x[i][j][k] for every element of index, in rising j
/// (torch.Tensor.scatter_add_), deterministic. Summed in the accumulator dtype and rounded once. x
/// and y have index's rank and at least its extents, y but for `axis`. An index outside is a
/// ShapeError.
struct ScatterAdd {
  Tensor x, index;  ///< index: i32 | i64
  Tensor y;         ///< in and out, floating, x's dtype
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

namespace kernels {
extern ZG_API Kernel<StridedCopy> strided_copy;
extern ZG_API Kernel<Gather> gather;
extern ZG_API Kernel<ScatterAdd> scatter_add;
}  // namespace kernels

}  // namespace zg
