#include "zerograd/autograd/convolution.h"

#include <algorithm>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/window/window.h"
#include "zerograd/runtime/text/format.h"

// A convolution copies its windows, a part of them at a time, and multiplies them by the weight; a
// depthwise one sums them by a kernel of its own. The gradient of x sums the gradients of the
// windows' elements by the same kernel.
namespace zg {
namespace {

/// x [N, C, H, W], and y [N, O, rows, columns] with an element for each window. The weight of a
/// convolution is [O, C / groups, window]. A transposed convolution computes x from y.
struct Conv {
  Shape x, y;
  int64_t groups = 1;
  bool transposed = false;
  Window window = {};
  int64_t divisor = 1;  ///< of a pool's sums

  int64_t places() const { return window[0].size * window[1].size; }
  bool is_depthwise() const { return groups == x[1] && groups == y[1]; }
  int64_t rows_of_weight() const { return y[1] / groups; }
  int64_t columns_of_weight() const { return x[1] / groups * places(); }
  /// The columns of x and its padding that one row of windows reads.
  int64_t line() const {
    return (y[3] - 1) * window[1].stride + (window[1].size - 1) * window[1].dilation + 1;
  }
  /// With strides of 1 a row of windows is copied with a length of line(), so that many rows are
  /// copied at once; what lies beyond y's columns belongs to no window.
  bool by_line() const { return window[0].stride == 1 && window[1].stride == 1; }
  int64_t width() const { return by_line() ? line() : y[3]; }
};

/// Rows of y, of some samples.
struct Part {
  int64_t sample, samples, row, rows;
};

/// Up to `fitting` of `all`; if not all, a multiple of 16 or 8, since products read rows of whole
/// vectors as they are.
int64_t at_most(int64_t fitting, int64_t all) {
  if (fitting >= all) return all;
  return std::max<int64_t>(fitting < 8 ? fitting : fitting < 16 ? 8 : fitting / 16 * 16, 1);
}

/// Calls f(part) for parts of y whose windows have about as many elements as fit into a cache, or
/// on an accelerator as keep it busy. A row of windows has `row` elements.
template <class F>
void for_parts(const Conv& n, const Device& device, int64_t row, bool whole_samples, const F& f) {
  const bool on_host = device.traits().backend == Device::Type::cpu;
  const int64_t elements = int64_t{1} << (on_host ? 20 : 24), N = n.y[0], H = n.y[2];
  const int64_t samples = at_most(elements / (row * H), std::max<int64_t>(N, 1));
  const int64_t rows = samples > 1 || whole_samples ? H : at_most(elements / row, H);
  for (int64_t sample = 0; sample < N; sample += samples)
    for (int64_t first = 0; first < H; first += rows)
      f(Part{sample, std::min(samples, N - sample), first, std::min(rows, H - first)});
}

/// The rows of x that a part reads, [samples, C, rows, line()], with its padding; one row more
/// where lines are copied, whose last one is read beyond its windows.
Tensor padded(const Conv& n, const Tensor& x, const Part& part, Stream& stream) {
  const WindowAxis& axis = n.window[0];
  const int64_t C = n.x[1], H = n.x[2], W = n.x[3], line = n.line();
  const int64_t first = part.row * axis.stride - axis.before;
  const int64_t count = (part.rows - 1) * axis.stride + (axis.size - 1) * axis.dilation + 1;
  const Tensor y = empty_like(x, {part.samples, C, count + n.by_line(), line});
  fill_zero(y, stream);
  const int64_t top = std::max<int64_t>(-first, 0), bottom = std::min(count, H - first);
  const int64_t left = n.window[1].before, right = std::min(line, W + left);
  if (bottom > top && right > left)
    kernels::strided_copy({.x = x,
                           .y = y,
                           .extents = {part.samples, C, bottom - top, right - left},
                           .x_strides = broadcast_strides(n.x, n.x),
                           .y_strides = broadcast_strides(y.shape(), y.shape()),
                           .x_offset = part.sample * C * H * W + (first + top) * W,
                           .y_offset = top * line + left},
                          stream);
  return y;
}

/// The windows of a part: [C, places, samples, rows, width].
Tensor copied_windows(const Conv& n, const Tensor& x, const Part& part, Stream& stream) {
  const Tensor lines = padded(n, x, part, stream);
  const auto& [rows, columns] = n.window;
  const int64_t C = n.x[1], line = n.line(), plane = lines.extent(2) * line, width = n.width();
  const Tensor y = empty_like(x, {C, n.places(), part.samples, part.rows, width});
  const Shape extents{C, rows.size, columns.size, part.samples, part.rows, width};
  kernels::strided_copy({.x = lines,
                         .y = y,
                         .extents = extents,
                         .x_strides = {plane, rows.dilation * line, columns.dilation, C * plane,
                                       rows.stride * line, columns.stride},
                         .y_strides = broadcast_strides(extents, extents)},
                        stream);
  return y;
}

/// Copies a part of y to or from `lines` [O, samples, rows, width].
void copy_part(const Conv& n, const Part& part, const Tensor& y, const Tensor& lines, bool to_y,
               Stream& stream) {
  const int64_t O = n.y[1], width = lines.extent(-1), plane = n.y[2] * n.y[3];
  StridedCopy copy{.x = y,
                   .y = lines,
                   .extents = {O, part.samples, part.rows, n.y[3]},
                   .x_strides = {plane, O * plane, n.y[3], 1},
                   .y_strides = broadcast_strides(lines.shape(), lines.shape()),
                   .x_offset = part.sample * O * plane + part.row * n.y[3]};
  if (width > n.y[3] && !to_y) fill_zero(lines, stream);
  if (to_y) {
    std::swap(copy.x, copy.y), std::swap(copy.x_strides, copy.y_strides);
    std::swap(copy.x_offset, copy.y_offset);
  }
  kernels::strided_copy(copy, stream);
}

/// window_reduce(); lines that are columns of width 1 are summed as rows.
void sum_windows(WindowReduce sum, Stream& stream) {
  if (sum.x.extent(-1) == 1 && sum.y.extent(-1) == 1 && sum.window[1].size == 1) {
    std::swap(sum.window[0], sum.window[1]);
    const auto turned = [](const Shape& shape) {
      return shape.with(shape.rank() - 1, shape[-2]).with(shape.rank() - 2, 1);
    };
    sum.x = sum.x.view(turned(sum.x.shape()));
    sum.y = sum.y.view(turned(sum.y.shape()));
  }
  kernels::window_reduce(sum, stream);
}

/// y = x convolved with the weight, plus the bias, which may be absent.
void convolve(const Conv& n, const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Tensor& y, Stream& stream) {
  if (n.is_depthwise())
    return sum_windows({x, weight.view({n.y[1], n.places()}), bias, y, n.window}, stream);
  const int64_t O = n.rows_of_weight(), K = n.columns_of_weight();
  for_parts(n, y.device(), n.x[1] * n.places() * n.width(), false, [&](const Part& part) {
    const Tensor windows = copied_windows(n, x, part, stream);
    const Tensor lines = empty_like(x, {n.y[1], part.samples, part.rows, n.width()});
    const int64_t count = lines.numel() / n.y[1];
    kernels::matmul({.a = weight,
                     .b = windows,
                     .c = lines,
                     .M = O,
                     .N = count,
                     .K = K,
                     .batch = n.groups,
                     .stride_a = O * K,
                     .stride_b = K * count,
                     .stride_c = O * count},
                    stream);
    if (bias) {
      const Tensor all = lines.view({n.y[1], count});
      kernels::binary({BinaryOp::add, all, bias.view({n.y[1], 1}), all}, stream);
    }
    copy_part(n, part, y, lines, true, stream);
  });
}

/// x = the gradient of convolve()'s x, where that of its result is y; plus the bias, which may be
/// absent.
void convolve_back(const Conv& n, const Tensor& y, const Tensor& weight, const Tensor& bias,
                   const Tensor& x, Stream& stream) {
  if (n.is_depthwise())
    return sum_windows({y, weight.view({n.y[1], n.places()}), bias, x, n.window, true}, stream);
  const int64_t O = n.rows_of_weight(), K = n.columns_of_weight();
  const int64_t elements_of_row = n.x[1] * n.places() * n.y[3];
  for_parts(n, y.device(), elements_of_row, true, [&](const Part& part) {
    const Shape shape{n.y[1], part.samples, n.y[2], n.y[3]};
    const int64_t count = shape.numel() / n.y[1];
    Tensor lines;
    if (part.samples > 1)
      copy_part(n, part, y, lines = empty_like(y, shape), false, stream);
    else
      lines = y.slice(part.sample, part.sample + 1);
    const Tensor windows = empty_like(y, {n.x[1], n.places(), part.samples, n.y[2], n.y[3]});
    kernels::matmul({.a = weight,
                     .b = lines,
                     .c = windows,
                     .M = K,
                     .N = count,
                     .K = O,
                     .transpose_a = true,
                     .batch = n.groups,
                     .stride_a = O * K,
                     .stride_b = O * count,
                     .stride_c = K * count},
                    stream);
    const Tensor samples = x.slice(part.sample, part.sample + part.samples);
    sum_windows({windows, {}, bias, samples, n.window, true}, stream);
  });
}

/// The gradient of the weight, in the accumulator dtype, from x and the gradient of y. The product
/// has the weight's columns as its rows: then the windows are read as they are.
void gradient_of_weight(const Conv& n, const Tensor& x, const Tensor& y, const Tensor& gradient,
                        Stream& stream) {
  const int64_t O = n.rows_of_weight(), K = n.columns_of_weight();
  const Tensor sums = empty_like(gradient, {n.groups, K, O});
  bool first = true;
  for_parts(n, y.device(), n.x[1] * n.places() * n.width(), false, [&](const Part& part) {
    const Tensor windows = copied_windows(n, x, part, stream);
    const Tensor lines = empty_like(x, {n.y[1], part.samples, part.rows, n.width()});
    copy_part(n, part, y, lines, false, stream);
    const int64_t count = lines.numel() / n.y[1];
    kernels::matmul({.a = windows,
                     .b = lines,
                     .c = sums,
                     .M = K,
                     .N = O,
                     .K = count,
                     .transpose_b = true,
                     .accumulate = !std::exchange(first, false),
                     .batch = n.groups,
                     .stride_a = K * count,
                     .stride_b = O * count,
                     .stride_c = O * K},
                    stream);
  });
  if (first) return fill_zero(gradient, stream);
  kernels::strided_copy({.x = sums,
                         .y = gradient,
                         .extents = {n.groups, O, K},
                         .x_strides = {K * O, 1, O},
                         .y_strides = {O * K, K, 1}},
                        stream);
}

Conv transposed(Conv n) {
  n.transposed = !n.transposed;
  return n;
}

/// `from` is x, or y of a transposed convolution.
Var record_convolution(const char* op, const Var& from, const Var& weight, const Var& bias,
                       const Conv& n);

/// gradient_of_weight() as an op, for derivatives of gradients. x and y are those of `n`.
Var record_gradient_of_weight(const Var& x, const Var& y, const Conv& n) {
  const Tensor values = x.value(), slopes = y.value();
  const Shape shape{n.y[1], n.x[1] / n.groups, n.window[0].size, n.window[1].size};
  const Tensor sums = Tensor::empty(shape, accumulator(values.dtype()), values.device());
  gradient_of_weight(n, values, slopes, sums, sums.device().compute());
  return record(
      "conv", {x, y}, cast(sums, values.dtype()).value(),
      {y.needs_gradient() ? values : Tensor(), x.needs_gradient() ? slopes : Tensor()}, n,
      [](const Conv& c, const BackwardPass& pass) {
        const Tensor& weight = pass.gradient_of_output();
        if (const InputGradient dx(pass, 0, weight.dtype()); dx) {
          convolve_back(c, pass.saved(1), weight, {}, dx.tensor(), pass.stream());
          dx.accumulate();
        }
        if (const InputGradient dy(pass, 1, weight.dtype()); dy) {
          convolve(c, pass.saved(0), weight, {}, dy.tensor(), pass.stream());
          dy.accumulate();
        }
      },
      [](const Conv& c, const ComposedPass& pass) {
        const Var weight = pass.gradient_of_output();
        const Conv forward = c.transposed ? transposed(c) : c;
        if (pass.needs(0))
          pass.accumulate(
              0, record_convolution("conv", pass.input(1, 1), weight, {}, transposed(forward)));
        if (pass.needs(1))
          pass.accumulate(1, record_convolution("conv", pass.input(0, 0), weight, {}, forward));
      });
}

Var record_convolution(const char* op, const Var& from, const Var& weight, const Var& bias,
                       const Conv& n) {
  const Tensor values = from.value(), matrix = weight.value();
  const Tensor to = empty_like(values, n.transposed ? n.x : n.y);
  const auto run = n.transposed ? convolve_back : convolve;
  const Tensor added = bias ? bias.value().view({bias.value().numel()}) : Tensor();
  if (to.numel() > 0) run(n, values, matrix, added, to, to.device().compute());
  return record(
      op, {from, weight, bias}, to,
      {weight.needs_gradient() ? values : Tensor(), from.needs_gradient() ? matrix : Tensor()}, n,
      [](const Conv& c, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        Stream& stream = pass.stream();
        if (const InputGradient dx(pass, 0, dy.dtype()); dx) {
          const auto back = c.transposed ? convolve : convolve_back;
          if (dy.numel() > 0) back(c, dy, pass.saved(1), {}, dx.tensor(), stream);
          dx.accumulate();
        }
        if (const InputGradient dw(pass, 1, accumulator(dy.dtype())); dw) {
          const Tensor x = pass.saved(0);
          gradient_of_weight(c, c.transposed ? dy : x, c.transposed ? x : dy, dw.tensor(), stream);
          dw.accumulate();
        }
        if (pass.needs(2)) accumulate_reduced(pass, 2, dy, {dy.extent(1), 1, 1});
      },
      [](const Conv& c, const ComposedPass& pass) {
        const Var dy = pass.gradient_of_output();
        if (pass.needs(0))
          pass.accumulate(0, record_convolution("conv", dy, pass.input(1, 1), {}, transposed(c)));
        if (pass.needs(1)) {
          const Var x = pass.input(0, 0);
          pass.accumulate(
              1, record_gradient_of_weight(c.transposed ? dy : x, c.transposed ? x : dy, c));
        }
        pass.accumulate(2, dy);
      });
}

/// The numbers of one axis, from the caller.
struct AxisOptions {
  int64_t size, stride, before, after, dilation, output_padding = 0;
};

/// Sets the axis 2 + i of the windows and of the result, from the operand's.
void set_axis(const char* op, Conv& n, int i, const AxisOptions& a) {
  Shape& result = n.transposed ? n.x : n.y;
  const int64_t given = (n.transposed ? n.y : n.x)[2 + i], more = a.output_padding;
  if (std::min(a.stride, a.dilation) < 1 || std::min({a.before, a.after, more}) < 0 ||
      std::max({a.stride, a.dilation, a.before, a.after}) > INT32_MAX ||
      (more > 0 && more >= std::max(a.stride, a.dilation)))
    raise<ConfigError>(
        "{}: stride {}, dilation {}, padding {}, output_padding {}; expected a stride and dilation "
        "above 0, padding of 0 or more, all below 2^31, output_padding below one of the first two",
        op, a.stride, a.dilation, std::min(a.before, a.after), more);
  const int64_t reach = a.dilation * (a.size - 1) + 1, padded = given + a.before + a.after;
  const int64_t extent = n.transposed     ? (given - 1) * a.stride - 2 * a.before + reach + more
                         : padded < reach ? 0
                                          : (padded - reach) / a.stride + 1;
  if (a.size < 1 || given < 1 || extent < 1)
    raise<ShapeError>(
        "{}: a kernel of {} with dilation {} makes {} elements of {} and padding {}; expected 1 or "
        "more",
        op, a.size, a.dilation, extent, given, a.before + a.after);
  n.window[static_cast<size_t>(i)] = {a.size, a.stride, a.before, a.dilation};
  result = result.with(2 + i, extent);
}

/// Images, or with rank 3 lines, which are images with one column. `causal`: no padding behind the
/// last row.
Var conv(const char* op, int rank, bool transposed, const Var& x, const Var& weight,
         const Var& bias, const ConvTranspose2dOptions& o, bool causal = false) {
  const Tensor values = floating_operand(op, "x", x), matrix = operand(op, "weight", weight);
  check_alike(op, "x", values, "weight", matrix);
  const Shape &shape = values.shape(), &w = matrix.shape();
  if (shape.rank() != rank)
    refuse_shape(op, "x", shape, rank == 3 ? "[N, channels, T]" : "[N, channels, H, W]");
  const int64_t in = shape[1];
  if (o.groups < 1 || in < 1 || in % o.groups != 0)
    raise<ConfigError>("{}: {} groups of x {}; expected a divisor of its {} channels", op, o.groups,
                       shape, in);
  const char* kernel = rank == 3 ? "K" : "rows, columns";
  const int64_t out = w.rank() != rank ? 0 : transposed ? w[1] * o.groups : w[0];
  if (out < 1 || out % o.groups != 0 || (transposed ? w[0] != in : w[1] != in / o.groups))
    refuse_shape(op, "weight", w,
                 transposed ? fmt::format("[{}, out / groups, {}] for x {}", in, kernel, shape)
                            : fmt::format("[out, {}, {}] for x {}, and a multiple of {} groups",
                                          in / o.groups, kernel, shape, o.groups));
  if (bias) check_alike(op, "x", values, "bias", bias.value());
  if (bias && bias.shape() != Shape{out}) refuse_shape(op, "bias", bias.shape(), Shape{out}.str());

  const bool is_line = rank == 3;
  const Var image = is_line ? unsqueeze(x, -1) : x,
            plane = is_line ? unsqueeze(weight, -1) : weight;
  const Var added = bias ? reshape(bias, {out, 1, 1}) : Var();
  const Shape from = image.shape(), size = plane.shape(), to = from.with(1, out);
  Conv n{transposed ? to : from, transposed ? from : to, o.groups, transposed};
  const int64_t before = causal ? o.dilation.rows * (size[2] - 1) : o.padding.rows;
  set_axis(
      op, n, 0,
      {size[2], o.stride.rows, before, o.padding.rows, o.dilation.rows, o.output_padding.rows});
  set_axis(op, n, 1,
           {size[3], o.stride.columns, o.padding.columns, o.padding.columns, o.dilation.columns,
            o.output_padding.columns});
  const Var y = record_convolution(op, image, plane, added, n);
  return is_line ? squeeze(y, -1) : y;
}

/// The sums of windows of x, divided; transposed: the gradient of that.
Var window_reduces(const char* op, const Var& x, const Conv& n) {
  const Tensor values = x.value(), y = empty_like(values, n.transposed ? n.x : n.y);
  kernels::window_reduce({values, {}, {}, y, n.window, n.transposed, n.divisor},
                         y.device().compute());
  return record(
      op, {x}, y, {}, n,
      [](const Conv& c, const BackwardPass& pass) {
        const Tensor& dy = pass.gradient_of_output();
        const InputGradient dx(pass, 0, dy.dtype());
        kernels::window_reduce({dy, {}, {}, dx.tensor(), c.window, !c.transposed, c.divisor},
                               pass.stream());
        dx.accumulate();
      },
      [](const Conv& c, const Var& dy) { return window_reduces("avg_pool", dy, transposed(c)); });
}

/// The largest elements of windows of x; the gradient is that of their places.
Var window_maxima(const char* op, const Var& x, const Conv& n) {
  const Tensor values = x.value(), y = empty_like(values, n.y);
  const Tensor places = Tensor::empty(n.y, DType::i32, values.device());
  kernels::window_reduce(
      {.x = values, .y = y, .window = n.window, .largest = true, .places = places},
      y.device().compute());
  return record(op, {x}, y, {places}, n, [](const Conv& c, const BackwardPass& pass) {
    const Tensor& dy = pass.gradient_of_output();
    const InputGradient dx(pass, 0, dy.dtype());
    kernels::window_reduce({.x = dy,
                            .y = dx.tensor(),
                            .window = c.window,
                            .transposed = true,
                            .places = pass.saved(0)},
                           pass.stream());
    dx.accumulate();
  });
}

enum class Pooling : uint8_t { maximum, mean, mean_without_padding };

/// `is_line`: a pool over the last axis, as over images with one row.
Var pool(const char* op, bool is_line, const Var& x, Pair2d kernel, Pair2d stride, Pair2d padding,
         Pair2d dilation, Pooling kind) {
  const Tensor values = floating_operand(op, "x", x);
  check_rank(op, "x", values.shape(), is_line ? 1 : 2);
  for (const auto& [size, around] :
       {std::pair{kernel.rows, padding.rows}, {kernel.columns, padding.columns}})
    if (size < 1 || around > size / 2)
      raise<ConfigError>(
          "{}: padding {} of a kernel of {}; expected a kernel of 1 or more, padding of at most "
          "half",
          op, around, size);
  if (stride.rows == 0) stride.rows = kernel.rows;
  if (stride.columns == 0) stride.columns = kernel.columns;
  const Shape& shape = values.shape();
  const int axis = shape.rank() - (is_line ? 1 : 2);
  int64_t planes = 1;
  for (int i = 0; i < axis; ++i) planes *= shape[i];
  Conv n{{1, planes, is_line ? 1 : shape[axis], shape[-1]}, {1, planes, 1, 1}};
  set_axis(op, n, 0, {kernel.rows, stride.rows, padding.rows, padding.rows, dilation.rows});
  set_axis(op, n, 1,
           {kernel.columns, stride.columns, padding.columns, padding.columns, dilation.columns});
  const Shape result = shape.with(axis, n.y[2]).with(shape.rank() - 1, n.y[3]);
  const Var flat = reshape(x, n.x);
  if (kind == Pooling::maximum) return reshape(window_maxima(op, flat, n), result);
  if (kind == Pooling::mean) {
    n.divisor = n.places();
    return reshape(window_reduces(op, flat, n), result);
  }
  const Var sums = window_reduces(op, flat, n);
  n.x = n.x.with(1, 1), n.y = n.y.with(1, 1);
  const Var ones = Tensor::full(n.x, 1.0, values.dtype(), values.device());
  return reshape(div(sums, window_reduces(op, ones, n)), result);
}

}  // namespace

Var conv1d(const Var& x, const Var& weight, const Var& bias, const Conv1dOptions& o) {
  if (o.causal && o.padding != 0)
    raise<ConfigError>("conv1d: causal with padding {}; expected 0", o.padding);
  return conv("conv1d", 3, false, x, weight, bias,
              {{o.stride, 1}, {o.padding, 0}, 0, {o.dilation, 1}, o.groups}, o.causal);
}

Var conv2d(const Var& x, const Var& weight, const Var& bias, const Conv2dOptions& o) {
  return conv("conv2d", 4, false, x, weight, bias, {o.stride, o.padding, 0, o.dilation, o.groups});
}

Var conv_transpose1d(const Var& x, const Var& weight, const Var& bias,
                     const ConvTranspose1dOptions& o) {
  return conv("conv_transpose1d", 3, true, x, weight, bias,
              {{o.stride, 1}, {o.padding, 0}, {o.output_padding, 0}, {o.dilation, 1}, o.groups});
}

Var conv_transpose2d(const Var& x, const Var& weight, const Var& bias,
                     const ConvTranspose2dOptions& o) {
  return conv("conv_transpose2d", 4, true, x, weight, bias, o);
}

Var avg_pool1d(const Var& x, int64_t kernel, int64_t stride, int64_t padding, bool counts_padding) {
  return pool("avg_pool1d", true, x, {1, kernel}, {1, stride}, {0, padding}, 1,
              counts_padding ? Pooling::mean : Pooling::mean_without_padding);
}

Var avg_pool2d(const Var& x, Pair2d kernel, Pair2d stride, Pair2d padding, bool counts_padding) {
  return pool("avg_pool2d", false, x, kernel, stride, padding, 1,
              counts_padding ? Pooling::mean : Pooling::mean_without_padding);
}

Var max_pool1d(const Var& x, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation) {
  return pool("max_pool1d", true, x, {1, kernel}, {1, stride}, {0, padding}, {1, dilation},
              Pooling::maximum);
}

Var max_pool2d(const Var& x, Pair2d kernel, Pair2d stride, Pair2d padding, Pair2d dilation) {
  return pool("max_pool2d", false, x, kernel, stride, padding, dilation, Pooling::maximum);
}

}  // namespace zg
