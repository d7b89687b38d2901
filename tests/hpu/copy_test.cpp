#include <doctest/doctest.h>

#include <numeric>
#include <vector>

#include "zerograd/runtime/tensor.h"

using namespace zg;

TEST_CASE(
    "a stream of either device copies between devices that cannot access each other's memory" *
    doctest::test_suite("every device")) {
  const Device devices[] = {Device::hpu(0), Device::hpu(1)};
  // More than passes at a time.
  std::vector<float> values((5 << 20) / sizeof(float) + 3);
  std::iota(values.begin(), values.end(), 1.0f);
  const Shape shape{static_cast<int64_t>(values.size())};
  for (const Device& by : devices)
    for (const Device& from : devices) {
      INFO(by.name(), ", ", from.name());
      const Device& to = devices[1 - from.index()];
      const Tensor source = Tensor::from(values, shape, from);
      const Tensor place = Tensor::zeros(shape, DType::f32, to);
      for (const Device& device : devices) device.compute().synchronize();
      copy(source, place, by.compute());
      by.compute().synchronize();
      CHECK(place.to_host<float>() == values);
    }
}
