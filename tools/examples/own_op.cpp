// Defines an op outside the library: values, gradient, and a check of the gradient against finite
// differences.
#include <cstdio>
#include <vector>

#include "zerograd/autograd/gradcheck.h"
#include "zerograd/autograd/ops.h"

namespace {

using namespace zg;

// y = factor * x^3. The backward function gets the factor and, through saved(0), x.
Var scaled_cube(const Var& x, double factor) {
  struct Numbers {
    double factor;
  };
  const Var constant = x.value();  // operations on constants are not recorded
  const Tensor y = (factor * constant * constant * constant).value();
  return record("scaled_cube", {x}, y, {x.value()}, Numbers{factor},
                [](const Numbers& numbers, const BackwardPass& pass) {
                  const Var x = pass.saved(0), dy = pass.gradient_of_output();
                  pass.accumulate(0, (3.0 * numbers.factor * x * x * dy).value());
                });
}

}  // namespace

int main() {
  const Device device = Device::cpu();
  const Tensor x = Tensor::from(std::vector<double>{-1.5, 0.25, 2.0}, {3}, device);
  const GradcheckResult result =
      gradcheck([](Tape&, std::span<const Var> in) { return scaled_cube(in[0], 0.5); }, {x});
  std::printf("scaled_cube: %s\n", result.report.c_str());
  return result.ok ? 0 : 1;
}
