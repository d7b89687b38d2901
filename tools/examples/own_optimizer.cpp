// An optimizer of one's own: the sign of a momentum. It declares a state; the engine divides it
// over two ranks, saves it and resumes it on one rank. It learns XOR.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

using namespace zg;

class SignSgd final : public zero::Optimizer {
 public:
  std::string name() const override { return "signsgd"; }
  std::vector<State> states() const override { return {{.name = "momentum"}}; }

  // m = 0.9 m + 0.1 g; p = (1 - rate decay) p - rate sign(m), and tanh(1e30 m) is the sign
  void update(const zero::OptimizerStep& step, std::span<const zero::OptimizerRange> ranges,
              Stream& stream) const override {
    for (const zero::OptimizerRange& range : ranges) {
      const Tensor &m = range["momentum"], sign = range.scratch();
      kernels::axpby({.x = range.gradient, .y = m, .a = 0.1, .b = 0.9}, stream);
      kernels::axpby({.x = m, .y = sign, .a = 1e30, .b = 0}, stream);
      kernels::unary({.op = UnaryOp::tanh, .x = sign, .y = sign}, stream);
      const double rate = double{step.rate} * range.rate_factor;
      kernels::axpby({.x = sign, .y = range.master, .a = -rate, .b = 1 - rate * range.weight_decay},
                     stream);
    }
  }
};

int main() {
  const std::string folder = std::filesystem::temp_directory_path() / "own_optimizer";
  double loss_value = 0;
  const auto train = [&](Communicator& ranks, const Device& device, int first, int end) {
    ParameterStore store;
    const Unit& unit = store.unit("mlp");
    const Parameter& w1 = store.add(unit, "w1", {16, 2}, Init::normal(1.0f));
    const Parameter& b1 = store.add(unit, "b1", {16}, Init::zeros());
    const Parameter& w2 = store.add(unit, "w2", {1, 16}, Init::normal(0.3f));
    zero::Engine engine(store, ranks, device,
                        {.stage = 2, .update = {.optimizer = std::make_shared<SignSgd>()}});
    if (first > 0) zero::load_checkpoint(folder, engine);
    for (int step = first; step < end; ++step) {
      const Tensor x = Tensor::from(std::vector<float>{0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}, device);
      const Tensor target = Tensor::from(std::vector<float>{0, 1, 1, 0}, {4, 1}, device);
      Tape tape = engine.tape();
      Var loss;
      {
        const Tape::Use use(tape, unit);
        const Var hidden = zg::tanh(linear(x, tape.parameter(w1), tape.parameter(b1)));
        const Var error = linear(hidden, tape.parameter(w2)) - target;
        loss = mean(error * error);
      }
      engine.backward(tape, loss);
      engine.step(0.4f / static_cast<float>(20 + step));
      if (ranks.rank() == 0) loss_value = loss.value().item();
    }
    zero::save_checkpoint(folder, engine, {.steps = end, .micro_batches = 2 * end});
  };
  run_local(2, [&](Communicator& ranks, const Device& device) { train(ranks, device, 0, 200); });
  run_local(1, [&](Communicator& ranks, const Device& device) { train(ranks, device, 200, 400); });
  std::filesystem::remove_all(folder);
  std::printf("xor: loss %.6f after 400 steps\n", loss_value);
  return loss_value < 1e-2 ? 0 : 1;
}
