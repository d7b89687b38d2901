// The example with a kernel of its own, on the tested accelerator.
#ifndef ZG_TEST_HPU
#define WITH_CUDA
#endif
#define main soft_cap_program
#include "tools/examples/soft_cap/soft_cap.cpp"
#undef main

#include <doctest/doctest.h>

#include "bench/measure.h"
#include "tests/kernels/guarded_call.h"
#include "tests/support/error_message.h"
#include "tests/support/tested_type.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/trace.h"

using namespace zg::testing;

TEST_SUITE_BEGIN("every device");

TEST_CASE("a program's own kernel has PyTorch's values and gradient, in the planned bytes") {
  CHECK(soft_cap_program() == 0);
}

TEST_CASE("a program's own kernel is validated, writes its output only, traced and measured") {
  const Device device = device_of_rank(tested_type, 0, {});
  Stream& stream = device.compute();
  const Tensor x = Tensor::full({3, 67}, 0.5, DType::f32, device);
  const Tensor y = Tensor::empty({3, 67}, DType::f32, device);
  const auto function = kernel[tested_type].function;
  for (const Tensor& dy : {Tensor(), x})
    CHECK(guarded_call<SoftCap>(function, "soft_cap", {x, y, 2, dy}, {}, stream) ==
          std::vector<std::string>());
  CHECK(message_of<ShapeError>([&] {
          kernel({x, y.flat(0, 67), 2, {}}, stream);
        }) == "soft_cap: y has shape [67]; expected [3, 67]");
  CHECK(message_of<ConfigError>([&] {
          kernel({x, y, 0, {}}, stream);
        }).starts_with("soft_cap: expected a cap above 0, got 0"));
  const auto trace = std::make_shared<Trace>();
  device.set_trace(trace);
  kernel({x, y, 2, {}}, stream);
  device.set_trace(nullptr);
  const auto spans = trace->spans();
  const auto is_call = [](const Trace::Span& span) {
    return span.name == "soft_cap" && span.kind == Trace::Kind::kernel;
  };
  CHECK(std::count_if(spans.begin(), spans.end(), is_call) == 1);
  const auto run = [&] { kernel({x, y, 2, {}}, stream); };
  CHECK(bench::measure(device, run, {.warm_up = 1, .fewest = 1, .samples = 1, .seconds = 0.0})
            .size() == 1);
}

#ifdef WITH_CUDA
TEST_CASE("launches of a program's own kernel are counted in a plan as in a run") {
  const DeviceOptions counting{.threads = 1, .count_launches = true};
  for (const Device& device :
       {Device::cuda(0, counting), Device::meta(0, counting, Device::Type::cuda)}) {
    const Tensor x = Tensor::empty({1000}, DType::f32, device);
    const Tensor y = Tensor::empty({1000}, DType::f32, device);
    kernel({x, y, 2, x}, device.compute());
    const std::vector<LaunchRow> rows = device.launches()->counts().rows;
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].op + " " + rows[0].kernel == "soft_cap capped");
    CHECK(rows[0].launches == 1);
    CHECK(rows[0].blocks == 4);
    CHECK(rows[0].bytes == 12000);
  }
}
#else
TEST_CASE("a program's own module without its compilers is refused with their names") {
  const Device device = device_of_rank(tested_type, 0, {});
  const hpu::Code code{nullptr, {}, "clang-14 (Debian: clang-14)"};
  CHECK(message_of<Unsupported>([&] { hpu::launch(device.compute(), code, "capped", {}, 1); }) ==
        "capped: its OpenCL source was not compiled: missing clang-14 (Debian: clang-14); install "
        "these and configure the program again");
}
#endif
