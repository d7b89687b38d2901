// A block of Llama, of the library's layers, and the gradients of all its parameters.
#include <cstdio>

#include "zerograd/autograd/values.h"
#include "zerograd/models/nn.h"

using namespace zg;

struct Block : nn::Module {
  nn::Norm attention_norm{this, "attention_norm", {.width = 64, .kind = nn::NormKind::rms}};
  nn::Attention attention{
      this, "attention", {.width = 64, .heads = 4, .kv_heads = 2, .rope = RopeOptions()}};
  nn::Norm mlp_norm{this, "mlp_norm", {.width = 64, .kind = nn::NormKind::rms}};
  nn::Mlp mlp{this, "mlp", {.width = 64, .hidden = 160, .kind = nn::MlpKind::gated_silu}};

  Var operator()(Var x) const {
    x += attention(attention_norm(x));
    return x + mlp(mlp_norm(x));
  }
};

int main() {
  const Device device = Device::cpu();
  const Block block;
  Values values(block.store(), initial_weights(block.store(), /*seed=*/1), device);
  Tape tape = values.tape();
  const Var y = block(tape.constant(randn({2, 16, 64}, 1, "x", DType::f32, device)));
  const Var loss = mean(y * y);
  tape.backward(loss);
  std::printf("loss %.4f, %zu gradients\n", loss.value().item(), values.gradients().size());
}
