#include "zerograd/kernels/matmul/peak.h"

#include "tests/support/error_message.h"
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
  for (const Device& device : devices_at_every_level())
    for (const int64_t numel : {192, 1000, 1 << 20}) {
      const Tensor array = Tensor::full({numel + 1}, 1.0, DType::f32, device);
      const MemoryRates rates = measure_memory_rates(array);
      for (const double rate : {rates.read, rates.update, rates.add}) CHECK(rate > 1e6);
      CHECK(array.to_doubles()[numel] == 1.0);  // behind the last whole line
    }
  CHECK(contains(message_of<ConfigError>(
                     [] { measure_memory_rates(Tensor::zeros({191}, DType::f32, Device::cpu())); }),
                 "measure_memory_rates: expected 192 elements or more, got 191"));
  CHECK_THROWS_AS(measure_memory_rates(Tensor::zeros({192}, DType::i32, Device::cpu())),
                  Unsupported);
}
