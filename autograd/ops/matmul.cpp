#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// A matrix of a product, and the index of its strides.
enum Side : size_t { left, right, result };

/// A batch axis with the strides of the three matrices, in elements; 0 if a matrix is shared.
struct BatchAxis {
  int64_t extent = 1;
  std::array<int64_t, 3> strides{};
};

/// result [M, N] = left [M, K] right [K, N] for every index of the batch axes.
struct Batch {
  Shape shape;  ///< shape of the result
  int64_t M = 0, N = 0, K = 0;
  std::vector<BatchAxis> axes;
};

Shape leading(const Shape& shape) {
  return Shape(shape.extents().first(static_cast<size_t>(shape.rank() - 2)));
}

Shape with_matrix(const Shape& leading, int64_t rows, int64_t columns) {
  std::vector<int64_t> extents(leading.extents().begin(), leading.extents().end());
  extents.insert(extents.end(), {rows, columns});
  return Shape(extents);
}

/// Appends an axis, or merges it into the previous one if that is possible for all three matrices.
void append(std::vector<BatchAxis>& axes, const BatchAxis& axis) {
  if (axis.extent == 1) return;
  if (!axes.empty()) {
    BatchAxis& outer = axes.back();
    bool even = true;
    for (size_t side = 0; side < 3; ++side)
      even = even && outer.strides[side] == axis.strides[side] * axis.extent;
    if (even) {
      outer = {outer.extent * axis.extent, axis.strides};
      return;
    }
  }
  axes.push_back(axis);
}

Batch batch_of(const Shape& a, const Shape& b) {
  const Shape lead = broadcast(leading(a), leading(b), "matmul");
  Batch batch{.M = a[-2], .N = b[-1], .K = a[-1]};
  batch.shape = with_matrix(lead, batch.M, batch.N);
  const Strides a_strides = broadcast_strides(leading(a), lead);
  const Strides b_strides = broadcast_strides(leading(b), lead);
  const Strides c_strides = broadcast_strides(lead, lead);
  for (size_t i = 0; i < static_cast<size_t>(lead.rank()); ++i)
    append(batch.axes, {lead[static_cast<int>(i)],
                        {a_strides[i] * batch.M * batch.K, b_strides[i] * batch.K * batch.N,
                         c_strides[i] * batch.M * batch.N}});
  // If all indices of the innermost axis share one right matrix, the left matrices become rows of
  // one product.
  if (!batch.axes.empty() && batch.axes.back().strides[right] == 0 &&
      batch.axes.back().strides[left] == batch.M * batch.K) {
    batch.M *= batch.axes.back().extent;
    batch.axes.pop_back();
  }
  return batch;
}

/// Calls f(offsets, first) for every index of `axes` in rising order. `first` is true if no earlier
/// index had the same offset of `written`.
template <class F>
void for_each_place(const std::vector<BatchAxis>& axes, Side written, const F& f) {
  int64_t places = 1;
  for (const BatchAxis& axis : axes) places *= axis.extent;
  for (int64_t place = 0; place < places; ++place) {
    std::array<int64_t, 3> offsets{};
    bool first = true;
    int64_t rest = place;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      const int64_t index = rest % axis->extent;
      rest /= axis->extent;
      for (size_t side = 0; side < 3; ++side) offsets[side] += index * axis->strides[side];
      if (axis->strides[written] == 0 && index > 0) first = false;
    }
    f(offsets, first);
  }
}

Tensor from(const Tensor& x, int64_t offset) { return x.flat(offset, x.numel() - offset); }

/// Runs `product` for every index of `axes`; its c is the matrix `written`, its a and b are those
/// given. One axis is the kernel's batch, the others are a loop. If several products share c, they
/// are added to it in rising order of the index.
void multiply(const Matmul& product, Side a, Side b, Side written, std::vector<BatchAxis> axes,
              Stream& stream) {
  if (product.c.numel() == 0) return;
  for (const BatchAxis& axis : axes)
    if (axis.extent == 0) return fill_zero(product.c, stream);
  BatchAxis inner;
  for (size_t i = axes.size(); i-- > 0;) {
    if (axes[i].strides[written] == 0) continue;
    inner = axes[i];
    axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  for_each_place(axes, written, [&](const std::array<int64_t, 3>& offsets, bool first) {
    Matmul at = product;
    at.a = from(product.a, offsets[a]);
    at.b = from(product.b, offsets[b]);
    at.c = from(product.c, offsets[written]);
    at.accumulate = !first;
    at.batch = inner.extent;
    at.stride_a = inner.strides[a];
    at.stride_b = inner.strides[b];
    at.stride_c = inner.strides[written];
    kernels::matmul(at, stream);
  });
}

bool is_shared(const Batch& batch, Side side) {
  for (const BatchAxis& axis : batch.axes)
    if (axis.strides[side] == 0) return true;
  return false;
}

/// If several indices share a matrix, its gradient is a sum, which is kept in the accumulator
/// dtype.
InputGradient gradient_of(const BackwardPass& pass, Side side, const Batch& batch) {
  const int input = static_cast<int>(side);
  if (!is_shared(batch, side)) return InputGradient(pass, input);
  return InputGradient(pass, input, accumulator(pass.gradient_of_output().dtype()));
}

struct Shapes {
  Shape a, b;
};

void backward_of_matmul(const Shapes& shapes, const BackwardPass& pass) {
  const Batch n = batch_of(shapes.a, shapes.b);
  const Tensor& dy = pass.gradient_of_output();
  if (pass.needs(0)) {
    const InputGradient da = gradient_of(pass, left, n);
    multiply({.a = dy,
              .b = pass.saved(1),
              .c = da.tensor(),
              .M = n.M,
              .N = n.K,
              .K = n.N,
              .transpose_b = true},
             result, right, left, n.axes, pass.stream());
    da.accumulate();
  }
  if (pass.needs(1)) {
    const InputGradient db = gradient_of(pass, right, n);
    multiply({.a = pass.saved(0),
              .b = dy,
              .c = db.tensor(),
              .M = n.K,
              .N = n.N,
              .K = n.M,
              .transpose_a = true},
             left, result, right, n.axes, pass.stream());
    db.accumulate();
  }
}

}  // namespace

Var matmul(const Var& a, const Var& b) {
  const bool is_row = a && a.shape().rank() == 1, is_column = b && b.shape().rank() == 1;
  if (is_row || is_column) {
    const Var left = is_row ? unsqueeze(a, 0) : a, right = is_column ? unsqueeze(b, 1) : b;
    const Var y = matmul(left, right), columns = is_column ? squeeze(y, -1) : y;
    return is_row ? squeeze(columns, is_column ? -1 : -2) : columns;
  }
  const Tensor rows = floating_operand("matmul", "a", a), columns = operand("matmul", "b", b);
  check_alike("matmul", "a", rows, "b", columns);
  check_rank("matmul", "a", rows, 2);
  check_rank("matmul", "b", columns, 2);
  if (rows.extent(-1) != columns.extent(-2))
    raise<ShapeError>("matmul: a {} does not match b {}; expected {} rows of b, got {}",
                      rows.shape(), columns.shape(), rows.extent(-1), columns.extent(-2));
  const Batch n = batch_of(rows.shape(), columns.shape());
  const Tensor y = empty_like(rows, n.shape);
  multiply({.a = rows, .b = columns, .c = y, .M = n.M, .N = n.N, .K = n.K}, left, right, result,
           n.axes, y.device().compute());
  // Each operand is read only for the gradient of the other one.
  return record(
      "matmul", {a, b}, y,
      {b.needs_gradient() ? rows : Tensor(), a.needs_gradient() ? columns : Tensor()},
      Shapes{rows.shape(), columns.shape()},
      [](const Shapes& s, const BackwardPass& pass) { backward_of_matmul(s, pass); },
      [](const Shapes&, const ComposedPass& pass) {
        const Var a = pass.input(0, 0), b = pass.input(1, 1);
        const Var dy = pass.gradient_of_output();
        if (pass.needs(0)) pass.accumulate(0, matmul(dy, transpose(b, -1, -2)));
        if (pass.needs(1)) pass.accumulate(1, matmul(transpose(a, -1, -2), dy));
      });
}

}  // namespace zg
