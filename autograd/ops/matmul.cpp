#include "zerograd/kernels/matmul/matmul.h"

#include <algorithm>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/strided.h"
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

/// How the kernel reads the matrices of an operand.
struct Matrix {
  bool transposed = false;
  int64_t row_stride = 0;  ///< between stored rows; 0: they follow each other
};

/// Nothing if neither rows nor columns are contiguous.
std::optional<Matrix> matrix_in(const Layout& x) {
  const int64_t rows = x.shape[-2], columns = x.shape[-1];
  const size_t at = static_cast<size_t>(x.shape.rank() - 2);
  const auto fits = [](int64_t stored, int64_t stride, int64_t width, int64_t step) {
    return (width <= 1 || step == 1) && (stored <= 1 || stride >= width);
  };
  const auto apart = [](int64_t stored, int64_t stride, int64_t width) {
    return stored <= 1 || stride == width ? 0 : stride;
  };
  if (x.is_contiguous()) return Matrix{};
  const int64_t down = x.strides[at], right = x.strides[at + 1];
  if (fits(rows, down, columns, right)) return Matrix{false, apart(rows, down, columns)};
  if (fits(columns, right, rows, down)) return Matrix{true, apart(columns, right, rows)};
  return std::nullopt;
}

/// result [M, N] = left [M, K] right [K, N] for every index of the batch axes.
struct Batch {
  Shape shape;  ///< shape of the result
  int64_t M = 0, N = 0, K = 0;
  Matrix a, b;
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

/// The stride of an operand along axis `axis` of the broadcast leading axes.
int64_t stride_of(const Layout& x, const Shape& lead, int axis) {
  const int own = axis - (lead.rank() - (x.shape.rank() - 2));
  return own < 0 || x.shape.numel() == 0 ? 0 : x.strides[static_cast<size_t>(own)];
}

/// Both operands have matrices that the kernel reads.
Batch batch_of(const Layout& a, const Layout& b) {
  const Shape lead = broadcast(leading(a.shape), leading(b.shape), "matmul");
  Batch batch{.M = a.shape[-2], .N = b.shape[-1], .K = a.shape[-1]};
  batch.shape = with_matrix(lead, batch.M, batch.N);
  batch.a = matrix_in(a).value();
  batch.b = matrix_in(b).value();
  const Strides c_strides = broadcast_strides(lead, lead);
  for (int i = 0; i < lead.rank(); ++i)
    append(batch.axes, {lead[i],
                        {stride_of(a, lead, i), stride_of(b, lead, i),
                         c_strides[static_cast<size_t>(i)] * batch.M * batch.N}});
  // If all indices of the innermost axis share one right matrix, the left matrices become rows of
  // one product.
  const int64_t row_stride = batch.a.row_stride ? batch.a.row_stride : batch.K;
  if (!batch.axes.empty() && batch.axes.back().strides[right] == 0 && !batch.a.transposed &&
      batch.axes.back().strides[left] == batch.M * row_stride) {
    batch.M *= batch.axes.back().extent;
    batch.axes.pop_back();
  }
  return batch;
}

/// Copies an operand if the kernel cannot read it in place, or would add the terms of an element,
/// of the product or of a gradient, in another order than those of a copy. So the bits of a product
/// do not depend on how its operands are stored.
void copy_unless_readable(StridedOperand& a, const Var& a_var, StridedOperand& b,
                          const Var& b_var) {
  if (a.layout.is_contiguous() && b.layout.is_contiguous()) return;
  const Layout of_a = Layout::contiguous(a.layout.shape), of_b = Layout::contiguous(b.layout.shape);
  const int64_t rows = batch_of(of_a, of_b).M;
  if (!matrix_in(a.layout) || batch_of(a.layout, of_b).M != rows) a = {a_var.value(), of_a};
  const std::optional<Matrix> matrix = matrix_in(b.layout);
  if (!matrix || (matrix->transposed && rows <= max_rows_of_dots) ||
      batch_of(of_a, b.layout).M != rows)
    b = {b_var.value(), of_b};
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
/// given. The longest axis along which c changes is the kernel's batch, the others are a loop: few
/// calls. If several products share c, they are added to it in rising order of the index.
void multiply(const Matmul& product, Side a, Side b, Side written, std::vector<BatchAxis> axes,
              Stream& stream) {
  if (product.c.numel() == 0) return;
  for (const BatchAxis& axis : axes)
    if (axis.extent == 0) return fill_zero(product.c, stream);
  BatchAxis inner;
  const auto longest = std::ranges::max_element(axes, {}, [&](const BatchAxis& axis) {
    return axis.strides[written] != 0 ? axis.extent : 0;
  });
  if (longest != axes.end() && longest->strides[written] != 0) {
    inner = *longest;
    axes.erase(longest);
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

struct Layouts {
  Layout a, b;
};

void backward_of_matmul(const Layouts& layouts, const BackwardPass& pass) {
  const Tensor& dy = pass.gradient_of_output();
  if (pass.needs(0)) {
    const Batch n = batch_of(Layout::contiguous(layouts.a.shape), layouts.b);
    const InputGradient da = gradient_of(pass, left, n);
    multiply({.a = dy,
              .b = pass.saved(1),
              .c = da.tensor(),
              .M = n.M,
              .N = n.K,
              .K = n.N,
              .transpose_b = !n.b.transposed,
              .ldb = n.b.row_stride},
             result, right, left, n.axes, pass.stream());
    da.accumulate();
  }
  if (pass.needs(1)) {
    const Batch n = batch_of(layouts.a, Layout::contiguous(layouts.b.shape));
    const InputGradient db = gradient_of(pass, right, n);
    multiply({.a = pass.saved(0),
              .b = dy,
              .c = db.tensor(),
              .M = n.K,
              .N = n.N,
              .K = n.M,
              .transpose_a = !n.a.transposed,
              .lda = n.a.row_stride},
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
  StridedOperand rows = strided_operand("matmul", "a", a);
  check_floating("matmul", "a", rows.source.dtype());
  StridedOperand columns = strided_operand("matmul", "b", b);
  check_alike("matmul", "a", rows.source, "b", columns.source);
  const Shape of_a = rows.layout.shape, of_b = columns.layout.shape;
  check_rank("matmul", "a", of_a, 2);
  check_rank("matmul", "b", of_b, 2);
  if (of_a[-1] != of_b[-2])
    raise<ShapeError>("matmul: a {} does not match b {}; expected {} rows of b, got {}", of_a, of_b,
                      of_a[-1], of_b[-2]);
  copy_unless_readable(rows, a, columns, b);
  const Batch n = batch_of(rows.layout, columns.layout);
  const Tensor y = empty_like(rows.source, n.shape);
  multiply({.a = rows.source,
            .b = columns.source,
            .c = y,
            .M = n.M,
            .N = n.N,
            .K = n.K,
            .transpose_a = n.a.transposed,
            .transpose_b = n.b.transposed,
            .lda = n.a.row_stride,
            .ldb = n.b.row_stride},
           left, right, result, n.axes, y.device().compute());
  // Each operand is read only for the gradient of the other one.
  return record(
      "matmul", {a, b}, y,
      {b.needs_gradient() ? rows.source : Tensor(), a.needs_gradient() ? columns.source : Tensor()},
      Layouts{rows.layout, columns.layout},
      [](const Layouts& layouts, const BackwardPass& pass) { backward_of_matmul(layouts, pass); },
      [](const Layouts& layouts, const ComposedPass& pass) {
        const Var a = with_layout("matmul", pass.input(0, 0), layouts.a);
        const Var b = with_layout("matmul", pass.input(1, 1), layouts.b);
        const Var dy = pass.gradient_of_output();
        if (pass.needs(0)) pass.accumulate(0, matmul(dy, transpose(b, -1, -2)));
        if (pass.needs(1)) pass.accumulate(1, matmul(transpose(a, -1, -2), dy));
      });
}

}  // namespace zg
