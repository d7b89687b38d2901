#include <cmath>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::StepResult;
using State = zero::Engine::State;

namespace {

/// Gradients of up to 3: f16 holds them up to a scale of 2^14.
Gradients gradients_of(const Toy& toy, uint64_t seed) {
  return random_gradients(toy.trainable(), seed, 3.0);
}

StepResult step(Engine& engine, const Gradients& gradients) {
  run_micro_batch(engine, gradients);
  return engine.step(1e-2f);
}

}  // namespace

TEST_CASE(
    "f16: a backward that leaves out an engine's loss scale is refused, and the next one works") {
  const Toy toy;
  const auto loss = [&](Tape& tape) {
    const Tape::Use use(tape, *toy.gain.unit);
    return distance(tape, {}, toy.gain, 1);
  };
  for (const double scale : {1.0, 1024.0}) {
    Engine engine(toy.store, Device::cpu(),
                  {.compute = DType::f16, .loss_scaling = {.loss_scale = scale}});
    Tape plain = engine.tape();
    const std::string message = message_of<TapeError>([&] { plain.backward(loss(plain)); });
    CHECK(message == (scale == 1.0 ? "nothing was thrown"
                                   : "engine: the gradients of unit '" + toy.gain.unit->name +
                                         "' omit this engine's loss scale of f16, 1024; expected "
                                         "Engine::backward(tape, loss) of it, not Tape::backward "
                                         "or another engine's"));
    engine.drop_gradients();
    Tape tape = engine.tape();
    engine.backward(tape, loss(tape));
    Tape early = engine.tape();
    Var old;
    {
      const Tape::Use use(early, toy.first);
      const Var x = early.variable(Tensor::full({1, 31}, 1.0, DType::f16, engine.device()));
      old = sum(linear(x, early.parameter(toy.weight)));
    }
    CHECK(!engine.step(1e-2f).skipped);
    CHECK(message_of<TapeError>([&] { engine.backward(early, old); }).ends_with("before backward"));
    Tape again = engine.tape();
    CHECK(message_of<TapeError>([&] { again.backward(loss(again)); }) == message);
  }
}

TEST_CASE(
    "f16: the loss scale is in the gradient sums but not in the norm, the update or dumped "
    "gradients") {
  const Toy toy;
  Engine scaled(toy.store, Device::cpu(),
                {.compute = DType::f16, .loss_scaling = {.loss_scale = 1024.0}});
  Engine plain(toy.store, Device::cpu(),
               {.compute = DType::f16, .loss_scaling = {.loss_scale = 1.0}});
  CHECK(scaled.loss_scale() == 1024.0);
  for (uint64_t i = 0; i < 3; ++i) {
    // Multiples of 1/64 up to 3: exact in f16 at either scale, so only the scale could differ.
    Gradients gradients = gradients_of(toy, i);
    for (auto& [parameter, gradient] : gradients)
      for (float& x : gradient) x = std::round(x * 64.0f) / 64.0f;
    run_micro_batch(scaled, gradients);
    CHECK(scaled.read(toy.gain, State::gradient)[5] == 1024.0f * gradients[&toy.gain][5]);
    const TemporaryFolder folder;
    zero::dump_gradients(folder / "g", scaled);
    CHECK(SafetensorsReader(folder / "g").read_floats("gain") == gradients[&toy.gain]);
    run_micro_batch(plain, gradients);
    const StepResult result = scaled.step(1e-2f);
    CHECK(result.gradient_norm == plain.step(1e-2f).gradient_norm);
    CHECK(result.loss_scale == 1024.0);
    CHECK(scaled.parameter_hash() == plain.parameter_hash());
  }
}

TEST_CASE(
    "f16: overflows skip steps by the loss scaler's rules, and AdamW does not count these steps") {
  const Toy toy;
  const Config config{.compute = DType::f16};
  Engine engine(toy.store, Device::cpu(), config);
  Engine lower(toy.store, Device::cpu(),
               {.compute = DType::f16, .loss_scaling = {.loss_scale = 0x1p14}});
  const std::string start = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: ";
  const std::string before = engine.parameter_hash();
  const std::vector<std::string> lines = {
      start + "65536, but hysteresis is 2. Reducing hysteresis to 1",
      start + "65536, reducing to 32768", start + "32768, reducing to 16384"};
  for (size_t i = 0; i < lines.size(); ++i) {
    const StepResult result = step(engine, gradients_of(toy, 1));
    CHECK(result.skipped);
    CHECK(result.bad_tensor == "z.bias");
    CHECK(std::isinf(result.gradient_norm));
    CHECK(result.scaler_line == lines[i]);
    CHECK(result.loss_scale == (i < 2 ? 65536.0 : 32768.0));
  }
  CHECK(engine.skipped() == 3);
  CHECK(engine.parameter_hash() == before);
  for (uint64_t i = 1; i <= 3; ++i) {
    const StepResult result = step(engine, gradients_of(toy, i));
    CHECK_FALSE(result.skipped);
    CHECK(result.scaler_line.empty());
    CHECK(result.loss_scale == 16384.0);
    step(lower, gradients_of(toy, i));
  }
  CHECK(engine.parameter_hash() == lower.parameter_hash());
  CHECK(engine.read(toy.gain, State::moment2) == lower.read(toy.gain, State::moment2));
}

TEST_CASE("f16: at the minimal scale an overflow is an error") {
  const Toy toy;
  Engine engine(
      toy.store, Device::cpu(),
      {.compute = DType::f16,
       .loss_scaling = {.initial_scale_power = 15, .hysteresis = 1, .min_loss_scale = 0x1p15}});
  run_micro_batch(engine, gradients_of(toy, 1));
  CHECK_THROWS_WITH_AS(engine.step(1e-2f),
                       "Current loss scale already at minimum - cannot decrease scale anymore. "
                       "Exiting run. The gradient of z.bias is not finite; try bf16, which has the "
                       "range of f32.",
                       Error);
}

TEST_CASE("f32 and bf16 use no loss scale, which is reported as 1 for f32 and 0 for bf16") {
  const Toy toy;
  for (DType compute : {DType::f32, DType::bf16}) {
    const double logged = compute == DType::f32 ? 1.0 : 0.0;
    Engine engine(toy.store, Device::cpu(),
                  {.compute = compute, .loss_scaling = {.loss_scale = 64.0}});
    CHECK(engine.loss_scale() == logged);
    Gradients gradients = gradients_of(toy, 1);
    gradients[&toy.bias][0] = INFINITY;
    const StepResult result = step(engine, gradients);
    CHECK(result.loss_scale == logged);
    CHECK(result.skipped);
    CHECK(result.scaler_line.empty());
    gradients[&toy.bias][0] = 1.0f;
    run_micro_batch(engine, gradients);
    CHECK(engine.read(toy.bias, State::gradient)[0] == 1.0f);
  }
}
