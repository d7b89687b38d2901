#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/support/normal_weights.h"
#include "tests/support/op_case.h"
#include "tests/support/tested_type.h"
#include "zerograd/models/gpt/gpt.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

struct Step {
  double loss;
  std::map<std::string, std::vector<double>> gradients;
};

/// A step of two tensor ranks with sequence parallelism, so that every op between ranks is used.
std::vector<Step> steps_on(Device::Type type) {
  const GPTConfig config{.layers = 1,
                         .heads = 4,
                         .width = 16,
                         .vocabulary = 13,
                         .block_size = 8,
                         .tied = true,
                         .dropout = 0.1f,
                         .family = Family::bloom,
                         .position = Position::alibi,
                         .embedding_norm = true};
  std::vector<Step> steps(2);
  run_local(2,
            [&](Communicator& world, const Device& device) {
              const Mesh mesh(world, {.tensor = 2});
              ParameterStore store;
              const GPT gpt(store, config, {.mesh = &mesh, .sequence_parallel = true});
              Values source(store, normal_weights(store, 0.1f), device);
              std::vector<int32_t> ids(16), targets(16);
              for (int32_t i = 0; i < 16; ++i) {
                ids[static_cast<size_t>(i)] = i * 5 % 13;
                targets[static_cast<size_t>(i)] = i % 7 == 0 ? -1 : i * 3 % 13;
              }
              Tape tape(device, &source);
              const Var loss = gpt.loss(tape, Tensor::from(ids, {2, 8}, device),
                                        Tensor::from(targets, {2, 8}, device), {.seed = 3}, true);
              Step& step = steps[static_cast<size_t>(world.rank())];
              step.loss = loss.value().item();
              tape.backward(loss);
              step.gradients = gradients_of(source);
            },
            {.type = type});
  return steps;
}

}  // namespace

TEST_CASE("a tensor-parallel step on accelerators gives loss and gradients near those on the CPU" *
          doctest::test_suite("every device")) {
  const std::vector<Step> expected = steps_on(Device::Type::cpu), steps = steps_on(tested_type);
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(rank);
    CHECK(std::fabs(steps[rank].loss - expected[rank].loss) < 1e-5);
    CHECK(steps[rank].loss == steps[0].loss);
    for (const auto& [name, gradient] : expected[rank].gradients) {
      CAPTURE(name);
      const std::vector<double>& own = steps[rank].gradients.at(name);
      REQUIRE(own.size() == gradient.size());
      double squares = 0.0, far = 0.0;
      for (size_t i = 0; i < own.size(); ++i) {
        squares += gradient[i] * gradient[i];
        far += (own[i] - gradient[i]) * (own[i] - gradient[i]);
      }
      // Tensor cores round the factors of a product to less than f32.
      CHECK(std::sqrt(far) <= 2e-3 * std::sqrt(squares));
    }
  }
}
