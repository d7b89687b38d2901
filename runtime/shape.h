#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "zerograd/runtime/api.h"

namespace zg {

/// Up to six extents, outermost first. The rank is the number of axes; a scalar has rank 0. A value
/// type without heap memory.
class ZG_API Shape {
 public:
  static constexpr int max_rank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents);  ///< throws ShapeError: rank > 6 or an extent < 0
  explicit Shape(std::span<const int64_t> extents);
  /// A shape of `numel` elements. One of the extents may be -1 and is computed from the others.
  /// Throws ShapeError naming `op` if two are -1 or if the others do not divide numel.
  static Shape with_inferred(std::initializer_list<int64_t> extents, int64_t numel, const char* op);

  int rank() const { return rank_; }
  int64_t operator[](int axis) const;  ///< a negative axis counts from the end; throws ShapeError
  int axis(int axis) const;            ///< the axis as a number in 0 .. rank-1; throws ShapeError
  int64_t numel() const;
  Shape with(int axis, int64_t extent) const;  ///< a copy with one extent replaced
  std::span<const int64_t> extents() const { return {extent_, static_cast<size_t>(rank_)}; }
  std::string str() const;  ///< "[8, 1024, 768]"
  bool operator==(const Shape&) const = default;

 private:
  int64_t extent_[max_rank] = {1, 1, 1, 1, 1, 1};
  int rank_ = 0;
};

/// The shape that numpy and PyTorch broadcasting gives; throws ShapeError naming `op`.
ZG_API Shape broadcast(const Shape& a, const Shape& b, const char* op);

using Strides = std::array<int64_t, Shape::max_rank>;

/// Strides, in elements, to read a contiguous tensor of `shape` broadcast to `extents`: 0 along
/// axes that `shape` lacks or has with extent 1.
ZG_API Strides broadcast_strides(const Shape& shape, const Shape& extents);

}  // namespace zg
