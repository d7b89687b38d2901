#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

using namespace zg;
using namespace zg::testing;
using zero::Engine;

namespace {

/// Two layers in a unit each; the first one's weight is used twice, so its gradient is a sum.
struct Perceptron {
  static constexpr int64_t width = 24, batch = 16;
  ParameterStore store;
  const Unit& lower = store.unit("lower");
  const Unit& upper = store.unit("upper");
  const Parameter& weight1 =
      store.add(lower, "lower.weight", {width, width}, Init::normal(0.3f), {.decay = true});
  const Parameter& bias1 = store.add(lower, "lower.bias", {width}, Init::zeros());
  const Parameter& weight2 =
      store.add(upper, "upper.weight", {3, width}, Init::normal(0.3f), {.decay = true});
  const Parameter& bias2 = store.add(upper, "upper.bias", {3}, Init::zeros());

  Var layer(Tape& tape, const Var& x) const {
    const Tape::Use use(tape, lower);
    const Var weight = tape.parameter(weight1), bias = tape.parameter(bias1);
    return linear(x, weight, bias, Activation::gelu_tanh);
  }

  Var loss(Tape& tape, uint64_t sample, DType compute, bool checkpointed) const {
    const Device device = tape.device();
    const Var x(random_tensor({batch, width}, compute, device, sample));
    const auto body = [this](Tape& inner, std::span<const Var> inputs) {
      const Var once = layer(inner, inputs[0]);
      return layer(inner, once);
    };
    const Var h =
        checkpointed ? checkpoint(tape, std::span(&x, 1), body) : body(tape, std::span(&x, 1));
    const Tape::Use use(tape, upper);
    const Var weight = tape.parameter(weight2), bias = tape.parameter(bias2);
    const Var y = linear(h, weight, bias);
    // Something to learn: the first three inputs.
    return mse(y, slice(x, 1, 0, 3));
  }

  double step(Engine& engine, uint64_t step, bool checkpointed = false) const {
    double sum = 0.0;
    for (uint64_t micro = 0; micro < 2; ++micro) {
      Tape tape = engine.tape();
      const Var value = loss(tape, 2 * step + micro, engine.config().compute, checkpointed);
      sum += value.value().item();
      engine.backward(tape, value);
    }
    CHECK_FALSE(engine.step(3e-3f).skipped);
    return sum / 2;
  }
};

}  // namespace

TEST_CASE("a perceptron learns, resumes bit for bit, and activation checkpointing changes no bit") {
  constexpr uint64_t last = 150, cut = 60;
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name_of(compute));
    const Perceptron model;
    const TemporaryFolder folder;
    // This loss scale is so low that no f16 gradient overflows.
    const zero::Config config{.compute = compute, .loss_scaling = {.initial_scale_power = 10}};
    Engine engine(model.store, Device::cpu(), config);
    Engine recomputing(model.store, Device::cpu(), config);
    std::vector<double> losses;
    for (uint64_t step = 0; step < last; ++step) {
      if (step == cut) zero::save_checkpoint(folder.path(), engine, {.steps = engine.steps()});
      losses.push_back(model.step(engine, step));
      CHECK(model.step(recomputing, step, /*checkpointed=*/true) == losses.back());
    }
    // The targets are uniform in [-1, 1), whose mean square is 1/3.
    CHECK(losses.front() > 0.2);
    CHECK(losses.back() < 0.05);
    CHECK(recomputing.parameter_hash() == engine.parameter_hash());

    Engine resumed(model.store, Device::cpu(),
                   {.compute = compute, .loss_scaling = config.loss_scaling, .seed = 1});
    zero::load_checkpoint(folder.path(), resumed);
    for (uint64_t step = cut; step < last; ++step) CHECK(model.step(resumed, step) == losses[step]);
    CHECK(resumed.parameter_hash() == engine.parameter_hash());
  }
}
