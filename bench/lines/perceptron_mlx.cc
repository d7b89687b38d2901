// A two-layer perceptron that learns XOR, as in tools/examples/perceptron.cpp.
#include <cmath>
#include <cstdio>
#include <vector>

#include "mlx/mlx.h"

using namespace mlx::core;

array forward(const std::vector<array>& p, const array& x) {
  return matmul(tanh(addmm(p[1], x, p[0])), p[2]);
}

int main() {
  std::vector<array> parameters = {random::normal({2, 16}), zeros({16}),
                                   0.3f * random::normal({16, 1})};
  std::vector<array> first, second;
  for (const array& p : parameters) {
    first.push_back(zeros_like(p));
    second.push_back(zeros_like(p));
  }
  const array x({0.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 1.0f, 1.0f}, {4, 2});
  const array target({0.0f, 1.0f, 1.0f, 0.0f}, {4, 1});
  const auto loss_of = [&](const std::vector<array>& p) {
    return mean(square(forward(p, x) - target));
  };
  const auto step_of = value_and_grad(loss_of, {0, 1, 2});
  float loss = 0;
  for (int step = 1; step <= 400; ++step) {
    auto [value, gradients] = step_of(parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {  // AdamW; MLX has optimizers in Python only
      first[i] = 0.9f * first[i] + 0.1f * gradients[i];
      second[i] = 0.999f * second[i] + 0.001f * square(gradients[i]);
      const array m = first[i] / (1 - std::pow(0.9f, step));
      const array v = second[i] / (1 - std::pow(0.999f, step));
      parameters[i] = parameters[i] - 0.02f * m / (sqrt(v) + 1e-8f);
    }
    eval(parameters);
    loss = value.item<float>();
  }
  std::printf("xor: loss %.6f after 400 steps\n", loss);
  return loss < 1e-3 ? 0 : 1;
}
