// Muon and Adafactor on an accelerator: one hash wherever states are stored, and the CPU's values
// within rounding.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/tested_type.h"
#include "tests/zero/matrix_toy.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

struct MatrixOutcome {
  std::string hash;
  std::vector<float> tall, moment2;  ///< moment2 of `tall`; muon has none
};

MatrixOutcome train_matrices(Config config, int ranks, Device::Type type) {
  constexpr int micro_batches = 4;
  MatrixOutcome outcome;
  std::mutex mutex;
  config.param_persistence_threshold = 160;
  const auto rank = [&](Communicator& comm, const Device& device) {
    const MatrixToy toy;
    Engine engine(toy.store, comm, device, config);
    for (int step = 0; step < 3; ++step) {
      for (int g = comm.rank(); g < micro_batches; g += ranks)
        train_micro_batch(engine, static_cast<uint64_t>(step * micro_batches + g));
      engine.step(1e-2f);
    }
    const std::string hash = engine.parameter_hash();
    const std::vector<float> tall = engine.read(toy.tall, Engine::State::master);
    const std::vector<float> moment2 = engine.read(toy.tall, Engine::State::moment2);
    const std::lock_guard lock(mutex);
    if (!outcome.hash.empty() && (outcome.hash != hash || outcome.moment2 != moment2))
      throw ShapeError("ranks ended with different states");
    outcome = {hash, tall, moment2};
  };
  run_local(ranks, rank, {.device = {.swap = {.directory = "/tmp"}}, .type = type});
  return outcome;
}

double largest_distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0.0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double{a[i]} - b[i]));
  return worst;
}

/// `in_f32`, `in_bf16`: the largest distances from the CPU's values.
void check_on_accelerator(OptimizerRule rule, size_t moment2, double in_f32, double in_bf16) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    CAPTURE(std::string(name_of(compute)));
    const double bound = compute == DType::f32 ? in_f32 : in_bf16;
    const Config plain{.compute = compute, .update = {.rule = rule}};
    const MatrixOutcome expected = train_matrices(plain, 1, tested_type);
    const MatrixOutcome cpu = train_matrices(plain, 1, Device::Type::cpu);
    CHECK(expected.moment2.size() == moment2);
    CHECK(largest_distance(cpu.tall, expected.tall) <= bound);
    CHECK(largest_distance(cpu.moment2, expected.moment2) <= bound);
    for (const std::vector<size_t>& c : cover_rows({3, 2, 3})) {
      const int stage = std::vector{0, 1, 3}[c[0]], ranks = c[1] == 0 ? 1 : 2;
      const Space space = std::vector{Space::device, Space::host, Space::file}[c[2]];
      INFO("stage ", stage, ", ranks ", ranks, ", ", name_of(space));
      Config config = plain;
      config.stage = stage;
      config.offload = {.parameter = stage == 3 ? space : Space::device,
                        .gradient = ranks == 2 ? space : Space::device,
                        .optimizer = space,
                        .sub_group_size = 128};
      CHECK(train_matrices(config, ranks, tested_type).hash == expected.hash);
    }
  }
}

}  // namespace

TEST_CASE(
    "orthogonal steps on accelerators give one hash for all stages, ranks and offload, and are "
    "near "
    "the CPU" *
    doctest::test_suite("every device")) {
  // Three steps move an element by 0.03 and more.
  check_on_accelerator(OptimizerRule::muon, 0, 1e-4, 1e-3);
}

TEST_CASE(
    "factored moments on accelerators give one hash for all stages, ranks and offload, and are "
    "near "
    "the CPU" *
    doctest::test_suite("every device")) {
  // Three steps move an element by 0.005 and more; a value in bf16 may round the other way.
  check_on_accelerator(OptimizerRule::adafactor, 40 + 24, 1e-5, 1e-3);
}
