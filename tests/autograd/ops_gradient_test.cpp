#include "bench/op.h"
#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

// Checks the gradient of every differentiable op of bench::every_op() by central differences.
namespace {

/// More elements take long: each is moved up and down.
constexpr int64_t max_elements = 200;

int64_t numel_of(const std::vector<Tensor>& tensors) {
  int64_t numel = 0;
  for (const Tensor& tensor : tensors) numel += tensor.numel();
  return numel;
}

}  // namespace

TEST_CASE("every op has the gradients of central differences") {
  const bench::Operands operands(shared_device(), DType::f64);
  int differentiated = 0;
  for (const bench::OpFamily& family : bench::every_op())
    for (const bench::Op& op : family) {
      if (!op.function) continue;
      CAPTURE(op.name);
      int cases = 0;
      for (const bench::Extents& extents : op.tested) {
        const std::vector<Tensor> variables = op.variables(operands, extents);
        if (numel_of(variables) > max_elements) continue;
        CAPTURE(bench::extents_text(extents));
        check_gradient([&](Tape&, Vars in) { return op.function(in, extents); }, variables);
        ++cases;
      }
      CHECK(cases >= 2);
      ++differentiated;
    }
  CHECK(differentiated >= 35);
}
