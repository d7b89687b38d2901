// An op with a kernel of this program on three backends, and its gradient.
#include "soft_cap.h"

#include <cmath>
#include <cstdio>

#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/hpu/launch.h"
#include "zerograd/runtime/plan.h"

using namespace zg;

void validate(const SoftCap& a) {
  for (const auto& [name, tensor, is_written] : operands(a))
    if (tensor || is_written) {
      check_dtype("soft_cap", name, tensor, DType::f32);
      check_shape("soft_cap", name, tensor, a.x.shape());
    }
  if (!(a.cap > 0))
    throw ConfigError("soft_cap: expected a cap above 0, got " + std::to_string(a.cap));
}

static void on_cpu(const SoftCap& a, Workspace, Stream&) {
  for (int64_t i = 0; i < a.x.numel(); ++i) {
    const float t = std::tanh(a.x.data<float>()[i] / a.cap);
    a.y.data<float>()[i] = a.dy ? a.dy.data<float>()[i] * (1.0f - t * t) : a.cap * t;
  }
}

namespace opencl {
extern const hpu::Code soft_cap;  // soft_cap.cl, by zerograd_add_opencl() in CMakeLists.txt
}
static void on_hpu(const SoftCap& a, Workspace, Stream& stream) {
  const int64_t n = a.x.numel();
  hpu::launch(stream, opencl::soft_cap, "capped", {hpu::groups_for(n)}, a.x.raw(),
              a.dy ? a.dy.raw() : a.x.raw(), a.y.raw(), a.cap, a.dy ? 1 : 0, n);
}

#ifdef WITH_CUDA
void soft_cap_cuda(const SoftCap&, Workspace, Stream&);
#else
static constexpr Kernel<SoftCap>::Function soft_cap_cuda = nullptr;  // a call throws Unsupported
#endif
const Kernel<SoftCap> kernel{"soft_cap", {{{on_cpu}, {soft_cap_cuda}, {on_hpu}}}};

Var soft_cap(const Var& x, float cap) {
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernel({.x = x.value(), .y = y, .cap = cap, .dy = {}}, y.device().compute());
  return record("soft_cap", {x}, y, {x.value()}, cap, [](float cap, const BackwardPass& pass) {
    const Tensor dx = pass.make_gradient(0);
    kernel({pass.saved(0), dx, cap, pass.gradient_of_output()}, pass.stream());
    pass.accumulate(0, dx);
  });
}

int main() {
  // By PyTorch: y = soft_cap(x, 2), then the gradient of sum(y * y).
  const double expected[] = {-1.9280552, -0.4898373, 0, 0.9242343, 1.8102965,
                             -0.2724373, -0.9209087, 0, 1.4537239, 0.6542652};
  bool good = true;
  for (const Device::Type type : {Device::Type::cpu, Device::Type::cuda, Device::Type::hpu}) {
    if (Device::count(type) == 0 || !kernel[type].function) continue;
    std::vector<double> values;
    const auto program = [&](Communicator&, const Device& device) {
      Tape tape(device);
      const Var x = tape.variable(Tensor::from(std::vector<float>{-4, -0.5, 0, 1, 3}, {5}, device));
      const Var y = soft_cap(x, 2);
      tape.backward(sum(y * y));
      values = concat({y.value(), tape.gradient(x)}, 0).value().to_doubles();
    };
    const Plan plan = plan_ranks(1, program, {.type = type});
    const bool planned = run_ranks(1, program, {.local = {.type = type}, .expect = &plan}) == plan;
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::abs(values[i] - expected[i]));
    std::printf("soft_cap on %s: %.0e from PyTorch, %s\n", name_of(type), worst,
                planned ? "bytes as planned" : "other bytes than planned");
    good = good && planned && worst < 1e-6;
  }
  return good ? 0 : 1;
}
