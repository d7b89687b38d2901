// A generative adversarial network on one tape (Goodfellow et al. 2014, arXiv:1406.2661): generator
// and discriminator are two stores, and one backward gives each the gradients of its own loss. The
// generator learns a normal distribution; samples come from a moving average of its weights.
// Planned, then run.
//   gan [FOLDER]    also writes the first weights, batch and gradients there
#include <cstdio>
#include <string>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/values.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/values_optimizer.h"

namespace {

using namespace zg;

constexpr int64_t batch = 64, steps = 1500;
constexpr double wanted_mean = 3.0;

/// Two layers: x [B, in] to [B, 1].
struct Net {
  ParameterStore store;
  const Parameter *w1, *b1, *w2, *b2;

  Net(const std::string& name, int64_t in) {
    const Unit& unit = store.unit(name);
    w1 = &store.add(unit, name + ".w1", {16, in}, Init::normal(0.5f));
    b1 = &store.add(unit, name + ".b1", {16}, Init::uniform(1.0f));
    w2 = &store.add(unit, name + ".w2", {1, 16}, Init::normal(0.3f));
    b2 = &store.add(unit, name + ".b2", {1}, Init::zeros());
  }
  /// `frozen`: the parameters get no gradient from this use, and x does.
  Var operator()(Tape& tape, const Var& x, bool frozen = false) const {
    const auto value = [&](const Parameter* parameter) {
      const Var var = tape.parameter(*parameter);
      return frozen ? detach(var) : var;
    };
    const Var hidden = zg::tanh(linear(x, value(w1), value(b1)));
    return linear(hidden, value(w2), value(b2));
  }
};

double train(const Device& device, const std::string& folder) {
  const Net generator("generator", 2), discriminator("discriminator", 1);
  Values made(generator.store, initial_weights(generator.store, 1), device);
  Values judged(discriminator.store, initial_weights(discriminator.store, 1), device);
  Values average = made.copy();
  const zero::UpdateOptions sgd{.rule = OptimizerRule::sgd, .weight_decay = 0};
  zero::ValuesOptimizer of_made(made, sgd), of_judged(judged, sgd);
  const Tensor ones = Tensor::full({batch, 1}, 1, DType::f32, device);
  const Tensor zeros = Tensor::zeros({batch, 1}, DType::f32, device);
  const auto noise = [&](int64_t step) {
    return randn({batch, 2}, static_cast<uint64_t>(step), "noise", DType::f32, device);
  };
  for (int64_t step = 0; step < steps; ++step) {
    const Var normal = randn({batch, 1}, static_cast<uint64_t>(step), "real", DType::f32, device);
    const Var real = 0.5 * normal + wanted_mean;
    Tape tape(device, {&made, &judged});
    const Var fake = generator(tape, noise(step));
    const Var of_real = discriminator(tape, real);
    const Var of_fake = discriminator(tape, detach(fake));
    const Var of_fake_to_generator = discriminator(tape, fake, /*frozen=*/true);
    const Var real_loss = binary_cross_entropy(of_real, ones);
    const Var fake_loss = binary_cross_entropy(of_fake, zeros);
    const Var generator_loss = binary_cross_entropy(of_fake_to_generator, ones);
    tape.backward(real_loss + fake_loss + generator_loss);
    if (step == 0 && !folder.empty()) {
      NamedTensors weights = made.tensors(), gradients = made.gradients();
      weights.merge(judged.tensors());
      gradients.merge(judged.gradients());
      save_safetensors(folder + "/gan.weights.safetensors", weights);
      save_safetensors(folder + "/gan.batch.safetensors",
                       {{"noise", noise(0)}, {"real", real.value()}});
      save_safetensors(folder + "/gan.gradients.safetensors", gradients);
    }
    of_made.step(0.02f);
    of_judged.step(0.05f);
    average.average(made, 0.99);
  }
  Tape tape = average.inference_tape();
  return mean(generator(tape, noise(steps))).value().item();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  double result = 0;
  const Program program = [&](Communicator&, const Device& device) {
    result = train(device, folder);
  };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
  std::printf("gan: samples have a mean of %.3f; expected %.1f\n", result, wanted_mean);
  return result > wanted_mean - 0.5 && result < wanted_mean + 0.5 ? 0 : 1;
}
