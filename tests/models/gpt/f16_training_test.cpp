#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using zero::Config;
using zero::Engine;
using zero::StepResult;

namespace {

struct RunOfGpt {
  std::string hash;
  std::vector<double> losses, scales;
  std::vector<std::string> bad_tensors;  ///< one entry for each step; empty if the step was applied
  int64_t skipped = 0;
  bool operator==(const RunOfGpt&) const = default;
};

/// 50 steps of a tiny GPT on minGPT's sorting task, two micro-batches of 8 a step.
RunOfGpt train_gpt(const Config& config, int ranks) {
  constexpr int64_t micro_batches = 2, samples = 8;
  RunOfGpt trained;
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
    RunOfGpt here;
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

TEST_CASE("f16: a tiny GPT with overflows during training gets the same bits at every stage") {
  Config config{.compute = DType::f16, .param_persistence_threshold = 100};
  const RunOfGpt reference = train_gpt(config, 1);
  CHECK(reference.skipped > 0);
  CHECK(reference.losses.back() < 0.5 * reference.losses.front());
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    config.stage = stage;
    CHECK(train_gpt(config, 2) == reference);
  }
}

TEST_CASE("f16: without overflows the losses are closer to those of f32 than bf16 losses are") {
  const RunOfGpt f32 = train_gpt({}, 1), bf16 = train_gpt({.compute = DType::bf16}, 1);
  const RunOfGpt f16 =
      train_gpt({.compute = DType::f16, .loss_scaling = {.initial_scale_power = 11}}, 1);
  const auto distance = [&](const RunOfGpt& other) {
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
