// A training loop without an engine: parameters in memory, two modules on one tape, and an update
// of this program's own (SGD with momentum). It learns XOR.
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "zerograd/autograd/values.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/models/nn.h"

namespace {

using namespace zg;

// velocity = momentum * velocity + gradient; value -= rate * velocity
void update(Values& values, std::map<std::string, Tensor>& velocities, double rate,
            double momentum) {
  Stream& stream = values.device().compute();
  for (const auto& [name, gradient] : values.gradients()) {
    const auto [place, is_new] = velocities.try_emplace(name, gradient);
    if (!is_new) kernels::axpby({.x = gradient, .y = place->second, .a = 1, .b = momentum}, stream);
    const Tensor value = values.value(*values.store().find(name));
    kernels::axpby({.x = place->second, .y = value, .a = -rate, .b = 1}, stream);
  }
  values.clear_gradients();
}

}  // namespace

int main() {
  const Device device = Device::cpu();
  nn::Module encoder, head;  // each has parameters of its own
  const nn::Linear first(&encoder, "first", {.in = 2, .out = 16, .stddev = 1.0f});
  const nn::Linear last(&head, "last", {.in = 16, .out = 1, .bias = false, .stddev = 0.3f});
  Values encoder_values(encoder.store(), initial_weights(encoder.store(), 1), device);
  Values head_values(head.store(), initial_weights(head.store(), 1), device);

  const Tensor x = Tensor::from(std::vector<float>{0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}, device);
  const Tensor target = Tensor::from(std::vector<float>{0, 1, 1, 0}, {4, 1}, device);
  std::map<std::string, Tensor> encoder_velocities, head_velocities;
  double loss_value = 0;
  for (int step = 0; step < 400; ++step) {
    Tape tape(device, {&encoder_values, &head_values});
    const Var loss = mse(last(zg::tanh(first(tape.constant(x)))), target);
    tape.backward(loss);
    update(encoder_values, encoder_velocities, 0.1, 0.9);
    update(head_values, head_velocities, 0.1, 0.9);
    loss_value = loss.value().item();
  }
  std::printf("xor: loss %.6f after 400 steps\n", loss_value);
  return loss_value < 1e-3 ? 0 : 1;
}
