#include "kernels/adam.h"

#include <cmath>

#include "kernels/check.h"
#include "kernels/cuda/slot.h"
#include "kernels/hpu/slot.h"

namespace zg {
namespace {

double power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

void check_number(bool within, const char* name, double value, const char* range) {
  if (!within)
    throw ConfigError(std::string("adam: ") + name + " is " + std::to_string(value) +
                      "; expected " + range);
}

}  // namespace

void validate(const Adam& a) {
  const char* op = "adam";
  check_dtype(op, "parameter", a.parameter, {DType::f32, DType::bf16});
  check_dtype(op, "gradient", a.gradient, {DType::f32, DType::bf16});
  check_shape(op, "gradient", a.gradient, a.parameter.shape());
  for (const auto& [name, moment] : {std::pair{"moment1", &a.moment1}, {"moment2", &a.moment2}}) {
    check_dtype(op, name, *moment, a.parameter.dtype());
    check_shape(op, name, *moment, a.parameter.shape());
  }
  if (a.low_precision) {
    check_dtype(op, "low_precision", a.low_precision, {DType::bf16, DType::f16});
    check_shape(op, "low_precision", a.low_precision, a.parameter.shape());
    if (a.parameter.dtype() == DType::bf16)
      throw DTypeError(std::string(op) +
                       ": low_precision is given beside a bf16 parameter; expected it absent");
  }
  check_device(op, {&a.parameter, &a.gradient, &a.moment1, &a.moment2, &a.low_precision});
  check_number(a.step >= 1, "step", static_cast<double>(a.step), "a count from 1");
  check_number(a.beta1 >= 0.0f && a.beta1 < 1.0f, "beta1", a.beta1, "a number in [0, 1)");
  check_number(a.beta2 >= 0.0f && a.beta2 < 1.0f, "beta2", a.beta2, "a number in [0, 1)");
  check_number(a.epsilon >= 0.0f, "epsilon", a.epsilon, "a number from 0");
  check_number(std::isfinite(a.rate), "rate", a.rate, "a finite number");
  check_number(std::isfinite(a.weight_decay), "weight_decay", a.weight_decay, "a finite number");
}

AdamConstants constants(const Adam& a) {
  const double rate = a.rate, decay = a.weight_decay, beta1 = a.beta1, beta2 = a.beta2;
  return {
      .gradient_scale = a.gradient_scale,
      .l2 = a.decoupled ? 0.0f : a.weight_decay,
      .beta1 = a.beta1,
      .new1 = static_cast<float>(1.0 - beta1),
      .beta2 = a.beta2,
      .new2 = static_cast<float>(1.0 - beta2),
      .unbias2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(beta2, a.step))),
      .epsilon = a.epsilon,
      .keep = a.decoupled ? static_cast<float>(1.0 - rate * decay) : 1.0f,
      .move = static_cast<float>(rate / (1.0 - power(beta1, a.step))),
  };
}

namespace cpu {
void adam(const Adam&, Workspace, Stream&);
}

namespace cuda {
void adam(const Adam&, Workspace, Stream&);
}  // namespace cuda
namespace hpu {
void adam(const Adam&, Workspace, Stream&);
}  // namespace hpu

namespace kernels {
constinit Kernel<Adam> adam{
    .name = "adam", .cpu = cpu::adam, .cuda = ZG_CUDA_KERNEL(adam), .hpu = ZG_HPU_KERNEL(adam)};
}

}  // namespace zg
