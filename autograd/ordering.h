#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "zerograd/autograd/tape.h"

// Ops of order, scans and indices: ops.h includes this header.
namespace zg {

// --- order ---
/// The place of the first largest (smallest) element: a constant, i64. NaN counts as largest (as
/// smallest).
ZG_API Var argmax(const Var& x, int axis = -1, bool keep_axis = false);
ZG_API Var argmin(const Var& x, int axis = -1, bool keep_axis = false);
/// Elements that an op picks along an axis of x. The gradient of x is that of the values at their
/// places, summed, and 0 elsewhere.
struct PickedElements {
  Var values;      ///< x's dtype
  Tensor indices;  ///< i64, where they are in x along the axis
};
/// The elements along an axis in rising or falling order. Equal elements come in the order of their
/// indices (stable); NaN counts as largest.
ZG_API PickedElements sort(const Var& x, int axis = -1, bool descending = false);
ZG_API Tensor argsort(const Var& x, int axis = -1, bool descending = false);  ///< sort()'s indices
/// The first k elements of sort(x, axis, largest): torch.topk. A CPU reads x once and keeps about
/// 2 k elements. ConfigError unless k is in [0, the axis's extent].
ZG_API PickedElements topk(const Var& x, int64_t k, int axis = -1, bool largest = true);

// --- scans ---
/// y[i] = x[0] + ... + x[i] along an axis, in x's dtype, in one pass. The order of a sum depends on
/// its length alone.
ZG_API Var cumsum(const Var& x, int axis);
/// The largest (smallest) of x[0] to x[i], and the place of the last of equal ones, in one pass;
/// NaN counts as largest (as smallest).
ZG_API PickedElements cummax(const Var& x, int axis);
ZG_API PickedElements cummin(const Var& x, int axis);
/// y[i] = x[0] combined with x[1], ... x[i] along an axis, in log2(extent) passes, which combine
/// each element about twice. `combine` is associative, and made of ops that work on each place
/// along the axis alone; an element may be several tensors, with one extent along the axis. The
/// gradient is that of the parts. With `reversed` y[i] = x[n - 1] combined with x[n - 2], ... x[i];
/// `earlier` is then the part of larger i.
/// The states h[t] = a[t] h[t - 1] + b[t] of a linear recurrence, as of Mamba:
///
///     scan({a, b}, 1, [](std::span<const Var> x, std::span<const Var> y) -> std::vector<Var> {
///       const Var carried = y[0] * x[1];
///       return {x[0] * y[0], carried + y[1]};
///     })[1]
using Combine =
    std::function<std::vector<Var>(std::span<const Var> earlier, std::span<const Var> later)>;
ZG_API std::vector<Var> scan(std::span<const Var> x, int axis, const Combine& combine,
                             bool reversed = false);
inline std::vector<Var> scan(std::initializer_list<Var> x, int axis, const Combine& combine,
                             bool reversed = false) {
  return scan(std::span(x.begin(), x.size()), axis, combine, reversed);
}
ZG_API Var cumprod(const Var& x, int axis);       ///< scan() of products
ZG_API Var logcumsumexp(const Var& x, int axis);  ///< scan() of logaddexp()

// --- slices with steps, and elements at places ---
/// The elements begin, begin + step, ... before `end` of an axis, with the meaning of Python's
/// begin:end:step: a negative place counts from the end, one beyond the axis is cut, an absent one
/// is the first or the last. ConfigError if step is 0.
struct AxisRange {
  std::optional<int64_t> begin = {}, end = {};
  int64_t step = 1;
};
/// Ranges of the first axes, the others whole: x[1:, ::-2] is slice(x, {{.begin = 1}, {.step =
/// -2}}).
ZG_API Var slice(const Var& x, std::span<const AxisRange> ranges);
inline Var slice(const Var& x, std::initializer_list<AxisRange> ranges) {
  return slice(x, std::span(ranges.begin(), ranges.size()));
}
/// x with the elements of slice(x, ranges) replaced by `source`, which has their shape.
ZG_API Var slice_scatter(const Var& x, const Var& source, std::span<const AxisRange> ranges);
inline Var slice_scatter(const Var& x, const Var& source, std::initializer_list<AxisRange> ranges) {
  return slice_scatter(x, source, std::span(ranges.begin(), ranges.size()));
}
/// torch.gather: y has index's shape, y[i][j][k] = x[i][index[i][j][k]][k] along axis 1. index (i32
/// | i64) has the rank of x and, except along the axis, at most x's extents.
ZG_API Var gather(const Var& x, int axis, const Tensor& index);
/// torch.scatter_add: y = base, then y[i][index[i][j][k]][k] += source[i][j][k] for every element
/// of index, in rising j. The extents of index are at most those of source and, except along the
/// axis, at most those of base. Elements of source outside of index have a gradient of 0.
ZG_API Var scatter_add(const Var& base, int axis, const Tensor& index, const Var& source);
/// x's slices at the places of an index [n], i32 | i64, along an axis. A place that x has not is a
/// ShapeError: at once on the CPU, of the next synchronize() on an accelerator.
ZG_API Var index_select(const Var& x, int axis, const Tensor& index);
/// x's elements at places of its flat elements, i32 | i64; y has index's shape.
ZG_API Var take(const Var& x, const Tensor& index);
/// y = x, then y[..., index[j], ...] += source[..., j, ...] along an axis, in rising j; index [n]
/// i32 | i64, source of x's shape with n elements along the axis.
ZG_API Var index_add(const Var& x, int axis, const Tensor& index, const Var& source);
/// The same with the largest of them in place of the sum: index_reduce_ with "amax" of torch. The
/// gradient of equal ones is divided among them. A sort and log2(n) passes over `source`. With a
/// base of -infinity and a detached source it is what a softmax over groups subtracts.
ZG_API Var index_max(const Var& x, int axis, const Tensor& index, const Var& source);
/// The indices of the elements that are not 0, [count, rank] i64, in row-major order. The host
/// waits for x. Its shape depends on values: Unsupported on a meta device, as the next one.
ZG_API Tensor nonzero(const Var& x);
/// The elements of x where the mask is true, [count]; both broadcast.
ZG_API Var masked_select(const Var& x, const Var& mask);

}  // namespace zg
