// Adafactor on an accelerator: one hash wherever states are stored, and the cpu's values within
// rounding.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/tested_type.h"
#include "tests/zero/muon_toy.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

struct AdafactorOutcome {
  std::string hash;
  std::vector<float> tall, factors;
};

AdafactorOutcome train_adafactor(Config config, int ranks, Device::Type type) {
  constexpr int micro_batches = 4;
  AdafactorOutcome outcome;
  std::mutex mutex;
  config.param_persistence_threshold = 160;
  const auto rank = [&](Communicator& comm, const Device& device) {
    const MuonToy toy;
    Engine engine(toy.store, comm, device, config);
    for (int step = 0; step < 3; ++step) {
      for (int g = comm.rank(); g < micro_batches; g += ranks)
        train_micro_batch(engine, static_cast<uint64_t>(step * micro_batches + g));
      engine.step(1e-2f);
    }
    const std::string hash = engine.parameter_hash();
    const std::vector<float> tall = engine.read(toy.tall, Engine::State::master);
    const std::vector<float> factors = engine.read(toy.tall, Engine::State::moment2);
    const std::lock_guard lock(mutex);
    if (!outcome.hash.empty() && (outcome.hash != hash || outcome.factors != factors))
      throw ShapeError("ranks ended with different states");
    outcome = {hash, tall, factors};
  };
  run_local(ranks, rank, {.device = {.swap = {.directory = "/tmp"}}, .type = type});
  return outcome;
}

double largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

}  // namespace

TEST_CASE(
    "adafactor on accelerators gives one hash for all stages, ranks and offload, and is near the "
    "CPU" *
    doctest::test_suite("every device")) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    CAPTURE(std::string(name_of(compute)));
    const Config plain{.compute = compute, .update = {.rule = OptimizerRule::adafactor}};
    const AdafactorOutcome expected = train_adafactor(plain, 1, tested_type);
    const AdafactorOutcome cpu = train_adafactor(plain, 1, Device::Type::cpu);
    REQUIRE(expected.factors.size() == 40 + 24);
    // Three steps move an element by 0.005 and more; a value in bf16 may round the other way.
    const bool is_f32 = compute == DType::f32;
    CHECK(largest_distance(cpu.tall, expected.tall) <= (is_f32 ? 1e-5 : 1e-3));
    CHECK(largest_distance(cpu.factors, expected.factors) <= (is_f32 ? 1e-5 : 1e-3));
    for (const int stage : {0, 1, 3})
      for (const int ranks : {1, 2})
        for (const Space space : {Space::device, Space::host, Space::file}) {
          CAPTURE(stage);
          CAPTURE(ranks);
          CAPTURE(std::string(name_of(space)));
          Config config = plain;
          config.stage = stage;
          config.offload = {.parameter = stage == 3 ? space : Space::device,
                            .gradient = ranks == 2 ? space : Space::device,
                            .optimizer = space,
                            .sub_group_size = 128};
          CHECK(train_adafactor(config, ranks, tested_type).hash == expected.hash);
        }
  }
}
