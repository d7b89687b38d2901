#include "zerograd/zero/values_optimizer.h"

#include <string>
#include <vector>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/storage/tensor_files.h"
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

TEST_CASE("states of Values are saved by name, and a resumed loop has the same bits") {
  const TemporaryFolder folder;
  const zero::UpdateOptions update = {
      .groups = {{.pattern = "bias", .optimizer = zero::sgd({.momentum = 0.9f})}}};
  const Line line;
  const auto train = [&](Values& values, zero::ValuesOptimizer& optimizer, int first, int end) {
    for (int step = first; step < end; ++step) {
      Tape tape = values.tape();
      tape.backward(line.loss(tape, step));
      optimizer.step(1e-2f);
    }
    return values.value(line.weight).to_host<float>();
  };
  const auto make = [&] {
    return Values(line.store, initial_weights(line.store, 1), Device::cpu());
  };
  Values straight = make(), before = make(), after = make();
  zero::ValuesOptimizer one(straight, update), saving(before, update), resumed(after, update);
  const std::vector<float> expected = train(straight, one, 0, 5);
  saving.save(folder / "first.safetensors");
  train(before, saving, 0, 2);
  before.save(folder / "values.safetensors");
  saving.save(folder / "states.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : load_safetensors(folder / "states.safetensors", Device::cpu()))
    names.push_back(name);
  CHECK(names ==
        std::vector<std::string>{"bias.moment1", "steps", "weight.moment1", "weight.moment2"});
  after.load(folder / "values.safetensors");
  resumed.load(folder / "first.safetensors");
  resumed.load(folder / "states.safetensors");
  CHECK(train(after, resumed, 2, 5) == expected);

  zero::ValuesOptimizer lion(before, {.rule = OptimizerRule::lion}), adam(before, {});
  CHECK(message_of<FileError>([&] { lion.load(folder / "states.safetensors"); }) ==
        (folder / "states.safetensors") +
            ": expected 3 tensors, bias.moment1 among them in f32 [3], as this optimizer has, got "
            "4");
  CHECK(message_of<FileError>([&] { adam.load(folder / "states.safetensors"); }) ==
        (folder / "states.safetensors") +
            ": expected 5 tensors, bias.moment1 among them in f32 [3], as this optimizer has, got "
            "4");
  CHECK(message_of<FileError>([&] { lion.load(folder / "values.safetensors"); }) ==
        (folder / "values.safetensors") +
            ": expected 3 tensors, bias.moment1 among them in f32 [3], as this optimizer has, got "
            "2 without it");
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
