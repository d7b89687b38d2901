#include <algorithm>
#include <cmath>

#include "tests/zero/training_run.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/gpt/gpt.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

const models::Dataset& sorting() {
  static const auto data = models::sort_dataset(1);
  return *data;
}

struct TinyGPT {
  ParameterStore store;
  models::GPT gpt{store,
                  {.layers = 2,
                   .heads = 2,
                   .width = 16,
                   .vocabulary = sorting().vocabulary(),
                   .block_size = sorting().block_size()}};
};

/// 50 steps of a tiny GPT on minGPT's sorting task, two micro-batches of 8 a step.
TrainingOutcome train_gpt(const Config& config, int ranks) {
  constexpr int64_t samples = 8;
  const auto micro_batch = [](Engine& engine, const TinyGPT& model, uint64_t number) {
    const auto step = static_cast<int64_t>(number / 100), own = static_cast<int64_t>(number % 100);
    const int64_t first = (2 * step + own) * samples;
    const auto batch = sorting().batch(models::Split::train, first, samples, engine.device());
    Tape tape = engine.tape();
    const Var loss =
        model.gpt.loss(tape, batch.ids, batch.targets, {.seed = 3, .first_sample = first});
    engine.backward(tape, loss);
    return loss.value().item();
  };
  return train_on_ranks<TinyGPT>(
      config, {.ranks = ranks, .end = 50, .micro_batches = 2, .rate = 3e-3f}, micro_batch);
}

}  // namespace

TEST_CASE("f16: a tiny GPT with overflows during training gets the same bits at every stage") {
  Config config{.compute = DType::f16, .param_persistence_threshold = 100};
  const TrainingOutcome reference = train_gpt(config, 1);
  CHECK(reference.skipped > 0);
  CHECK(reference.losses.back() < 0.5 * reference.losses.front());
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    config.stage = stage;
    CHECK(train_gpt(config, 2) == reference);
  }
}

TEST_CASE("f16: without overflows the losses are closer to those of f32 than bf16 losses are") {
  const TrainingOutcome f32 = train_gpt({}, 1), bf16 = train_gpt({.compute = DType::bf16}, 1);
  const TrainingOutcome f16 =
      train_gpt({.compute = DType::f16, .loss_scaling = {.initial_scale_power = 11}}, 1);
  const auto distance = [&](const TrainingOutcome& other) {
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
