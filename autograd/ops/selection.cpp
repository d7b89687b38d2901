#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <optional>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/runtime/text/format.h"

// Logic, and ops that choose or move elements. Besides slices they are made of other ops.
namespace zg {
namespace {

Tensor bool_operand(const char* op, const char* name, const Var& x) {
  const Tensor values = operand(op, name, x);
  check_dtype(op, name, values, DType::boolean);
  return values;
}

/// The elements of a contiguous tensor that ranges of its first axes choose.
struct Chosen {
  Shape extents;
  Strides strides;
  int64_t offset = 0;

  Chosen(const char* op, const Shape& shape, std::span<const AxisRange> ranges)
      : extents(shape), strides(broadcast_strides(shape, shape)) {
    if (static_cast<int>(ranges.size()) > shape.rank())
      refuse_shape(op, "x", shape,
                   fmt::format("rank {} or more, one for each range", ranges.size()));
    for (int axis = 0; axis < static_cast<int>(ranges.size()); ++axis) {
      const auto& [begin, end, step] = ranges[static_cast<size_t>(axis)];
      const int64_t extent = shape[axis], low = step > 0 ? 0 : -1, high = extent + low;
      if (step == 0 || step == std::numeric_limits<int64_t>::min())
        raise<ConfigError>("{}: the step along axis {} is {}; expected 1, 2, ... or -1, -2, ...",
                           op, axis, step);
      const auto place = [&](std::optional<int64_t> at, int64_t absent) {
        return at ? std::clamp(*at < 0 ? *at + extent : *at, low, high) : absent;
      };
      const int64_t first = place(begin, step > 0 ? low : high);
      const int64_t last = place(end, step > 0 ? high : low);
      const int64_t length = step > 0 ? last - first : first - last;
      extents = extents.with(axis, length > 0 ? (length - 1) / std::abs(step) + 1 : 0);
      int64_t& stride = strides[static_cast<size_t>(axis)];
      offset += first * stride;
      if (extents[axis] > 1) stride *= step;
    }
  }

  /// y, of shape `extents`, from x.
  void read(const Tensor& x, const Tensor& y, Stream& stream) const {
    if (extents.numel() == 0) return;
    kernels::strided_copy({x, y, extents, strides, broadcast_strides(extents, extents), offset},
                          stream);
  }
  /// The elements of y from x, which has one or shape `extents`.
  void write(const Tensor& x, const Tensor& y, Stream& stream) const {
    if (extents.numel() == 0) return;
    kernels::strided_copy(
        {x, y, extents, broadcast_strides(x.shape(), extents), strides, 0, offset}, stream);
  }
};

Var scattered_of(const Var& x, const Var& source, const Chosen& chosen);

Var chosen_of(const char* op, const Var& x, const Chosen& chosen) {
  const Tensor values = x.value(), y = empty_like(values, chosen.extents);
  chosen.read(values, y, y.device().compute());
  return record(
      op, {x}, y, {}, chosen,
      [](const Chosen& part, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        if (dy.numel() < dx.tensor().numel()) fill_zero(dx.tensor(), pass.stream());
        part.write(dy, dx.tensor(), pass.stream());
        dx.accumulate();
      },
      [](const Chosen& part, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        const Var none = Tensor::zeros(pass.shape_of(0), dy.dtype(), dy.device());
        pass.accumulate(0, scattered_of(none, dy, part));
      });
}

/// x with `source` in place of the chosen elements.
Var scattered_of(const Var& x, const Var& source, const Chosen& chosen) {
  const Tensor values = x.value(), y = empty_like(values);
  copy(values, y, y.device().compute());
  chosen.write(source.value(), y, y.device().compute());
  return record(
      "slice_scatter", {x, source}, y, {}, chosen,
      [](const Chosen& part, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        if (const InputGradient dx(pass, 0, dy.dtype()); dx) {
          copy(dy, dx.tensor(), pass.stream());
          const Tensor none = Tensor::full({}, 0.0, dy.dtype(), dy.device());
          part.write(none, dx.tensor(), pass.stream());
          dx.accumulate();
        }
        const InputGradient dsource(pass, 1, dy.dtype());
        if (!dsource) return;
        part.read(dy, dsource.tensor(), pass.stream());
        dsource.accumulate();
      },
      [](const Chosen& part, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        const Var none = Tensor::zeros(part.extents, dy.dtype(), dy.device());
        if (pass.needs(0)) pass.accumulate(0, scattered_of(dy, none, part));
        if (pass.needs(1)) pass.accumulate(1, chosen_of("slice", dy, part));
      });
}

/// The flat places of the elements that are not 0.
std::vector<int64_t> places_of_nonzero(const char* op, const Var& x) {
  if (operand(op, "x", x).device().type() == Device::Type::meta)
    raise<Unsupported>(
        "{}: the shape of the result depends on values, which a plan does not have; try where() or "
        "masked_fill(), which keep the shape",
        op);
  const Var flags = cast(detach(x), DType::boolean);
  const std::vector<bool> host = flags.value().to_host<bool>();
  std::vector<int64_t> places;
  for (size_t i = 0; i < host.size(); ++i)
    if (host[i]) places.push_back(static_cast<int64_t>(i));
  return places;
}

}  // namespace

Var logical_and(const Var& a, const Var& b) {
  bool_operand("logical_and", "a", a), bool_operand("logical_and", "b", b);
  return named("logical_and", [&] { return where(a, b, a); });
}

Var logical_or(const Var& a, const Var& b) {
  bool_operand("logical_or", "a", a), bool_operand("logical_or", "b", b);
  return named("logical_or", [&] { return where(a, a, b); });
}

Var logical_not(const Var& x) {
  const Device device = bool_operand("logical_not", "x", x).device();
  const Var no(Tensor::full({}, 0, DType::boolean, device));
  const Var yes(Tensor::full({}, 1, DType::boolean, device));
  return where(x, no, yes);
}

Var isnan(const Var& x) {
  floating_operand("isnan", "x", x);
  return not_equal(x, x);
}

Var isfinite(const Var& x) {
  floating_operand("isfinite", "x", x);
  const Var size = abs(detach(x));
  return less(size, std::numeric_limits<double>::infinity());
}

Var any(const Var& x, const Axes& axes, bool keep_axes) {
  bool_operand("any", "x", x);
  const Var ones = cast(x, DType::f32);
  const Var count = named("any", [&] { return sum(ones, axes, keep_axes); });
  return cast(count, DType::boolean);  // a sum of ones is never 0 again
}

Var all(const Var& x, const Axes& axes, bool keep_axes) {
  bool_operand("all", "x", x);
  const Var wrong = logical_not(x);
  return logical_not(named("all", [&] { return any(wrong, axes, keep_axes); }));
}

Var flip(const Var& x, const Axes& axes) {
  const Shape shape = operand("flip", "x", x).shape();
  std::vector<AxisRange> ranges(static_cast<size_t>(shape.rank()));
  for (const int axis : axes) ranges[static_cast<size_t>(axis_of("flip", shape, axis))].step = -1;
  return chosen_of("flip", x, Chosen("flip", shape, ranges));
}

Var slice(const Var& x, std::span<const AxisRange> ranges) {
  return chosen_of("slice", x, Chosen("slice", operand("slice", "x", x).shape(), ranges));
}

Var slice_scatter(const Var& x, const Var& source, std::span<const AxisRange> ranges) {
  const char* op = "slice_scatter";
  const Tensor values = operand(op, "x", x), written = operand(op, "source", source);
  check_alike(op, "x", values, "source", written);
  const Chosen chosen(op, values.shape(), ranges);
  if (written.shape() != chosen.extents)
    refuse_shape(op, "source", written.shape(), chosen.extents.str());
  return scattered_of(x, source, chosen);
}

Var roll(const Var& x, int64_t shift, int axis) {
  const Shape shape = operand("roll", "x", x).shape();
  axis = axis_of("roll", shape, axis);
  const int64_t extent = shape[axis];
  if (extent == 0) return x;
  const int64_t begin = extent - (shift % extent + extent) % extent;
  if (begin == extent) return x;
  const Var last = slice(x, axis, begin, extent), first = slice(x, axis, 0, begin);
  return concat({last, first}, axis);
}

Tensor nonzero(const Var& x) {
  const std::vector<int64_t> places = places_of_nonzero("nonzero", x);
  const Shape shape = x.shape();
  const auto count = std::ssize(places);
  std::vector<int64_t> coordinates;
  for (const int64_t place : places) {
    int64_t stride = shape.numel();
    for (const int64_t extent : shape.extents()) {
      stride /= extent;
      coordinates.push_back(place / stride % extent);
    }
  }
  return Tensor::from(coordinates, {count, shape.rank()}, x.value().device());
}

Var masked_select(const Var& x, const Var& mask) {
  const Shape whole =
      broadcast(operand("masked_select", "x", x).shape(),
                bool_operand("masked_select", "mask", mask).shape(), "masked_select");
  const std::vector<int64_t> places = places_of_nonzero("masked_select", broadcast_to(mask, whole));
  const auto count = std::ssize(places);
  return take(broadcast_to(x, whole), Tensor::from(places, {count}, x.value().device()));
}

Var take(const Var& x, const Tensor& index) {
  operand("take", "x", x), check_index("take", "index", index);
  const Var flat = reshape(x, {-1});
  const Var line = named("take", [&] { return gather(flat, 0, index.view({index.numel()})); });
  return reshape(line, index.shape());
}

Var diag(const Var& x, int64_t diagonal) {
  const Tensor values = operand("diag", "x", x);
  const Shape& shape = values.shape();
  if (diagonal > INT32_MAX || diagonal < -INT32_MAX)
    raise<ShapeError>("diag: diagonal {}; expected one between -2^31 and 2^31", diagonal);
  const int64_t right = std::max<int64_t>(diagonal, 0), down = std::max<int64_t>(-diagonal, 0);
  if (shape.rank() ==
      1) {  // column j of row j - diagonal is the element j of x, moved to the right
    const Tensor columns = arange(0, shape[0] + right + down, DType::i64, values.device());
    const Var line = pad(x, 0, right, down), rows = unsqueeze(add(Var(columns), 1.0 * diagonal), 1);
    return masked_fill(line, not_equal(rows, Var(columns)), 0.0);
  }
  if (shape.rank() != 2) refuse_shape("diag", "x", shape, "rank 1 or 2");
  const int64_t count = std::min(shape[0] - down, shape[1] - right);
  if (count < 0)
    refuse_shape("diag", "x", shape, fmt::format("a matrix that has diagonal {}", diagonal));
  const Var rows = slice(x, 0, down, down + count);
  const Tensor places = arange(right, right + count, DType::i64, values.device());
  return reshape(gather(rows, 1, places.view({count, 1})), {count});
}

std::vector<Var> meshgrid(std::span<const Var> axes) {
  if (axes.size() > Shape::max_rank)
    raise<ShapeError>("meshgrid: {} axes; expected at most {}", axes.size(), Shape::max_rank);
  std::vector<int64_t> extents;
  for (const Var& axis : axes) {
    const Shape shape = operand("meshgrid", "an axis", axis).shape();
    if (shape.rank() != 1) refuse_shape("meshgrid", "an axis", shape, "rank 1");
    extents.push_back(shape[0]);
  }
  const Shape whole(extents);
  std::vector<Var> grids;
  for (size_t i = 0; i < axes.size(); ++i) {
    std::vector<int64_t> own(extents.size(), 1);
    own[i] = extents[i];
    const Var line = reshape(axes[i], Shape(own));
    grids.push_back(broadcast_to(line, whole));
  }
  return grids;
}

}  // namespace zg
