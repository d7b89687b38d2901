#pragma once

#include <map>
#include <vector>

#include "tests/support/op_case.h"
#include "zerograd/autograd/tape.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/zero/engine.h"

// A store with every kind of parameter, and micro-batches whose gradients a test chooses.
namespace zg::testing {

/// Two units; sizes that are no multiples of anything, both decay groups, a frozen parameter.
struct Toy {
  ParameterStore store;
  const Unit& first = store.unit("first");
  const Unit& second = store.unit("second");
  const Parameter& bias = store.add(first, "z.bias", {7}, Init::zeros());
  const Parameter& weight =
      store.add(first, "a.weight", {5, 31}, Init::normal(0.5f), {.decay = true});
  const Parameter& table =
      store.add(first, "table", {3, 4}, Init::normal(0.1f), {.decay = true, .trainable = false});
  const Parameter& gain = store.add(second, "gain", {129}, Init::ones());
  const Parameter& matrix =
      store.add(second, "b.weight", {65}, Init::normal(0.5f), {.decay = true});

  std::vector<const Parameter*> trainable() const { return {&bias, &weight, &gain, &matrix}; }
};

/// x as a tensor of the dtype holds it.
inline float rounded(float x, DType dtype) {
  return dtype == DType::bf16  ? static_cast<float>(bf16(x))
         : dtype == DType::f16 ? static_cast<float>(f16(x))
                               : x;
}

/// Low enough for every gradient of these tests to fit into f16.
inline constexpr zero::LossScaleOptions low_scale{.loss_scale = 64.0};

using Gradients = std::map<const Parameter*, std::vector<float>>;

struct Nothing {};

/// The backward function of both: the loss's gradient (1, or the loss scale) and the chosen one
/// times that.
inline void pass_on(const Nothing&, const BackwardPass& pass) {
  const Tensor& scale = pass.gradient_of_output();
  if (pass.needs(0)) pass.accumulate(0, scale);
  if (!pass.needs(1)) return;
  const Tensor gradient = pass.make_gradient(1);
  kernels::binary({BinaryOp::multiply, pass.saved(0), scale, gradient}, pass.stream());
  pass.accumulate(1, gradient);
}

/// loss + 0 * parameter, with a gradient of the test's choice.
inline Var with_gradient(Tape& tape, const Var& loss, const Parameter& parameter,
                         const std::vector<float>& gradient) {
  const Tensor chosen = Tensor::from(gradient, parameter.shape, tape.device());
  const Tensor sum = loss ? loss.value() : Tensor::zeros({1}, DType::f32, tape.device());
  return record("with_gradient", {loss, tape.parameter(parameter)}, sum, {chosen}, Nothing{},
                [](const Nothing& none, const BackwardPass& pass) { pass_on(none, pass); });
}

/// One micro-batch with these gradients; parameters that are left out are not used.
inline void run_micro_batch(zero::Engine& engine, const Gradients& gradients) {
  Tape tape = engine.tape();
  Var loss;
  for (const auto& unit : engine.store().units()) {
    const Tape::Use use(tape, *unit);
    for (const Parameter* parameter : unit->parameters)
      if (const auto found = gradients.find(parameter); found != gradients.end())
        loss = with_gradient(tape, loss, *parameter, found->second);
  }
  engine.backward(tape, loss);
}

inline std::vector<float> random_floats(int64_t n, uint64_t seed, double low = -1,
                                        double high = 1) {
  return random_tensor({n}, DType::f32, Device::cpu(), seed, low, high).to_host<float>();
}

inline Gradients random_gradients(const std::vector<const Parameter*>& parameters, uint64_t seed,
                                  double size = 1.0) {
  Gradients gradients;
  for (const Parameter* parameter : parameters)
    gradients[parameter] =
        random_floats(parameter->shape.numel(),
                      seed * 100 + static_cast<uint64_t>(parameter->index), -size, size);
  return gradients;
}

/// loss + sum of (value - target)^2 / 2, whose gradient is the distance to the target: something
/// to train. The target depends on `sample`.
inline Var distance(Tape& tape, const Var& loss, const Parameter& parameter, uint64_t sample) {
  const std::vector<double> value = tape.parameter(parameter).value().to_doubles();
  std::vector<float> difference = random_floats(
      parameter.shape.numel(), sample * 1000 + static_cast<uint64_t>(parameter.index));
  double sum = loss ? loss.value().item() : 0.0;
  for (size_t i = 0; i < value.size(); ++i) {
    difference[i] = static_cast<float>(value[i] - difference[i]);
    sum += 0.5 * difference[i] * difference[i];
  }
  const Tensor total = Tensor::full({1}, sum, DType::f32, tape.device());
  const Tensor gradient = Tensor::from(difference, parameter.shape, tape.device());
  return record("distance", {loss, tape.parameter(parameter)}, total, {gradient}, Nothing{},
                [](const Nothing& none, const BackwardPass& pass) { pass_on(none, pass); });
}

/// One micro-batch of `distance`s to sample's targets; returns its loss.
inline double train_micro_batch(zero::Engine& engine, uint64_t sample) {
  Tape tape = engine.tape();
  Var loss;
  for (const auto& unit : engine.store().units()) {
    const Tape::Use use(tape, *unit);
    for (const Parameter* parameter : unit->parameters)
      loss = distance(tape, loss, *parameter, sample);
  }
  engine.backward(tape, loss);
  return loss.value().item();
}

/// Two micro-batches and a step, as a training loop would; returns the sum of the losses.
inline double train_step(zero::Engine& engine, int64_t step, float rate = 1e-2f) {
  double losses = 0.0;
  for (uint64_t sample : {2 * static_cast<uint64_t>(step), 2 * static_cast<uint64_t>(step) + 1})
    losses += train_micro_batch(engine, sample);
  engine.step(rate);
  return losses;
}

}  // namespace zg::testing
