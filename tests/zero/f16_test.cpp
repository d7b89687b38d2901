#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
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

struct Trained {
  std::string hash;
  std::vector<double> losses, scales;
  std::vector<std::string> bad_tensors;  ///< one entry for each step; empty if the step was applied
  int64_t skipped = 0;
  bool operator==(const Trained&) const = default;
};

/// 50 steps of a tiny GPT on minGPT's sorting task, two micro-batches of 8 a step.
Trained train_gpt(const Config& config, int ranks) {
  constexpr int64_t micro_batches = 2, samples = 8;
  Trained trained;
  std::mutex mutex;
  run_local(ranks, [&](Communicator& comm, const Device& device) {
    const auto data = models::sort_dataset(1);
    ParameterStore store;
    const models::GPT gpt(store, {.layers = 2,
                                  .heads = 2,
                                  .width = 16,
                                  .vocabulary = data->vocabulary(),
                                  .block_size = data->block_size()});
    Engine engine(store, comm, device, config);
    Trained here;
    for (int64_t step = 0; step < 50; ++step) {
      std::vector<double> own;
      for (int64_t g = comm.rank(); g < micro_batches; g += ranks) {
        const int64_t first = (step * micro_batches + g) * samples;
        const auto batch = data->batch(models::Split::train, first, samples, device);
        Tape tape = engine.tape();
        const Var loss = gpt.loss(tape, batch.ids, batch.targets,
                                  {.seed = 3, .step = step, .first_sample = first});
        own.push_back(loss.value().item());
        engine.backward(tape, loss);
      }
      here.losses.push_back(engine.mean_loss(own));
      const StepResult result = engine.step(3e-3f);
      here.scales.push_back(result.loss_scale);
      here.bad_tensors.push_back(result.bad_tensor);
    }
    here.hash = engine.parameter_hash();
    here.skipped = engine.skipped();
    const std::lock_guard lock(mutex);
    if (trained.hash.empty()) trained = here;
    if (!(trained == here)) throw ShapeError("ranks ended with different outcomes");
  });
  return trained;
}

}  // namespace

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

TEST_CASE("f16: a tiny GPT with overflows during training gets the same bits at every stage") {
  Config config{.compute = DType::f16, .param_persistence_threshold = 100};
  const Trained reference = train_gpt(config, 1);
  CHECK(reference.skipped > 0);
  CHECK(reference.losses.back() < 0.5 * reference.losses.front());
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    config.stage = stage;
    CHECK(train_gpt(config, 2) == reference);
  }
}

TEST_CASE("f16: without overflows the losses are closer to those of f32 than bf16 losses are") {
  const Trained f32 = train_gpt({}, 1), bf16 = train_gpt({.compute = DType::bf16}, 1);
  const Trained f16 =
      train_gpt({.compute = DType::f16, .loss_scaling = {.initial_scale_power = 11}}, 1);
  const auto distance = [&](const Trained& other) {
    double largest = 0.0;
    for (size_t i = 0; i < f32.losses.size(); ++i)
      largest = std::max(largest, std::fabs(other.losses[i] - f32.losses[i]));
    return largest;
  };
  CHECK(f16.skipped == 0);
  CHECK(f16.losses.back() < 0.5 * f16.losses.front());
  CHECK(distance(f16) < distance(bf16));
  // Losses are about 1 and bf16 rounds by 2^-8: sixteen roundings that happen to agree.
  CHECK(distance(bf16) < 16 * 0x1p-8);
}
