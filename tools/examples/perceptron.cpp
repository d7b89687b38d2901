// A two-layer perceptron with its own training loop: a module, an engine, a loop. It learns XOR.
#include <cstdio>
#include <vector>

#include "zerograd/models/nn.h"
#include "zerograd/zero/engine.h"

using namespace zg;

struct Perceptron : nn::Module {
  nn::Linear hidden{this, "hidden", {.in = 2, .out = 16, .stddev = 1.0f}};
  nn::Linear out{this, "out", {.in = 16, .out = 1, .bias = false, .stddev = 0.3f}};

  Var operator()(const Var& x) const { return out(zg::tanh(hidden(x))); }
};

int main() {
  const Device device = Device::cpu();
  const Perceptron model;
  zero::Engine engine(model.store(), device, {.update = {.weight_decay = 0.0f}});

  const Tensor x = Tensor::from(std::vector<float>{0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}, device);
  const Tensor target = Tensor::from(std::vector<float>{0, 1, 1, 0}, {4, 1}, device);
  double loss_value = 0;
  for (int step = 0; step < 400; ++step) {
    Tape tape = engine.tape();
    const Var loss = mse(model(tape.constant(x)), target);
    engine.backward(tape, loss);
    engine.step(0.02f);
    loss_value = loss.value().item();
  }
  std::printf("xor: loss %.6f after 400 steps\n", loss_value);
  return loss_value < 1e-3 ? 0 : 1;
}
