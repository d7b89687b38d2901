#include "zerograd/kernels/elementwise/dropout.h"

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {

void check_dropout(const char* op, float probability, int64_t elements) {
  if (!(probability >= 0.0f && probability < 1.0f))
    raise<ConfigError>("{}: dropout probability is {:f}; expected a number in [0, 1)", op,
                       probability);
  if (probability > 0.0f && elements > max_dropout_elements)
    raise<ShapeError>(
        "{}: a sample has {} elements; expected at most 2^34, because one word of a Philox "
        "counter, of 32 bits, numbers blocks of four elements",
        op, elements);
}

void validate(const Dropout& a) {
  const char* op = "dropout";
  check_dtype(op, "x", a.x, floating);
  if (a.x.shape().rank() == 0)
    throw ShapeError("dropout: x is a scalar; expected [samples, elements]");
  check_dtype(op, "y", a.y, a.x.dtype());
  check_shape(op, "y", a.y, a.x.shape());
  if (a.residual) {
    check_dtype(op, "residual", a.residual, a.x.dtype());
    check_shape(op, "residual", a.residual, a.x.shape());
  }
  const int64_t samples = a.x.extent(0);
  check_dropout(op, a.probability, samples > 0 ? a.x.numel() / samples : 0);
}

ZG_KERNEL(Dropout, dropout)

}  // namespace zg
