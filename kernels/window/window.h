#pragma once

#include <array>

#include "zerograd/kernels/kernel.h"

namespace zg {

/// Windows over one axis: window i has `size` places. Place u is element
/// i * stride + u * dilation - before of the axis.
struct WindowAxis {
  int64_t size = 1, stride = 1;
  int64_t before = 0;  ///< padding before the first element
  int64_t dilation = 1;
};
/// Windows over the rows and columns of planes.
using Window = std::array<WindowAxis, 2>;

/// y[n][c][i][j] = 1 / divisor times the sum (or the largest), over the places (u, v) of window
/// (i, j) in rising order, of weight[c][u][v] x[n][c][row][column], where row and column are those
/// of the place. Places outside of x are left out. `transposed`: of those elements (row, column) of
/// x whose windows have (i, j) as their place (u, v). bias[c] is the first term. Summed in the
/// accumulator dtype and rounded once. The largest is the first of equal ones; NaN counts as
/// largest, and a window without an element has -infinity.
struct WindowReduce {
  Tensor x;       ///< [N, C, H, W]; or a plane for each place: [C, places, N, H, W]
  Tensor weight;  ///< [C, places], or absent: 1; x's dtype
  Tensor bias;    ///< [C] or absent
  Tensor y;       ///< [N, C, rows, columns] out; f64 | f32 | bf16 | f16
  Window window;
  bool transposed = false;
  int64_t divisor = 1;
  bool largest = false;  ///< in place of the sum; neither transposed nor with weight or bias
  /// i32, with an element for each window: u * (columns of a window) + v. Out, if `largest`. If
  /// transposed, only the places that it names count; or absent: all.
  Tensor places = {};
};
ZG_API void validate(const WindowReduce&);  ///< ShapeError, DTypeError
inline std::vector<Operand> operands(const WindowReduce& a) {
  return {{"x", a.x},
          {"weight", a.weight},
          {"bias", a.bias},
          {"y", a.y, Operand::out},
          {"places", a.places, a.largest}};
}

/// The extents of x and y, and the elements between samples, channels and places of x.
struct Planes {
  int64_t channels, x_rows, x_columns, y_rows, y_columns;
  int64_t sample, channel, place;

  explicit Planes(const WindowReduce& a)
      : channels(a.y.extent(1)),
        x_rows(a.x.extent(-2)),
        x_columns(a.x.extent(-1)),
        y_rows(a.y.extent(2)),
        y_columns(a.y.extent(3)) {
    const int64_t plane = x_rows * x_columns, samples = a.y.extent(0);
    const bool by_place = a.x.shape().rank() == 5;
    sample = by_place ? plane : channels * plane;
    channel = by_place ? a.x.extent(1) * samples * plane : plane;
    place = by_place ? samples * plane : 0;
  }
};

namespace kernels {
extern ZG_API Kernel<WindowReduce> window_reduce;
}

}  // namespace zg
