// Measures a kernel of this program and the library's kernel, and compares both with the limits of
// the machine. Prints the table of `zerograd bench kernels` and writes a JSON file for
// `zerograd bench roofline`.
#include "zerograd/bench.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include "zerograd/kernels/elementwise/elementwise.h"

namespace {

using namespace zg;

// ReLU on one thread.
void own_relu(const Unary& args, Workspace, Stream&) {
  const float* x = args.x.data<float>();
  float* y = args.y.data<float>();
  for (int64_t i = 0; i < args.x.numel(); ++i) y[i] = std::max(x[i], 0.0f);
}

}  // namespace

int main() {
  const Device device = Device::cpu();
  const int64_t n = 8 << 20;
  const double bytes = 4.0 * n;
  const Unary call{.op = UnaryOp::relu,
                   .x = Tensor::full({n}, -1.0, DType::f32, device),
                   .y = Tensor::full({n}, 1.0, DType::f32, device)};
  const auto run = [&] { kernels::unary(call, device.compute()); };
  const auto work = [&](const char* name) {
    return bench::Work{
        .name = name, .shape = std::to_string(n), .flops = n, .read = bytes, .written = bytes};
  };

  bench::Report report(device, {.effort = {.limit_rounds = 1, .samples = 10, .seconds = 0.1}});
  report.add(work("relu, built in"), run);
  const auto built_in = std::exchange(kernels::unary[Device::Type::cpu].function, own_relu);
  report.add(work("relu, own"), run);
  kernels::unary[Device::Type::cpu].function = built_in;

  std::fputs(bench::table({report}).c_str(), stdout);
  bench::write_json("own_bench.json", {report});
  return *std::max_element(call.y.data<float>(), call.y.data<float>() + n) == 0.0f ? 0 : 1;
}
