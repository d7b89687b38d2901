// Trains a chain of layers at ZeRO-3 with several units gathered ahead: every limit, number of
// ranks and space gives the same bits, and a plan equals its run event by event.

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"
#include "tests/support/planned.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int64_t chain_width = 16, chain_layers = 6, chain_unit = 512;

struct Chain {
  ParameterStore store;
  std::vector<const Parameter*> weights;

  Chain() {
    for (int64_t layer = 0; layer < chain_layers; ++layer) {
      const std::string name = "layer" + std::to_string(layer);
      const Unit& unit = store.unit(name);
      weights.push_back(&store.add(unit, name + ".weight", {chain_width, chain_width},
                                   Init::normal(0.3f), {.decay = true}));
      store.add(unit, name + ".frozen", {chain_width}, Init::ones(), {.trainable = false});
    }
  }
  Var layer(Tape& tape, const Var& x, size_t index) const {
    const Tape::Use use(tape, *weights[index]->unit);
    return tanh(linear(x, tape.parameter(*weights[index])));
  }
  Var loss(Tape& tape, uint64_t sample, bool checkpointed, size_t layers) const {
    Var x = random_tensor({3, chain_width}, DType::f32, tape.device(), sample);
    for (size_t i = 0; i < layers; ++i)
      x = checkpointed && i > 0 ? checkpoint(tape, {x},
                                             [this, i](Tape& inner, std::span<const Var> in) {
                                               return layer(inner, in[0], i);
                                             })
                                : layer(tape, x, i);
    return mean(x * x);
  }
};

struct ChainSetting {
  zero::Config engine = {};
  bool checkpointed = false;
  bool two_tapes = false;  ///< forward of two micro-batches before backward of both
};

/// Three steps of four micro-batches over all ranks. After each step a part of the chain and the
/// whole chain are evaluated. Rank 0 stores the hash of the parameters.
Program chain_program(const ChainSetting& setting, std::string& hash) {
  return [setting, &hash](Communicator& ranks, const Device& device) {
    const Chain chain;
    zero::Engine engine(chain.store, ranks, device, setting.engine);
    for (uint64_t step = 0; step < 3; ++step) {
      std::vector<uint64_t> samples;
      for (int g = ranks.rank(); g < 4; g += ranks.size())
        samples.push_back(4 * step + static_cast<uint64_t>(g));
      const auto loss = [&](Tape& tape, uint64_t sample) {
        return chain.loss(tape, sample, setting.checkpointed, chain_layers);
      };
      if (setting.two_tapes && samples.size() % 2 == 0) {
        for (size_t i = 0; i < samples.size(); i += 2) {
          Tape first = engine.tape();
          const Var first_loss = loss(first, samples[i]);
          Tape second = engine.tape();
          const Var second_loss = loss(second, samples[i + 1]);
          engine.backward(first, first_loss);
          engine.backward(second, second_loss);
        }
      } else {
        for (const uint64_t sample : samples) {
          Tape tape = engine.tape();
          engine.backward(tape, loss(tape, sample));
        }
      }
      engine.step(1e-2f);
      for (const size_t layers : {size_t{3}, static_cast<size_t>(chain_layers), size_t{1}}) {
        Tape tape = engine.inference_tape();
        chain.loss(tape, step, setting.checkpointed, layers);
      }
    }
    const std::string own = engine.parameter_hash();
    if (ranks.rank() == 0) hash = own;
  };
}

/// The collectives of a rank in their order: name and bytes.
std::string collectives_of(const RankEvents& rank) {
  std::string text;
  for (const PlannedEvent& event : rank.events)
    if (event.kind == PlannedEvent::Kind::collective)
      text += std::string(name_of(event.collective)) + " " +
              rank.names[static_cast<size_t>(event.name)] + " " + std::to_string(event.bytes) +
              "\n";
  return text;
}

struct ChainOutcome {
  std::string hash;
  int64_t peak = 0;  ///< the highest of all ranks' devices
};

/// Runs a setting. The plan must equal the run event by event, and all ranks must have the same
/// collectives in the same order.
ChainOutcome train_chain(int ranks, const ChainSetting& setting) {
  ChainOutcome outcome;
  const Program program = chain_program(setting, outcome.hash);
  const DeviceOptions device{.threads = 1, .swap = {.directory = "/tmp"}};
  const Plan plan = check_planned(ranks, program, device);
  for (const RankEvents& rank : plan.events)
    CHECK(collectives_of(rank) == collectives_of(plan.events[0]));
  for (const RankReport& rank : plan.ranks) outcome.peak = std::max(outcome.peak, rank.peak[0]);
  return outcome;
}

}  // namespace

TEST_CASE(
    "a plan equals its run, and the bits are equal, for every prefetch bucket, offload of "
    "parameters and number of ranks") {
  const ChainSetting variants[] = {{}, {.checkpointed = true}, {.two_tapes = true}};
  std::vector<std::string> expected;
  for (const ChainSetting& variant : variants) expected.push_back(train_chain(1, variant).hash);
  for_cover(
      [&](size_t variant, Space space, int ranks) {
        INFO("variant ", variant, ", ", name_of(space), ", ranks ", ranks);
        const auto train = [&](int64_t bucket) {
          ChainSetting setting = variants[variant];
          setting.engine = {.stage = 3,
                            .offload = {.parameter = space},
                            .prefetch_bucket_size = bucket,
                            .prefetch_units = 8,
                            .param_persistence_threshold = 0};
          return train_chain(ranks, setting);
        };
        const ChainOutcome none = train(0), several = train(3 * chain_unit + 100);
        CHECK(none.hash == expected[variant]);
        CHECK(several.hash == expected[variant]);
        if (ranks > 1 || space != Space::device)
          CHECK(several.peak > none.peak);
        else
          CHECK(several.peak == none.peak);
      },
      std::vector<size_t>{0, 1, 2}, std::vector{Space::device, Space::host, Space::file},
      std::vector{1, 2, 4});
}
