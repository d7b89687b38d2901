#include "zerograd/runtime/shape.h"

#include <algorithm>
#include <vector>

#include "zerograd/runtime/checked_product.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

std::optional<int64_t> checked_product(std::span<const int64_t> sizes) {
  int64_t product = 1;
  bool has_zero = false;
  for (const int64_t size : sizes) {
    if (size < 0) return std::nullopt;
    if (size == 0)
      has_zero = true;
    else if (__builtin_mul_overflow(product, size, &product) || product > largest_product)
      return std::nullopt;
  }
  return has_zero ? 0 : product;
}

int64_t checked_product(std::initializer_list<int64_t> sizes, const char* what) {
  const auto product = checked_product(std::span<const int64_t>(sizes.begin(), sizes.size()));
  if (product) return *product;
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : " x ") + std::to_string(size);
  raise<ShapeError>("{}: expected sizes of 0 or more with a product of at most 2^60 - 1, got {}",
                    what, text);
}

Shape::Shape(std::initializer_list<int64_t> extents)
    : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const int64_t> extents) {
  if (extents.size() > max_rank)
    raise<ShapeError>("shape: expected rank up to 6, got rank {}", extents.size());
  rank_ = static_cast<int>(extents.size());
  std::ranges::copy(extents, extent_);
  for (int64_t extent : extents)
    if (extent < 0) raise<ShapeError>("shape: expected extents of 0 or more, got {}", extent);
  if (!checked_product(extents))
    raise<ShapeError>("shape: expected at most 2^60 - 1 elements, got {}", str());
}

Shape Shape::with_inferred(std::initializer_list<int64_t> extents, int64_t numel, const char* op) {
  std::vector<int64_t> values(extents);
  const auto unknown = std::ranges::find(values, -1);
  if (unknown == values.end()) return Shape(extents);
  if (std::ranges::count(values, -1) > 1)
    raise<ShapeError>("{}: expected one extent of -1 at most, got two or more", op);
  *unknown = 1;
  const int64_t others = Shape(std::span<const int64_t>(values)).numel();
  if (others == 0 || numel % others != 0)
    raise<ShapeError>("{}: the extents beside -1 hold {} elements; expected a divisor of {}", op,
                      others, numel);
  *unknown = numel / others;
  return Shape(std::span<const int64_t>(values));
}

int Shape::axis(int axis) const {
  const int wrapped = axis < 0 ? axis + rank_ : axis;
  if (wrapped < 0 || wrapped >= rank_)
    raise<ShapeError>("axis {} of shape {}; expected {} to {}", axis, str(), -rank_, rank_ - 1);
  return wrapped;
}

int64_t Shape::operator[](int axis) const { return extent_[this->axis(axis)]; }

int64_t Shape::numel() const {
  int64_t count = 1;
  for (int i = 0; i < rank_; ++i) count *= extent_[i];
  return count;
}

Shape Shape::with(int axis, int64_t extent) const {
  Shape copy = *this;
  copy.extent_[this->axis(axis)] = extent;
  return Shape(copy.extents());
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(extent_[i]);
  return text + "]";
}

Shape broadcast(const Shape& a, const Shape& b, const char* op) {
  const int rank = std::max(a.rank(), b.rank());
  int64_t extents[Shape::max_rank];
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const int64_t ea = ia < 0 ? 1 : a[ia], eb = ib < 0 ? 1 : b[ib];
    if (ea != eb && ea != 1 && eb != 1)
      raise<ShapeError>(
          "{}: cannot broadcast {} with {}; axis {} has {} against {}, expected equal extents or 1",
          op, a, b, i - rank, ea, eb);
    extents[i] = ea == 1 ? eb : ea;
  }
  return Shape(std::span<const int64_t>(extents, static_cast<size_t>(rank)));
}

Strides broadcast_strides(const Shape& shape, const Shape& extents) {
  Strides strides{};
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    if (shape[i] != 1) strides[static_cast<size_t>(i + extents.rank() - shape.rank())] = stride;
    stride *= std::max<int64_t>(shape[i], 1);  // extent 0 counts as 1: no stride becomes 0
  }
  return strides;
}

std::string message_text(const Shape& shape) { return shape.str(); }

}  // namespace zg
