// A kernel in the place of one of the library's: each kernel has a slot per device, which is a
// pointer to a function. Every op that needs the kernel then calls this one.
#include <cmath>
#include <cstdio>

#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"

namespace {

using namespace zg;

int calls = 0;
Kernel<Unary>::Function original = nullptr;

// Counts, and leaves the work to the kernel that was there.
void counting_unary(const Unary& args, Workspace workspace, Stream& stream) {
  ++calls;
  original(args, workspace, stream);
}

}  // namespace

int main() {
  const Device device = Device::cpu();
  original = kernels::unary[Device::Type::cpu].function;
  kernels::unary[Device::Type::cpu].function = counting_unary;
  const double e = zg::exp(Tensor::full({1}, 1.0, DType::f64, device)).value().item();
  kernels::unary[Device::Type::cpu].function = original;
  std::printf("own kernel: %d call, exp(1) = %.15f\n", calls, e);
  return calls == 1 && std::abs(e - 2.718281828459045) < 1e-14 ? 0 : 1;
}
