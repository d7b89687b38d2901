#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct Cube {
  double slope;  // 3 is right
};

/// An op as a user writes it: forward from ops or kernels, backward as a plain function.
Var cube(const Var& x, double slope = 3.0) {
  const Tensor values = x.value();
  const Var fixed(values);
  return record(
      "cube", {x}, mul(mul(fixed, fixed), fixed).value(), {values}, Cube{slope},
      [](const Cube& numbers, const BackwardPass& pass) {
        const Var x(pass.saved(0)), dy(pass.gradient_of_output());
        pass.accumulate(0, mul(mul(mul(x, x), numbers.slope), dy).value());
      },
      [](const Cube& numbers, const ComposedPass& pass) {
        const Var square = zg::square(pass.input(0, 0));
        pass.accumulate(0, mul(mul(square, numbers.slope), pass.gradient_of_output()));
      });
}

}  // namespace

TEST_CASE("an op defined outside the library is differentiated like any other") {
  check_gradient([](Tape&, Vars in) { return mul(cube(in[0]), in[1]); },
                 {doubles({3, 5}, 1), doubles({5}, 2)});
}

TEST_CASE("gradcheck finds a wrong backward and says where") {
  const GradcheckResult result =
      gradcheck([](Tape&, Vars in) { return add(cube(in[0]), cube(in[1], 3.001)); },
                {doubles({4}, 1), doubles({4}, 2, 0.5, 1.0)});
  CHECK_FALSE(result);
  CHECK(result.worst > 1e-4);
  for (const char* part : {"input 1, element ", "analytic"}) CHECK(contains(result.report, part));
}

TEST_CASE("gradcheck fails on a gradient that is not a number") {
  const GradcheckResult result =
      gradcheck([](Tape&, Vars in) { return sqrt(mul(in[0], 0.0)); }, {doubles({2}, 1, 0.5, 1.0)});
  CHECK_FALSE(result);
}

TEST_CASE("gradcheck fails when backward never sends a gradient to an input") {
  const GradcheckResult result = gradcheck([](Tape&, Vars in) { return mul(in[0], detach(in[1])); },
                                           {doubles({2}, 1), doubles({2}, 2)});
  CHECK_FALSE(result);
  CHECK(contains(result.report, "input 1"));
}

TEST_CASE("gradcheck accepts only f64 tensors on a CPU device, and at least one input") {
  const Device device = Device::cpu();
  auto identity = [](Tape&, Vars in) { return add(in[0], 0.0); };
  CHECK_ERROR(DTypeError, "gradcheck: input 0 holds f32 on cpu:0; expected f64 on a cpu device",
              gradcheck(identity, {Tensor::zeros({2}, DType::f32, device)}));
  CHECK_ERROR(DTypeError, "on meta",
              gradcheck(identity, {Tensor::zeros({2}, DType::f64, Device::meta())}));
  CHECK_ERROR(DTypeError, "output holds f32; expected f64",
              gradcheck([](Tape&, Vars in) { return cast(in[0], DType::f32); },
                        {Tensor::zeros({2}, DType::f64, device)}));
  CHECK_ERROR(ShapeError, "no inputs", gradcheck(identity, {}));
}
