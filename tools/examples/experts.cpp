// A mixture of experts of fixed capacity, one expert on each of four ranks (Switch Transformer,
// Fedus et al. 2021, arXiv:2101.03961). The shared parameters are in a ZeRO engine, each rank's
// expert in memory of its own beside it; both are on one tape. Capacity makes every exchange equal
// in size, so a plan has the bytes of the run.
#include <cstdio>
#include <stdexcept>
#include <utility>
#include <vector>

#include "zerograd/autograd/collective.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/values.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/engine.h"

namespace {

using namespace zg;

constexpr int64_t width = 8, hidden = 32, capacity = 8;

struct Shared {
  ParameterStore store;
  const Unit& unit = store.unit("shared");
  const Parameter& input = store.add(unit, "input", {width, width}, Init::normal(0.4f));
  const Parameter& router;

  explicit Shared(int64_t experts)
      : router(store.add(unit, "router", {experts, width}, Init::normal(0.4f))) {}
};

struct Expert {
  ParameterStore store;
  const Unit& unit = store.unit("expert");
  const Parameter& up = store.add(unit, "up", {hidden, width}, Init::normal(0.4f));
  const Parameter& down = store.add(unit, "down", {width, hidden}, Init::normal(0.1f));
};

// y = h + p expert(h) with h = W x, where p is the router's probability of the token's expert.
// Expert e has `capacity` places for tokens of each rank; a token without a place keeps h.
Var mixture(Tape& tape, const Shared& shared, const Expert& expert, const Var& x,
            Communicator& ranks) {
  Var h, probabilities;
  {
    const Tape::Use use(tape, shared.unit);
    h = linear(x, tape.parameter(shared.input));
    probabilities = softmax(linear(h, tape.parameter(shared.router)));
  }
  const int64_t tokens = x.shape()[0], experts = probabilities.shape()[1];
  const Var chosen = one_hot(argmax(probabilities).value(), experts);  // [tokens, experts]
  const Var place = sum(chosen * cumsum(chosen, 0), {1}, true) - 1.0;  // in the expert's queue
  const Var slot = cast(equal(place, arange(0, capacity, DType::f32, x.device())), DType::f32);
  // 1 where the token has that place of that expert.
  const Var route = reshape(unsqueeze(chosen, 2) * unsqueeze(slot, 1), {tokens, -1});
  const Var arrived = all_to_all(matmul(transpose(route, 0, 1), h), ranks);
  const Var inner = gelu(linear(arrived, tape.parameter(expert.up)));
  const Var answers = all_to_all(linear(inner, tape.parameter(expert.down)), ranks);
  return h + max(probabilities, {1}, true) * matmul(route, answers);
}

// The gradient of the mean over the ranks: engine.step() divides the shared one, update() this one.
void update(Values& values, double rate) {
  for (const auto& [name, gradient] : values.gradients())
    kernels::axpby(
        {.x = gradient, .y = values.value(*values.store().find(name)), .a = -rate, .b = 1},
        values.device().compute());
  values.clear_gradients();
}

// Returns the losses of the first and the last step.
std::pair<double, double> train(Communicator& ranks, const Device& device) {
  const Shared shared(ranks.size());
  const Expert expert;
  zero::Engine engine(shared.store, ranks, device, {.stage = 2, .clip_norm = 0});
  Values values(expert.store, initial_weights(expert.store, uint64_t(ranks.rank())), device);
  std::vector<double> losses;
  for (uint64_t step = 0; step < 200; ++step) {
    const uint64_t seed = step * uint64_t(ranks.size()) + uint64_t(ranks.rank());
    const Var x = randn({24, width}, seed, "x", DType::f32, device);
    Tape tape(device, {&engine, &values});
    const Var loss = mse(mixture(tape, shared, expert, x, ranks), zg::abs(x));
    engine.backward(tape, loss);
    engine.step(1e-2f);
    update(values, 0.3 / ranks.size());
    losses.push_back(engine.mean_loss(std::vector<double>{loss.value().item()}));
  }
  return {losses.front(), losses.back()};
}

}  // namespace

int main() {
  const auto program = [](Communicator& ranks, const Device& device) {
    const auto [first, last] = train(ranks, device);
    if (ranks.rank() == 0 && device.type() != Device::Type::meta)
      std::printf("experts: loss %.3f, after 200 steps %.3f\n", first, last);
    if (last > 0.4 * first) throw std::runtime_error("experts: the loss does not fall");
  };
  const Plan plan = plan_ranks(4, program);
  return run_ranks(4, program, {.expect = &plan}) == plan ? 0 : 1;
}
