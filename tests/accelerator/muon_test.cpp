// Muon on an accelerator: one hash wherever states are stored, and the cpu's values within
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

struct MuonOutcome {
  std::string hash;
  std::vector<float> tall;
};

MuonOutcome train_muon(Config config, int ranks, Device::Type type) {
  constexpr int micro_batches = 4;
  MuonOutcome outcome;
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
    const std::lock_guard lock(mutex);
    if (!outcome.hash.empty() && outcome.hash != hash)
      throw ShapeError("ranks ended with different parameters");
    outcome = {hash, tall};
  };
  run_local(ranks, rank, {.device = {.swap = {.directory = "/tmp"}}, .type = type});
  return outcome;
}

}  // namespace

TEST_CASE(
    "muon on accelerators gives one hash for all stages, ranks and offload, and is near the CPU" *
    doctest::test_suite("every device")) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    CAPTURE(std::string(name_of(compute)));
    const Config plain{.compute = compute, .update = {.rule = OptimizerRule::muon}};
    const MuonOutcome expected = train_muon(plain, 1, tested_type);
    const MuonOutcome cpu = train_muon(plain, 1, Device::Type::cpu);
    double worst = 0.0;
    for (size_t i = 0; i < cpu.tall.size(); ++i)
      worst = std::max(worst, std::abs(double{cpu.tall[i]} - double{expected.tall[i]}));
    CHECK(worst <= (compute == DType::f32 ? 1e-4 : 1e-3));  // three steps move by 0.03 and more
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
          CHECK(train_muon(config, ranks, tested_type).hash == expected.hash);
        }
  }
}
