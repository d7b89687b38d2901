#include "zerograd/kernels/matmul/peak.h"

#include "tests/support/op_case.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("the matmul peak is measured on the cpu at every level, and refused elsewhere") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16})
      // one multiply-add of 8 lanes per cycle at 1 MHz: no machine is slower, even a busy one
      CHECK(measure_matmul_peak(device, dtype) > 1.6e7);
  CHECK_THROWS_AS(measure_matmul_peak(Device::meta(), DType::f32), Unsupported);
  CHECK_THROWS_AS(measure_matmul_peak(Device::cpu(), DType::f64), Unsupported);
}

TEST_CASE("memory bandwidth is measured on the cpu, and refused on a meta device") {
  CHECK(measure_memory_bandwidth(Device::cpu()) > 1e6);  // no machine is slower
  CHECK_THROWS_AS(measure_memory_bandwidth(Device::meta()), Unsupported);
}
