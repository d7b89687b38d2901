#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/shape.h"

namespace zg::cpu {

/// Nested loops over the axes of a shape, with the strides of several operands. Axes of extent 1
/// are dropped, and neighbouring axes merged if they are contiguous in every operand, so operands
/// of equal contiguous shapes have one loop.
template <size_t operands>
class LoopNest {
 public:
  using Offsets = std::array<int64_t, operands>;

  LoopNest(const Shape& extents, const std::array<Strides, operands>& strides)
      : numel_(extents.numel()) {
    for (int axis = 0; axis < extents.rank(); ++axis) {
      if (extents[axis] == 1) continue;
      Axis next{extents[axis], {}};
      for (size_t k = 0; k < operands; ++k) next.strides[k] = strides[k][static_cast<size_t>(axis)];
      if (rank_ > 0 && continues(axes_[rank_ - 1], next)) next.extent *= axes_[--rank_].extent;
      axes_[rank_++] = next;
    }
    if (rank_ == 0) axes_[rank_++] = {1, {}};
  }

  int64_t numel() const { return numel_; }
  int64_t inner_stride(size_t operand) const { return axes_[rank_ - 1].strides[operand]; }

  /// Calls f(offsets, count) for each run along the innermost axis of the elements [begin, end) in
  /// row-major order. offsets[k] is where the run begins in operand k.
  template <class F>
  void run(int64_t begin, int64_t end, const F& f) const {
    int64_t index[Shape::max_rank] = {};
    Offsets offsets{};
    int64_t rest = begin;
    for (size_t axis = rank_; axis-- > 0;) {
      index[axis] = rest % axes_[axis].extent;
      rest /= axes_[axis].extent;
      for (size_t k = 0; k < operands; ++k) offsets[k] += index[axis] * axes_[axis].strides[k];
    }
    const size_t inner = rank_ - 1;
    while (begin < end) {
      const int64_t count = std::min(axes_[inner].extent - index[inner], end - begin);
      f(static_cast<const Offsets&>(offsets), count);
      begin += count;
      advance(inner, count, index, offsets);
    }
  }

 private:
  struct Axis {
    int64_t extent;
    Offsets strides;
  };

  static bool continues(const Axis& outer, const Axis& inner) {
    for (size_t k = 0; k < operands; ++k)
      if (outer.strides[k] != inner.strides[k] * inner.extent) return false;
    return true;
  }

  void advance(size_t axis, int64_t count, int64_t* index, Offsets& offsets) const {
    for (;; --axis, count = 1) {
      index[axis] += count;
      for (size_t k = 0; k < operands; ++k) offsets[k] += count * axes_[axis].strides[k];
      if (index[axis] < axes_[axis].extent || axis == 0) return;
      for (size_t k = 0; k < operands; ++k) offsets[k] -= index[axis] * axes_[axis].strides[k];
      index[axis] = 0;
    }
  }

  int64_t numel_;
  size_t rank_ = 0;
  Axis axes_[Shape::max_rank] = {};
};

/// Elements of one task of an elementwise loop: enough to make the time to start a task
/// insignificant.
inline constexpr int64_t elementwise_grain = 1 << 14;

template <size_t operands, class F>
void for_each_run(int threads, const LoopNest<operands>& nest, const F& f) {
  parallel_for(threads, nest.numel(), elementwise_grain,
               [&](int64_t begin, int64_t end) { nest.run(begin, end, f); });
}

}  // namespace zg::cpu
