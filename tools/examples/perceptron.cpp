// A two-layer perceptron with its own training loop: parameters, an engine, a loop. It learns XOR.
#include <cstdio>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/zero/engine.h"

int main() {
  using namespace zg;
  const Device device = Device::cpu();
  ParameterStore store;
  const Unit& unit = store.unit("mlp");
  const Parameter& w1 = store.add(unit, "w1", {16, 2}, Init::normal(1.0f));
  const Parameter& b1 = store.add(unit, "b1", {16}, Init::zeros());
  const Parameter& w2 = store.add(unit, "w2", {1, 16}, Init::normal(0.3f));
  zero::Engine engine(store, device, {.update = {.weight_decay = 0.0f}});

  const Tensor x = Tensor::from(std::vector<float>{0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}, device);
  const Tensor target = Tensor::from(std::vector<float>{0, 1, 1, 0}, {4, 1}, device);
  double loss_value = 0;
  for (int step = 0; step < 400; ++step) {
    Tape tape = engine.tape();
    Var loss;
    {
      const Tape::Use use(tape, unit);
      const Var hidden = zg::tanh(linear(x, tape.parameter(w1), tape.parameter(b1)));
      const Var error = linear(hidden, tape.parameter(w2)) - target;
      loss = mean(error * error);
    }
    engine.backward(tape, loss);
    engine.step(0.02f);
    loss_value = loss.value().item();
  }
  std::printf("xor: loss %.6f after 400 steps\n", loss_value);
  return loss_value < 1e-3 ? 0 : 1;
}
