// Adds an op from outside the library and swaps a kernel for one of our own.
#include <cmath>
#include <cstdio>
#include <vector>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "kernels/elementwise.h"

namespace {

using namespace zg;

// y = x^3; its backward function gets x back through `saved`.
Var cube(const Var& x) {
  struct Numbers {
    double factor;
  };
  const Var constant(x.value());
  const Tensor y = mul(mul(constant, constant), constant).value();
  return record("cube", {x}, y, {x.value()}, Numbers{3.0},
                [](const Numbers& numbers, const BackwardPass& pass) {
                  const Var x(pass.saved(0)), dy(pass.gradient_of_output());
                  const Var square = mul(x, x);
                  const Var slope = mul(square, numbers.factor);
                  pass.accumulate(0, mul(slope, dy).value());
                });
}

int calls = 0;
Kernel<Unary>::Function original = nullptr;
void counting_unary(const Unary& args, Workspace workspace, Stream& stream) {
  ++calls;
  original(args, workspace, stream);
}

}  // namespace

int main() {
  const Device device = Device::cpu();
  const Tensor x = Tensor::from(std::vector<double>{-1.5, 0.25, 2.0}, {3}, device);
  const GradcheckResult result =
      gradcheck([](Tape&, std::span<const Var> inputs) { return cube(inputs[0]); }, {x});
  std::printf("cube: %s\n", result.report.c_str());

  original = kernels::unary.cpu;
  kernels::unary.cpu = counting_unary;
  const double e = zg::exp(Var(Tensor::full({1}, 1.0, DType::f64, device))).value().item();
  kernels::unary.cpu = original;
  std::printf("swapped kernel: %d call, exp(1) = %.15f\n", calls, e);
  return result.ok && calls == 1 && std::abs(e - 2.718281828459045) < 1e-14 ? 0 : 1;
}
