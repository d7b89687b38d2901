#include <cmath>

#include "tests/support/cover.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/config.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using State = zero::Engine::State;

namespace {

Config bf16_config(bool stochastic) {
  Config config = zero::with_precision({}, zero::precision_of(zero::PrecisionPreset::fsdp_memory));
  config.update.stochastic_rounding = stochastic;
  return config;
}

constexpr int rounded_steps = 3;

TrainingRun rounded_run(int ranks, int first = 0, int end = rounded_steps) {
  return {.ranks = ranks, .first = first, .end = end, .micro_batches = 4};
}

std::string trained(const Config& config, int ranks) {
  return train_on_ranks(config, rounded_run(ranks)).hash;
}

}  // namespace

TEST_CASE(
    "stochastic rounding: the bits are the same at every stage, world size, SIMD level and "
    "offload") {
  const std::string expected = trained(bf16_config(true), 1);
  CHECK(trained(bf16_config(false), 1) != expected);
  Config another_seed = bf16_config(true);
  another_seed.seed = 7;
  CHECK(trained(another_seed, 1) != expected);
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    const Toy toy;
    Engine engine(toy.store, device, bf16_config(true));
    CHECK(take_steps(engine, rounded_run(1), train_micro_batch).hash == expected);
  }
  using enum Space;
  for_cover(
      [&](int stage, int ranks, Space space) {
        Config config = bf16_config(true);
        config.stage = stage;
        config.overlap_comm = ranks != 2;
        config.param_persistence_threshold = ranks == 4 ? 64 : 0;  // other flat arrays
        config.offload = {.parameter = stage == 3 ? space : device,
                          .gradient = space,
                          .optimizer = space,
                          .sub_group_size = 64};
        INFO("stage ", stage, ", ranks ", ranks, ", ", name_of(space));
        CHECK(trained(config, ranks) == expected);
      },
      std::vector{0, 1, 2, 3}, std::vector{1, 2, 4}, std::vector{device, host, file});
}

TEST_CASE(
    "stochastic rounding: a run resumed at any step on any ranks gives the uninterrupted run's "
    "bits") {
  const std::string expected = trained(bf16_config(true), 1);
  for (int cut = 1; cut < rounded_steps; ++cut)
    for (const int ranks : {1, 2}) {
      INFO("cut ", cut, ", ranks ", ranks);
      const TemporaryFolder folder;
      TrainingRun saved = rounded_run(1, 0, cut), rest = rounded_run(ranks, cut);
      saved.directory = rest.directory = folder.path();
      train_on_ranks(bf16_config(true), saved);
      Config config = bf16_config(true);
      config.stage = ranks == 2 ? 3 : 0;
      CHECK(train_on_ranks(config, rest).hash == expected);
    }
}

TEST_CASE("with stochastic rounding, steps too small for bf16 move the parameters on average") {
  // A gain of 1 each, a gradient of 1 each: a step takes the rate of 2^-12, a sixteenth of the
  // place of 2^-8 below 1, which to nearest even is nothing.
  constexpr int many = 64;
  for (const bool stochastic : {false, true}) {
    CAPTURE(stochastic);
    ParameterStore store;
    const Parameter& gain = store.add(store.unit("unit"), "gain", {4096}, Init::ones());
    Config config = bf16_config(stochastic);
    config.clip_norm = 0.0f;
    config.update.epsilon = 0.0f;
    Engine engine(store, Device::cpu(), config);
    for (int step = 0; step < many; ++step) {
      run_micro_batch(engine, {{&gain, std::vector<float>(4096, 1.0f)}});
      engine.step(0x1p-12f);
    }
    double mean = 0.0;
    for (const float value : engine.read(gain, State::master)) mean += value / 4096.0;
    // Moments in bf16 give a move within 2^-6 of the rate: 64 steps go 2^-6 to within 2^-12. Each
    // draw of 0 or a place of 2^-8 deviates by at most 2^-9, 64 of them by 2^-6, and the mean of
    // 4096 by 2^-12; five of these and the other.
    if (stochastic)
      CHECK(std::fabs(mean - (1.0 - many * 0x1p-12)) < 6 * 0x1p-12);
    else
      CHECK(mean == 1.0);
  }
}

TEST_CASE("stochastic rounding of f32 masters is refused") {
  for (const DType compute : {DType::f32, DType::bf16, DType::f16})
    CHECK_THROWS_WITH_AS(
        zero::validate({.compute = compute, .update = {.stochastic_rounding = true}}),
        "config: update.stochastic_rounding is on, optimizer is f32; expected bf16: f32 masters "
        "lose nothing, and every step rounds their copies anew; try optimizer bf16 (--precision "
        "fsdp-memory), which keeps no masters",
        ConfigError);
  CHECK_NOTHROW(zero::validate(bf16_config(true)));
}
