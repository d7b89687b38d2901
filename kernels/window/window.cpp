#include "zerograd/kernels/window/window.h"

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

void validate(const WindowReduce& a) {
  const char* op = "window_reduce";
  check_dtype(op, "y", a.y, floating);
  check_dtype(op, "x", a.x, a.y.dtype());
  if (a.y.shape().rank() != 4)
    raise<ShapeError>("{}: y has shape {}; expected rank 4", op, a.y.shape());
  const int64_t N = a.y.extent(0), C = a.y.extent(1), places = a.window[0].size * a.window[1].size;
  for (const WindowAxis& axis : a.window)
    if (axis.size < 1 || axis.stride < 1 || axis.dilation < 1 || a.divisor < 1)
      raise<ShapeError>("{}: size {}, stride {}, dilation {}, divisor {}; expected 1 or more", op,
                        axis.size, axis.stride, axis.dilation, a.divisor);
  const bool by_place = a.x.shape().rank() == 5;
  if (!by_place && a.x.shape().rank() != 4)
    raise<ShapeError>("{}: x has shape {}; expected rank 4 or 5", op, a.x.shape());
  const int64_t H = a.x.extent(-2), W = a.x.extent(-1);
  check_shape(op, "x", a.x, by_place ? Shape{C, places, N, H, W} : Shape{N, C, H, W});
  if (a.weight) {
    check_dtype(op, "weight", a.weight, a.y.dtype());
    check_shape(op, "weight", a.weight, {C, places});
  }
  if (a.bias) {
    check_dtype(op, "bias", a.bias, a.y.dtype());
    check_shape(op, "bias", a.bias, {C});
  }
  if (!a.largest && !a.places) return;
  check_dtype(op, "places", a.places, DType::i32);
  check_shape(op, "places", a.places, a.largest ? a.y.shape() : a.x.shape());
  if (by_place || a.weight || a.bias || a.largest == a.transposed)
    raise<ShapeError>("{}: places of x {}; expected no weight or bias, and rank 4", op,
                      a.x.shape());
}

ZG_KERNEL(WindowReduce, window_reduce)

}  // namespace zg
