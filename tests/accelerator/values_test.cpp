#include <doctest/doctest.h>

#include <cmath>

#include "tests/autograd/values_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/runtime/comm/communicator.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE(
    "matrices that are stored in bf16 or f16 give on an accelerator what they give on a CPU") {
  const ValuesNet net;
  const Device device = device_of_rank(tested_type, 0, {}), cpu = Device::cpu();
  for (const DType dtype : {DType::bf16, DType::f16}) {
    if (tested_type == Device::Type::hpu && dtype == DType::f16) continue;  // it has no f16
    CAPTURE(name_of(dtype));
    const WeightSource weights = rounded(net, dtype);
    Values values(net.store, weights, device), expected_values(net.store, weights, cpu);
    CHECK(values.stored(net.table).dtype() == dtype);
    Tape tape = values.inference_tape(), cpu_tape = expected_values.inference_tape();
    const std::vector<Tensor> results = net.run(tape, ValuesNet::positions);
    const std::vector<Tensor> expected = net.run(cpu_tape, ValuesNet::positions);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::vector<double> x = results[i].to_doubles(), y = expected[i].to_doubles();
      REQUIRE(x.size() == y.size());
      double largest = 0.0, difference = 0.0;
      for (size_t j = 0; j < x.size(); ++j) {
        largest = std::max(largest, std::abs(y[j]));
        difference = std::max(difference, std::abs(x[j] - y[j]));
      }
      CAPTURE(i);
      // Sums of up to 600 products in f32: sqrt(600) roundings of the largest value, four times in
      // a row.
      CHECK(difference <= 4 * std::sqrt(600.0) * 0x1p-24 * largest);
    }
  }
}
