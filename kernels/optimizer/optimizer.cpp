#include "zerograd/kernels/optimizer/optimizer.h"

#include <cmath>
#include <tuple>

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

double power(double base, int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent /= 2, base *= base)
    if (exponent % 2 == 1) result *= base;
  return result;
}

void check_number(const char* op, bool within, const char* name, double value, const char* range) {
  if (!within) raise<ConfigError>("{}: {} is {:f}; expected {}", op, name, value, range);
}

void check_tensor(const char* op, const OptimizerUpdate& a, const OptimizerTensor& t) {
  check_dtype(op, "parameter", t.parameter, {DType::f32, DType::bf16});
  check_dtype(op, "gradient", t.gradient, {DType::f32, DType::bf16});
  check_shape(op, "gradient", t.gradient, t.parameter.shape());
  const UpdateKind kind = kind_of(a);
  for (const auto& [name, moment, is_used] :
       {std::tuple{"moment1", &t.moment1, has_moment1(kind)},
        std::tuple{"moment2", &t.moment2, has_moment2(kind)}}) {
    if (is_used) {
      check_dtype(op, name, *moment, t.parameter.dtype());
      check_shape(op, name, *moment, t.parameter.shape());
    } else if (*moment) {
      raise<ShapeError>(
          "{}: {} is given; expected it absent{}", op, name,
          a.rule == UpdateRule::sgd && name == std::string("moment1") ? ", as in tensor 0" : "");
    }
  }
  if (t.low_precision) {
    check_dtype(op, "low_precision", t.low_precision, {DType::bf16, DType::f16});
    check_shape(op, "low_precision", t.low_precision, t.parameter.shape());
    if (t.parameter.dtype() == DType::bf16)
      raise<DTypeError>("{}: low_precision is given beside a bf16 parameter; expected it absent",
                        op);
  }
  check_number(op, std::isfinite(t.weight_decay), "weight_decay", t.weight_decay,
               "a finite number");
  check_number(op, std::isfinite(t.rate_factor), "rate_factor", t.rate_factor, "a finite number");
}

/// One kernel updates all tensors, so they must have the dtypes of the first one.
void check_alike(const char* op, const OptimizerTensor& t, const OptimizerTensor& first) {
  check_dtype(op, "parameter", t.parameter, first.parameter.dtype());
  check_dtype(op, "gradient", t.gradient, first.gradient.dtype());
  if (first.low_precision)
    check_dtype(op, "low_precision", t.low_precision, first.low_precision.dtype());
  else if (t.low_precision)
    raise<DTypeError>(
        "{}: low_precision is given, tensor 0 has none; expected it in all or in none", op);
  check_device(
      op, {&first.parameter, &t.parameter, &t.gradient, &t.moment1, &t.moment2, &t.low_precision});
}

void check_rounding(const char* op, const OptimizerUpdate& a, const OptimizerTensor& t) {
  const Tensor& rounded = t.low_precision ? t.low_precision : t.parameter;
  if (rounded.dtype() != DType::bf16)
    raise<DTypeError>(
        "{}: rounding_seed is given, {} holds {}; expected bf16, the one dtype that is rounded "
        "stochastically",
        op, t.low_precision ? "low_precision" : "parameter", rounded.dtype());
  if (t.first < 0 || t.first + t.parameter.numel() > max_rounded_elements)
    raise<ShapeError>(
        "{}: elements {} to {} of a parameter are rounded stochastically; expected them in 0 to "
        "2^34, because a Philox counter has 32 bits and gives four words",
        op, t.first, t.first + t.parameter.numel());
  check_number(op, a.step < int64_t{1} << 32, "step", static_cast<double>(a.step), "below 2^32");
}

}  // namespace

std::vector<Operand> operands(const OptimizerUpdate& a) {
  std::vector<Operand> all;
  if (a.scale) all.push_back({"scale", a.scale});
  for (const OptimizerTensor& t : a.tensors)
    for (const Operand& operand : {Operand{"parameter", t.parameter, Operand::out},
                                   {"gradient", t.gradient},
                                   {"moment1", t.moment1, Operand::out},
                                   {"moment2", t.moment2, Operand::out},
                                   {"low_precision", t.low_precision, Operand::out}})
      all.push_back(operand);
  return all;
}

void validate(const OptimizerUpdate& a) {
  const char* rule = name_of(a.rule);
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const std::string op = a.tensors.size() > 1 ? fmt::format("{}, tensor {}", rule, i) : rule;
    check_tensor(op.c_str(), a, a.tensors[i]);
    check_alike(op.c_str(), a.tensors[i], a.tensors[0]);
    if (a.rounding_seed) check_rounding(op.c_str(), a, a.tensors[i]);
    if (a.scale) check_device(op.c_str(), {&a.scale, &a.tensors[i].parameter});
  }
  if (a.scale) {
    check_dtype(rule, "scale", a.scale, DType::f32);
    check_shape(rule, "scale", a.scale, {1});
  }
  const auto check_share = [&](const char* name, float value) {
    check_number(rule, value >= 0.0f && value < 1.0f, name, value, "a number in [0, 1)");
  };
  check_number(rule, a.step >= 1, "step", static_cast<double>(a.step), "a count from 1");
  check_share("beta1", a.beta1);
  check_share("beta2", a.beta2);
  check_number(rule, a.dampening >= 0.0f && a.dampening <= 1.0f, "dampening", a.dampening,
               "a number in [0, 1]");
  check_number(rule, a.epsilon >= 0.0f, "epsilon", a.epsilon, "a number from 0");
  check_number(rule, std::isfinite(a.rate), "rate", a.rate, "a finite number");
}

UpdateConstants constants(const OptimizerUpdate& a, const OptimizerTensor& t) {
  const double rate = double{a.rate} * t.rate_factor, decay = t.weight_decay;
  const double beta1 = a.beta1, beta2 = a.beta2;
  UpdateConstants numbers = {
      .gradient_scale = a.gradient_scale,
      .l2 = a.decoupled ? 0.0f : t.weight_decay,
      .beta1 = a.beta1,
      .new1 = static_cast<float>(1.0 - beta1),
      .beta2 = a.beta2,
      .new2 = static_cast<float>(1.0 - beta2),
      .unbias2 = 1.0f,
      .epsilon = a.epsilon,
      .keep = a.decoupled ? static_cast<float>(1.0 - rate * decay) : 1.0f,
      .move = static_cast<float>(rate),
      .nesterov = a.nesterov,
  };
  if (a.rule == UpdateRule::adam) {
    numbers.unbias2 = static_cast<float>(1.0 / std::sqrt(1.0 - power(beta2, a.step)));
    numbers.move = static_cast<float>(rate / (1.0 - power(beta1, a.step)));
  }
  if (a.rule == UpdateRule::sgd)
    numbers.new1 = a.step == 1 ? 1.0f : static_cast<float>(1.0 - double{a.dampening});
  return numbers;
}

std::optional<OptimizerUpdate> with_known_scale(const OptimizerUpdate& a, Stream& stream) {
  OptimizerUpdate known = a;
  stream.copy(&known.gradient_scale, a.scale.raw(), sizeof(float));
  stream.synchronize();
  known.scale = {};
  if (std::isnan(known.gradient_scale)) return std::nullopt;
  return known;
}

void adjust_count(OpCount& count, const OptimizerUpdate& a) {
  count.kind = KernelClass::optimizer;
  for (const OptimizerTensor& t : a.tensors)
    for (const Tensor* state : {&t.parameter, &t.moment1, &t.moment2})
      if (*state) count.bytes += state->bytes();
}

ZG_KERNEL(OptimizerUpdate, optimizer_update)

std::vector<Operand> operands(const SumOfSquares& a) {
  std::vector<Operand> all;
  for (const SumOfSquares::Part& part : a.parts)
    for (const Operand& operand : {Operand{"x", part.x},
                                   {"limbs", part.limbs, Operand::out},
                                   {"non_finite", part.non_finite, Operand::out}})
      all.push_back(operand);
  return all;
}

void validate(const SumOfSquares& a) {
  const char* op = "sum_of_squares";
  for (const SumOfSquares::Part& part : a.parts) {
    check_dtype(op, "x", part.x, floating);
    check_dtype(op, "x", part.x, a.parts[0].x.dtype());
    if (part.x.numel() % SumOfSquares::granule != 0)
      raise<ShapeError>("{}: x has {} elements; expected a multiple of 16, pad with zeros", op,
                        part.x.numel());
    check_dtype(op, "limbs", part.limbs, DType::i64);
    check_shape(op, "limbs", part.limbs, {SumOfSquares::limb_count});
    check_dtype(op, "non_finite", part.non_finite, DType::i64);
    check_shape(op, "non_finite", part.non_finite, {1});
    check_device(op, {&a.parts[0].x, &part.x, &part.limbs, &part.non_finite});
  }
}

void adjust_count(OpCount& count, const SumOfSquares&) { count.kind = KernelClass::optimizer; }

namespace cpu {
int64_t workspace_bytes(const SumOfSquares&, const Device::Traits&);
}
ZG_KERNEL(SumOfSquares, sum_of_squares, cpu::workspace_bytes)

std::vector<Operand> operands(const GradientScale& a) {
  return {{"limbs", a.limbs}, {"non_finite", a.non_finite}, {"scale", a.scale, Operand::out}};
}

void validate(const GradientScale& a) {
  const char* op = "gradient_scale";
  check_dtype(op, "limbs", a.limbs, DType::i64);
  check_shape(op, "limbs", a.limbs, {SumOfSquares::limb_count});
  check_dtype(op, "non_finite", a.non_finite, DType::i64);
  check_dtype(op, "scale", a.scale, DType::f32);
  check_shape(op, "scale", a.scale, {1});
  check_device(op, {&a.limbs, &a.non_finite, &a.scale});
}

ZG_KERNEL(GradientScale, gradient_scale)

std::vector<Operand> operands(const FoldGradient& a) {
  std::vector<Operand> all;
  for (const FoldGradient::Part& part : a.parts)
    for (const Operand& operand : {Operand{"leaf", part.leaf}, {"sum", part.sum, Operand::out}})
      all.push_back(operand);
  return all;
}

void validate(const FoldGradient& args) {
  const char* op = "fold_gradient";
  for (const FoldGradient::Part& part : args.parts) {
    const FoldGradient::Part& other = args.parts[0];
    check_dtype(op, "leaf", part.leaf, {DType::f32, DType::bf16, DType::f16});
    check_dtype(op, "leaf", part.leaf, other.leaf.dtype());
    check_dtype(op, "sum", part.sum, {DType::f32, DType::bf16});
    check_dtype(op, "sum", part.sum, other.sum.dtype());
    check_shape(op, "sum", part.sum, part.leaf.shape());
    check_device(op, {&other.leaf, &part.leaf, &part.sum});
  }
  if (args.rounding != DType::f32 && args.rounding != DType::bf16 && args.rounding != DType::f16)
    raise<DTypeError>("{}: rounding is {}; expected f32, bf16 or f16", op, args.rounding);
}

void adjust_count(OpCount& count, const FoldGradient& a) {
  count.kind = KernelClass::optimizer;
  for (const FoldGradient::Part& part : a.parts)
    if (!part.first && part.leaf.raw() != part.sum.raw()) count.bytes += part.sum.bytes();
}

ZG_KERNEL(FoldGradient, fold_gradient)

}  // namespace zg
