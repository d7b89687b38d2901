#include "zerograd/zero/states/model_states.h"

using namespace zg;
using zero::our_states;
using zero::paper_states;

TEST_CASE(
    "paper_states gives the numbers of the ZeRO paper's figure, 7.5e9 parameters on 64 ranks") {
  const double expected[] = {120.0, 31.4, 16.6, 1.9}, volumes[] = {1.0, 1.0, 1.0, 1.5};
  for (int stage = 0; stage <= 3; ++stage) {
    const zero::ModelStates states = paper_states(7.5e9, 64, stage);
    // The figure has one decimal.
    CHECK(states.total() / 1e9 == doctest::Approx(expected[stage]).epsilon(0.05 / 1.9));
    CHECK(states.volume == volumes[stage]);
  }
}

TEST_CASE("our_states counts each state in its dtype, with gradient sums sharded at every stage") {
  const auto bytes = [](int stage, zero::Config config) {
    config.stage = stage;
    return our_states(64.0, 8, config).total();
  };
  CHECK(bytes(0, {}) == 64 * (4 + 8) + 8 * 4);
  CHECK(bytes(0, {.compute = DType::bf16}) == 64 * (2 + 12) + 8 * 4);
  CHECK(bytes(1, {.compute = DType::bf16}) == 64 * 2 + 8 * (4 + 12));
  CHECK(bytes(3, {.compute = DType::bf16}) == 8 * (2 + 4 + 12));
  CHECK(bytes(3, {.compute = DType::bf16, .optimizer = DType::bf16, .grad_accum = DType::bf16}) ==
        8 * (2 + 2 + 4));
  CHECK(bytes(0, {.reduce_at_boundary = true}) == 64 * (4 + 8 + 4) + 8 * 4);
  CHECK(our_states(64.0, 1, {.compute = DType::bf16}).total() == 64 * (2 + 4 + 12));
  CHECK(our_states(64.0, 1, {.compute = DType::bf16}, /*rounds_at_use=*/true).total() ==
        64 * (4 + 12));
}
