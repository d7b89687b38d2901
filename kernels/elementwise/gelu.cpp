#include "zerograd/kernels/elementwise/gelu.h"

#include "zerograd/kernels/slots.h"

namespace zg {
namespace {

void check_form(const char* op, Activation activation) {
  if (activation != Activation::gelu_tanh && activation != Activation::gelu_erf)
    throw ConfigError(std::string(op) +
                      ": activation is none; expected Activation::gelu_tanh or gelu_erf");
}

}  // namespace

void validate(const GeluForward& a) {
  const char* op = "gelu_forward";
  check_dtype(op, "x", a.x, floating);
  check_like(op, "y", a.y, a.x);
  check_form(op, a.activation);
}

void validate(const GeluBackward& a) {
  const char* op = "gelu_backward";
  check_dtype(op, "x", a.x, floating);
  check_like(op, "dy", a.dy, a.x);
  check_like(op, "dx", a.dx, a.x);
  if (a.y) check_like(op, "y", a.y, a.x);
  check_form(op, a.activation);
}

ZG_KERNEL(GeluForward, gelu_forward)
ZG_KERNEL(GeluBackward, gelu_backward)

}  // namespace zg
