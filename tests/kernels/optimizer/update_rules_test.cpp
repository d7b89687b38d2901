#include <cmath>
#include <string>
#include <vector>

#include "tests/support/op_case.h"
#include "zerograd/kernels/optimizer/optimizer.h"

// Lion and SGD. adam_test.cpp has the tests of adam, and those of what all rules share.
using namespace zg;
using namespace zg::testing;

namespace {

struct RuleCase {
  const char* name;
  OptimizerUpdate update;  // without tensors
  bool has_momentum;
};

std::vector<RuleCase> rule_cases() {
  using enum UpdateRule;
  const OptimizerUpdate lion_update{
      .rule = lion, .gradient_scale = 0.37f, .rate = 1e-2f, .beta1 = 0.9f, .beta2 = 0.99f};
  const OptimizerUpdate sgd_update{
      .rule = sgd, .gradient_scale = 0.37f, .rate = 1e-1f, .beta1 = 0.9f, .decoupled = false};
  OptimizerUpdate coupled = lion_update, dampened = sgd_update, nesterov = sgd_update;
  coupled.decoupled = false;
  dampened.dampening = 0.25f;
  nesterov.nesterov = true;
  OptimizerUpdate decoupled = sgd_update;
  decoupled.decoupled = true;
  return {{"lion", lion_update, true},         {"lion, decay by gradient", coupled, true},
          {"sgd", sgd_update, false},          {"sgd, decay of the parameter", decoupled, false},
          {"sgd, momentum", sgd_update, true}, {"sgd, dampening", dampened, true},
          {"sgd, nesterov", nesterov, true}};
}

/// torch.optim.SGD, and Lion as Chen et al. 2023 (arXiv:2302.06675) write it, in double.
struct ReferenceRule {
  std::vector<double> parameter, moment;

  // Returns the largest absolute value of a direction.
  double step(const std::vector<double>& gradient, const OptimizerUpdate& a) {
    const double decay = a.tensors[0].weight_decay, beta1 = a.beta1;
    const double rate = double{a.rate} * a.tensors[0].rate_factor;
    double largest = 0.0;
    for (size_t i = 0; i < parameter.size(); ++i) {
      double& p = parameter[i];
      double g = gradient[i] * double{a.gradient_scale};
      if (!a.decoupled) g += decay * p;
      double direction = g;
      if (a.rule == UpdateRule::lion) {
        const double sum = beta1 * moment[i] + (1.0 - beta1) * g;
        direction = sum > 0.0 ? 1.0 : sum < 0.0 ? -1.0 : 0.0;
        moment[i] = double{a.beta2} * moment[i] + (1.0 - double{a.beta2}) * g;
      } else if (!moment.empty()) {
        moment[i] = a.step == 1 ? g : beta1 * moment[i] + (1.0 - double{a.dampening}) * g;
        direction = a.nesterov ? g + beta1 * moment[i] : moment[i];
      }
      if (a.decoupled) p *= 1.0 - rate * decay;
      p -= rate * direction;
      largest = std::max(largest, std::abs(direction));
    }
    return largest;
  }
};

OptimizerTensor rule_tensor(int64_t n, bool has_momentum, DType state, DType gradient,
                            const Device& device) {
  return {.parameter = random_tensor({n}, state, device, 1),
          .gradient = random_tensor({n}, gradient, device, 2, -3.0, 3.0),
          .moment1 = has_momentum ? random_tensor({n}, state, device, 3, -0.1, 0.1) : Tensor(),
          .weight_decay = 0.1f,
          .rate_factor = 0.75f};
}

OptimizerTensor rule_part(const OptimizerTensor& t, int64_t begin, int64_t n) {
  OptimizerTensor part = t;
  for (Tensor OptimizerTensor::*tensor :
       {&OptimizerTensor::parameter, &OptimizerTensor::gradient, &OptimizerTensor::moment1,
        &OptimizerTensor::low_precision})
    if (part.*tensor) part.*tensor = (t.*tensor).flat(begin, n);
  return part;
}

OptimizerUpdate with_tensors(OptimizerUpdate update, std::vector<OptimizerTensor> tensors) {
  update.tensors = std::move(tensors);
  return update;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("lion and sgd follow their formulas in double for 20 steps") {
  constexpr int64_t n = 1023;
  for (const RuleCase& rule : rule_cases())
    for (const Device& device : devices_at_every_level())
      for (const DType gradient : {DType::f32, DType::bf16}) {
        INFO(std::string(rule.name), ", ", level_of(device), ", ", name_of(gradient));
        OptimizerTensor t = rule_tensor(n, rule.has_momentum, DType::f32, gradient, device);
        if (t.moment1) t.moment1 = Tensor::zeros({n}, DType::f32, device);
        ReferenceRule reference{t.parameter.to_doubles(), {}};
        if (t.moment1) reference.moment = t.moment1.to_doubles();
        double largest = 0.0;
        for (int64_t step = 1; step <= 20; ++step) {
          t.gradient = random_tensor({n}, gradient, device, static_cast<uint64_t>(100 + step));
          OptimizerUpdate a = with_tensors(rule.update, {t});
          a.step = step;
          kernels::optimizer_update(a, device.compute());
          largest = std::max(largest, reference.step(t.gradient.to_doubles(), a));
        }
        // u = 2^-24. A gradient has 3 roundings, a momentum 2 for each of its terms, of which it
        // remembers 10, and Nesterov's sum one more: 30u of the largest direction. The parameter is
        // below 3 and rounded 3 times a step.
        const double u = 0x1p-24, rate = double{rule.update.rate};
        const bool signs = rule.update.rule == UpdateRule::lion;
        const double moved = signs ? u : 30 * u * largest;
        CHECK(excess(t.parameter, reference.parameter, 20 * (3 * 3 * u + rate * moved)) < 1.0);
        if (t.moment1)
          CHECK(excess(t.moment1, reference.moment, 30 * u * std::max(largest, 1.0)) < 1.0);
      }
}

TEST_CASE("lion and sgd give the same bits at every level and for any split") {
  const Device portable = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  for (const RuleCase& rule : rule_cases())
    for (const DType state : {DType::f32, DType::bf16})
      for (const DType gradient : {DType::f32, DType::bf16})
        for (const int64_t n : {1, 31, 16417}) {
          const auto tensor_on = [&](const Device& device) {
            OptimizerTensor t = rule_tensor(n, rule.has_momentum, state, gradient, device);
            if (state == DType::f32) t.low_precision = Tensor::zeros({n}, DType::bf16, device);
            return t;
          };
          const auto updated = [&](const OptimizerTensor& t, std::vector<OptimizerTensor> parts,
                                   const Device& device, int64_t step) {
            OptimizerUpdate a = with_tensors(rule.update, std::move(parts));
            a.step = step;
            kernels::optimizer_update(a, device.compute());
            return t;
          };
          for (const int64_t step : {1, 7}) {
            const OptimizerTensor one = tensor_on(portable);
            const OptimizerTensor expected = updated(one, {one}, portable, step);
            for (const Device& device : devices_at_every_level()) {
              INFO(std::string(rule.name), ", ", level_of(device), ", ", name_of(state), ", n ", n,
                   ", step ", step);
              const OptimizerTensor all = tensor_on(device);
              const int64_t cut = n * 3 / 7;
              updated(all, {rule_part(all, cut, n - cut), rule_part(all, 0, cut)}, device, step);
              CHECK(same_bits(all.parameter, expected.parameter));
              if (all.moment1) CHECK(same_bits(all.moment1, expected.moment1));
              if (all.low_precision) CHECK(same_bits(all.low_precision, expected.low_precision));
            }
          }
        }
}

TEST_CASE("lion moves each element by the rate, and not at all for a gradient of 0") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const OptimizerTensor t{
        .parameter = Tensor::from(std::vector<float>{1.0f, 1.0f, 1.0f, 1.0f}, {4}, device),
        .gradient = Tensor::from(std::vector<float>{5.0f, -1e-30f, 0.0f, -7e20f}, {4}, device),
        .moment1 = Tensor::zeros({4}, DType::f32, device)};
    kernels::optimizer_update({.tensors = {t}, .rule = UpdateRule::lion, .rate = 0.25f},
                              device.compute());
    CHECK(t.parameter.to_host<float>() == std::vector<float>{0.75f, 1.25f, 1.0f, 1.25f});
  }
}

TEST_SUITE_END();

TEST_CASE("lion and sgd refuse moments that their rule does not use, and lion requires moment1") {
  const Device device = Device::cpu();
  const auto refused = [&](UpdateRule rule, const OptimizerTensor& t) {
    kernels::optimizer_update({.tensors = {t}, .rule = rule}, device.compute());
  };
  OptimizerTensor t = rule_tensor(16, true, DType::f32, DType::f32, device);
  t.moment2 = Tensor::zeros({16}, DType::f32, device);
  CHECK_THROWS_WITH_AS(refused(UpdateRule::lion, t), "lion: moment2 is given; expected it absent",
                       ShapeError);
  CHECK_THROWS_WITH_AS(refused(UpdateRule::sgd, t), "sgd: moment2 is given; expected it absent",
                       ShapeError);
  t.moment1 = t.moment2 = Tensor();
  CHECK_THROWS_WITH_AS(refused(UpdateRule::lion, t), "lion: moment1 is absent; expected a tensor",
                       ShapeError);
  const OptimizerTensor with = rule_tensor(16, true, DType::f32, DType::f32, device);
  CHECK_THROWS_WITH_AS(
      kernels::optimizer_update({.tensors = {t, with}, .rule = UpdateRule::sgd}, device.compute()),
      "sgd, tensor 1: moment1 is given; expected it absent, as in tensor 0", ShapeError);
  CHECK_THROWS_WITH_AS(
      kernels::optimizer_update({.tensors = {t}, .rule = UpdateRule::sgd, .dampening = 1.5f},
                                device.compute()),
      "sgd: dampening is 1.500000; expected a number in [0, 1]", ConfigError);
}
