// A Wasserstein GAN with gradient penalty (Gulrajani et al. 2017, arXiv:1704.00028): the critic's
// slope at points between real and made ones is a value of the program, and the loss depends on it.
// The generator learns eight normal distributions around a circle. Planned, then run.
//   wgan [FOLDER]    also writes the critic's first weights, batch and gradients there
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>

#include "zerograd/autograd/grad.h"
#include "zerograd/autograd/values.h"
#include "zerograd/models/nn.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/tensor_files.h"
#include "zerograd/zero/values_optimizer.h"

namespace {

using namespace zg;

constexpr int64_t batch = 128, rounds = 600, critic_steps = 3, modes = 8;
constexpr double penalty_factor = 1.0, radius = 2.0;

/// Three layers: x [B, in] to [B, out].
struct Net : nn::Module {
  nn::Linear first, second, last;

  Net(int64_t in, int64_t out)
      : first(this, "first", {.in = in, .out = 64, .stddev = 0.7f}),
        second(this, "second", {.in = 64, .out = 64, .stddev = 0.15f}),
        last(this, "last", {.in = 64, .out = out, .stddev = 0.15f}) {}
  Var operator()(const Var& x) const {
    const Var hidden = zg::tanh(first(x));
    return last(zg::tanh(second(hidden)));
  }
};

Tensor real_points(uint64_t step, const Device& device) {
  const Var angles =
      cast(randint({batch, 1}, 0, modes, step, "mode", DType::i64, device), DType::f32) *
      (2.0 * std::numbers::pi / modes);
  const Var horizontal = zg::cos(angles), vertical = zg::sin(angles);
  const Var centres = radius * concat({horizontal, vertical}, 1);
  return (centres + 0.1 * Var(randn({batch, 2}, step, "real", DType::f32, device))).value();
}

/// The critic's loss of one batch: Wasserstein distance and penalty.
Var critic_loss(const Net& critic, const Tape& tape, const Tensor& real, const Tensor& made,
                const Tensor& mix) {
  const Var between = tape.variable((Var(made) + Var(mix) * (Var(real) - Var(made))).value());
  const Var slope = grad(sum(critic(between)), between, {.create_graph = true});
  const Var norm = zg::sqrt(sum(square(slope), 1));
  const Var of_made = mean(critic(tape.constant(made))),
            of_real = mean(critic(tape.constant(real)));
  return of_made - of_real + penalty_factor * mean(square(norm - 1.0));
}

/// The mean distance of 1000 samples to the nearest mode.
double train(const Device& device, const std::string& folder) {
  const Net generator(2, 2), critic(2, 1);
  Values made(generator.store(), initial_weights(generator.store(), 1), device);
  Values judged(critic.store(), initial_weights(critic.store(), 2), device);
  Values average = made.copy();
  const zero::UpdateOptions adam{.beta1 = 0.5f, .beta2 = 0.9f, .weight_decay = 0};
  zero::ValuesOptimizer of_made(made, adam), of_judged(judged, adam);
  const auto noise = [&](uint64_t step, int64_t rows) {
    return randn({rows, 2}, step, "noise", DType::f32, device);
  };
  for (uint64_t round = 0; round < rounds; ++round) {
    for (uint64_t i = 0; i < critic_steps; ++i) {
      const uint64_t step = round * critic_steps + i;
      const Tape drawn = made.inference_tape();
      Tape tape = judged.tape();
      const Tensor fake = generator(drawn.constant(noise(step, batch))).value();
      const Tensor real = real_points(step, device);
      const Tensor mix = uniform({batch, 1}, step, "mix", 0, 1, DType::f32, device);
      tape.backward(critic_loss(critic, tape, real, fake, mix));
      if (step == 0 && !folder.empty()) {
        save_safetensors(folder + "/wgan.weights.safetensors", judged.tensors());
        save_safetensors(folder + "/wgan.batch.safetensors",
                         {{"real", real}, {"made", fake}, {"mix", mix}});
        save_safetensors(folder + "/wgan.gradients.safetensors", judged.gradients());
      }
      of_judged.step(2e-3f);
    }
    Tape tape(device, {&made, &judged});
    const Var fake = generator(tape.constant(noise(round, batch)));
    tape.backward(-mean(critic(fake)));
    judged.clear_gradients();
    of_made.step(1e-3f);
    average.average(made, 0.95);
  }
  const Tape tape = average.inference_tape();
  const std::vector<double> points =
      generator(tape.constant(noise(rounds, 1000))).value().to_doubles();
  double distance = 0;
  for (size_t i = 0; i < points.size(); i += 2) {
    double nearest = 1e9;
    for (int mode = 0; mode < modes; ++mode) {
      const double angle = 2.0 * std::numbers::pi * mode / modes;
      nearest = std::fmin(nearest, std::hypot(points[i] - radius * std::cos(angle),
                                              points[i + 1] - radius * std::sin(angle)));
    }
    distance += nearest / 1000;
  }
  return distance;
}

}  // namespace

int main(int argc, char** argv) {
  double distance = 0;
  const Program program = [&](Communicator&, const Device& device) {
    distance = train(device, argc > 1 ? argv[1] : "");
  };
  const Plan plan = plan_ranks(1, program);
  run_ranks(1, program, {.expect = &plan});
  std::printf("wgan: samples are %.3f from the nearest mode; modes are 0.125 wide\n", distance);
  return distance < 0.4 ? 0 : 1;
}
