#include "zerograd/kernels/elementwise/gated.h"

#include "zerograd/kernels/slots.h"

namespace zg {

const char* name_of(Gate form) {
  constexpr const char* names[] = {"silu", "gelu_tanh", "gelu_erf"};
  return names[static_cast<size_t>(form)];
}

void validate(const GatedForward& a) {
  const char* op = "gated_forward";
  check_dtype(op, "gate", a.gate, floating);
  check_like(op, "up", a.up, a.gate);
  check_like(op, "y", a.y, a.gate);
}

void validate(const GatedBackward& a) {
  const char* op = "gated_backward";
  check_dtype(op, "gate", a.gate, floating);
  check_like(op, "up", a.up, a.gate);
  check_like(op, "dy", a.dy, a.gate);
  check_like(op, "dgate", a.dgate, a.gate);
  check_like(op, "dup", a.dup, a.gate);
}

ZG_KERNEL(GatedForward, gated_forward)
ZG_KERNEL(GatedBackward, gated_backward)

}  // namespace zg
