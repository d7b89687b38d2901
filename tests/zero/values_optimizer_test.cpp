#include "zerograd/zero/values_optimizer.h"

#include <memory>
#include <vector>

#include "tests/support/error_message.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/optimizer/elementwise.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct Line {
  ParameterStore store;
  const Unit& unit = store.unit("line");
  const Parameter& weight =
      store.add(unit, "weight", {3, 4}, Init::normal(0.5f), {.decay = true, .hidden_matrix = true});
  const Parameter& bias = store.add(unit, "bias", {3}, Init::zeros());

  Var loss(Tape& tape, int step) const {
    const Tape::Use use(tape, unit);
    std::vector<float> x(8);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((5 * i + step) % 7) - 3.0f;
    const Var y = linear(Tensor::from(x, {2, 4}, Device::cpu()), tape.parameter(weight),
                         tape.parameter(bias));
    return mean(y * y * y);
  }
};

}  // namespace

TEST_CASE("an optimizer gives Values the bits that an engine on one rank has") {
  const zero::UpdateOptions rules[] = {
      {},
      {.rule = OptimizerRule::lion},
      {.rule = OptimizerRule::sgd, .momentum = 0.9f, .nesterov = true, .decoupled = false},
      {.groups = {{.pattern = "bias", .rate = 0.5f, .optimizer = zero::lion()}}}};
  for (const zero::UpdateOptions& update : rules) {
    CAPTURE(zero::optimizer_name(update));
    const Line line;
    zero::Engine engine(line.store, Device::cpu(), {.update = update, .clip_norm = 0.0f});
    Values values(line.store, initial_weights(line.store, engine.config().seed), Device::cpu());
    zero::ValuesOptimizer optimizer(values, update);
    for (int step = 0; step < 4; ++step) {
      Tape tape = engine.tape(), plain = values.tape();
      engine.backward(tape, line.loss(tape, step));
      engine.step(1e-2f);
      plain.backward(line.loss(plain, step));
      optimizer.step(1e-2f);
      CHECK(!values.gradient(line.weight));
    }
    for (const Parameter* parameter : {&line.weight, &line.bias})
      CHECK(values.stored(*parameter).to_host<float>() ==
            engine.read(*parameter, zero::Engine::State::master));
  }
}

TEST_CASE("Values of f64, and optimizers that are a part of an engine, are refused") {
  const Line line;
  Values wide(line.store, initial_weights(line.store, 1), Device::cpu(), {.compute = DType::f64});
  zero::ValuesOptimizer adam(wide, {});
  Tape tape = wide.tape();
  std::vector<double> x(8, 1.0);
  tape.backward(mean(linear(Tensor::from(x, {2, 4}, Device::cpu()), tape.parameter(line.weight))));
  CHECK(message_of<DTypeError>([&] { adam.step(1e-2f); }) ==
        "optimizer: the value of 'weight' is f64; expected f32 or bf16");
  Values values(line.store, initial_weights(line.store, 1), Device::cpu());
  zero::ValuesOptimizer muon(values, {.rule = OptimizerRule::muon});
  Tape other = values.tape();
  other.backward(line.loss(other, 0));
  CHECK(message_of<Unsupported>([&] { muon.step(1e-2f); }) ==
        "optimizer: muon updates parameters only as a part of an engine");
}
