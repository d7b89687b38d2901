// A block of Llama and the gradients of all its parameters, as in tools/examples/llama_block.cpp.
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "mlx/mlx.h"

using namespace mlx::core;

constexpr int width = 64, heads = 4, kv_heads = 2, head_size = width / heads, hidden = 160;

struct Block {
  std::vector<array> parameters;
  std::map<std::string, int> places;

  void add(const std::string& name, const Shape& shape) {
    places[name] = static_cast<int>(parameters.size());
    parameters.push_back(shape.size() == 1 ? ones(shape) : 0.02f * random::normal(shape));
  }
  Block() {
    add("attention_norm", {width});
    add("q_proj", {width, width});
    add("k_proj", {kv_heads * head_size, width});
    add("v_proj", {kv_heads * head_size, width});
    add("o_proj", {width, width});
    add("mlp_norm", {width});
    add("gate_proj", {hidden, width});
    add("up_proj", {hidden, width});
    add("down_proj", {width, hidden});
  }

  array operator()(const std::vector<array>& p, const array& x) const {
    const auto get = [&](const char* name) { return p[places.at(name)]; };
    const auto linear = [&](const char* name, const array& in) {
      return matmul(in, transpose(get(name)));
    };
    const int B = x.shape(0), T = x.shape(1);
    const auto split = [&](const array& y, int count) {
      return transpose(reshape(y, {B, T, count, head_size}), {0, 2, 1, 3});
    };
    const array normed = fast::rms_norm(x, get("attention_norm"), 1e-5f);
    const auto turned = [&](const char* name, int count) {
      return fast::rope(split(linear(name, normed), count), head_size, /*traditional=*/false,
                        10000.0f, 1.0f, 0);
    };
    const array q = turned("q_proj", heads), k = turned("k_proj", kv_heads);
    const array v = split(linear("v_proj", normed), kv_heads);
    const array attended =
        fast::scaled_dot_product_attention(q, k, v, 1.0f / std::sqrt(head_size), "causal");
    const array joined = reshape(transpose(attended, {0, 2, 1, 3}), {B, T, width});
    const array sum = x + linear("o_proj", joined);
    const array before = fast::rms_norm(sum, get("mlp_norm"), 1e-5f);
    const array gate = linear("gate_proj", before);
    return sum + linear("down_proj", gate * sigmoid(gate) * linear("up_proj", before));
  }
};

int main() {
  const Block block;
  const array x = random::normal({2, 16, width});
  std::vector<int> all;
  for (size_t i = 0; i < block.parameters.size(); ++i) all.push_back(static_cast<int>(i));
  const auto loss_of = [&](const std::vector<array>& p) { return mean(square(block(p, x))); };
  auto [loss, gradients] = value_and_grad(loss_of, all)(block.parameters);
  std::printf("loss %.4f, %zu gradients\n", loss.item<float>(), gradients.size());
}
