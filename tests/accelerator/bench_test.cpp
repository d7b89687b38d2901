#include <doctest/doctest.h>

#include <algorithm>

#include "bench/measure.h"
#include "tests/support/tested_type.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/tensor.h"

using namespace zg;
using namespace zg::testing;
using bench::Effort;

namespace {

constexpr Effort quick{
    .warm_up = 3, .fewest = 4, .samples = 4, .seconds = 0.0, .sample_seconds = 0.0};

/// x += 1 on the device, then a copy to memory that the host sees at once.
class Counter {
 public:
  explicit Counter(const Device& device)
      : device_(device),
        one_(Tensor::full({1}, 1.0, DType::f32, device)),
        x_(Tensor::full({1}, 0.0, DType::f32, device)),
        seen_(Tensor::empty({1}, DType::f32, device, Space::pinned)) {
    run();
    device.compute().synchronize();
  }
  void run() {
    kernels::axpby({.x = one_, .y = x_}, device_.compute());
    copy(x_, seen_, device_.compute());
    ++runs_;
  }
  /// Runs whose results the host has not waited for yet.
  int under_way() const {
    const volatile float* seen = seen_.data<float>();
    return runs_ - static_cast<int>(*seen);
  }
  int runs() const { return runs_; }

 private:
  Device device_;
  Tensor one_, x_, seen_;
  int runs_ = 0;
};

}  // namespace

TEST_CASE(
    "bench::measure on an accelerator waits in each sample for the work that its runs queued" *
    doctest::test_suite("every device")) {
  const Device device = device_of_rank(tested_type, 0, {});
  Counter counter(device);
  int most = 0;
  const auto run = [&] {
    most = std::max(most, counter.under_way());
    counter.run();
  };
  // Samples of one run each: each begins after the previous one has ended.
  CHECK(bench::measure(device, run, quick).size() == 4);
  CHECK(most == 0);
  CHECK(counter.under_way() == 0);
  CHECK(counter.runs() == 1 + 1 + 1 + 4);  // its own, the first use, how long one takes, samples
  // Samples of many runs wait once.
  Effort repeated = quick;
  repeated.sample_seconds = 20 * bench::measure(device, run, quick).back();
  repeated.fewest = repeated.samples = 1;
  CHECK(bench::measure(device, run, repeated).size() == 1);
  CHECK(counter.under_way() == 0);
}
