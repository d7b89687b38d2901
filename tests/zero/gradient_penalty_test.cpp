#include "tests/support/planned.h"
#include "zerograd/autograd/grad.h"
#include "zerograd/models/nn.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct PenalisedNet : nn::Module {
  nn::Linear first{this, "first", {.in = 6, .out = 16, .stddev = 0.5f}};
  nn::Norm norm{this, "norm", {.width = 16}};
  nn::Linear last{this, "last", {.in = 16, .out = 1, .stddev = 0.5f}};

  Var operator()(const Var& x) const { return last(norm(zg::tanh(first(x)))); }
};

/// The hash of the parameters after two steps with a gradient penalty; every rank has the same
/// rows.
std::string hash_after_penalties(Communicator& ranks, const Device& device, int stage,
                                 bool checkpointed) {
  const PenalisedNet net;
  zero::Engine engine(net.store(), ranks, device,
                      {.stage = stage, .param_persistence_threshold = 0});
  for (int step = 0; step < 2; ++step) {
    Tape tape = engine.tape();
    const Var x = tape.variable(randn({4, 6}, 1, "x", DType::f32, device));
    const Var y = checkpointed ? checkpoint(x, [&](const Var& in) { return net(in); }) : net(x);
    const Var slope = grad(sum(y), x, {.create_graph = true});
    engine.backward(tape, mean(square(sum(square(slope), 1) - 1.0)) + mean(square(y)));
    engine.step(0.01f);
  }
  return engine.parameter_hash();
}

}  // namespace

TEST_CASE("a gradient penalty at stage 3 on two ranks has the bits of one rank, and its plan") {
  for (const bool checkpointed : {false, true}) {
    std::string expected;
    for (const int ranks : {1, 2}) {
      std::string hash;
      check_planned(ranks, [&](Communicator& all, const Device& device) {
        const std::string found =
            hash_after_penalties(all, device, ranks == 1 ? 0 : 3, checkpointed);
        if (all.rank() == 0) hash = found;
      });
      if (ranks == 1) expected = hash;
      CAPTURE(checkpointed);
      CAPTURE(ranks);
      CHECK(hash == expected);
    }
  }
}
