// Direct preference optimisation with a frozen reference, as in tools/examples/preferences.cpp.
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "mlx/mlx.h"

using namespace mlx::core;
using Arrays = std::vector<array>;

constexpr int vocabulary = 12, width = 48, heads = 3, prompt = 4, answer = 3, pairs = 8;
constexpr int text = prompt + answer, rows = 2 * pairs, tokens = text - 1;

Arrays first_parameters() {
  const auto normal = [](const Shape& shape) { return 0.02f * random::normal(shape); };
  Arrays p = {normal({vocabulary, width}), normal({tokens, width})};
  for (int block = 0; block < 3; ++block)
    p.insert(p.end(), {ones({width}), zeros({width}), normal({width, 3 * width}),
                       zeros({3 * width}), normal({width, width}), zeros({width}), ones({width}),
                       zeros({width}), normal({width, 4 * width}), zeros({4 * width}),
                       normal({4 * width, width}), zeros({width})});
  p.insert(p.end(), {ones({width}), zeros({width}), normal({width, vocabulary})});
  return p;
}

array logits(const Arrays& p, const array& ids) {
  array x = take(p[0], ids, 0) + p[1];
  const array* w = &p[2];
  const auto norm = [&] {
    w += 2;
    return fast::layer_norm(x, w[-2], w[-1], 1e-5f);
  };
  const auto linear = [&](const array& in) {
    w += 2;
    return addmm(w[-1], in, w[-2]);
  };
  for (int block = 0; block < 3; ++block) {
    const auto parts = split(linear(norm()), 3, -1);
    const auto head = [&](int part) {
      return transpose(reshape(parts[part], {rows, tokens, heads, width / heads}), {0, 2, 1, 3});
    };
    const array attended = fast::scaled_dot_product_attention(
        head(0), head(1), head(2), 1.0f / std::sqrt(width / heads), "causal");
    x = x + linear(reshape(transpose(attended, {0, 2, 1, 3}), {rows, tokens, width}));
    const array hidden = linear(norm());
    x = x + linear(0.5f * hidden * (1.0f + erf(hidden / std::sqrt(2.0f))));
  }
  const array last = norm();
  return matmul(last, *w);
}

array log_probabilities(const Arrays& p, const array& ids) {
  const array all = logits(p, slice(ids, {0, 0}, {rows, tokens}));
  const array answers = slice(all, {0, prompt - 1, 0}, {rows, tokens, vocabulary});
  const array targets = expand_dims(slice(ids, {0, prompt}, {rows, text}), -1);
  const array chosen = squeeze(take_along_axis(answers, targets, -1), -1);
  return sum(chosen - logsumexp(answers, -1), -1);
}

array batch() {  // answers of even tokens are preferred to those of odd ones
  const array prompts = random::randint(0, vocabulary, {pairs, prompt});
  const array answers = 2 * random::randint(0, vocabulary / 2, {rows, answer});
  const array odd = reshape(astype(arange(rows) >= array(pairs), int32), {rows, 1});
  return concatenate({concatenate({prompts, prompts}, 0), answers + odd}, 1);
}

int main() {
  Arrays policy = first_parameters(), first, second;
  const Arrays reference = policy;
  std::vector<int> all;
  for (const array& p : policy) {
    all.push_back(static_cast<int>(all.size()));
    first.push_back(zeros_like(p));
    second.push_back(zeros_like(p));
  }
  float loss = 0;
  for (int step = 1; step <= 40; ++step) {
    const array ids = batch(), before = log_probabilities(reference, ids);
    const auto loss_of = [&](const Arrays& p) {
      const Arrays ratios = split(log_probabilities(p, ids) - before, 2);
      return mean(log1p(exp(-0.5f * (ratios[0] - ratios[1]))));
    };
    auto [value, gradients] = value_and_grad(loss_of, all)(policy);
    for (size_t i = 0; i < policy.size(); ++i) {  // AdamW; MLX has optimizers in Python only
      first[i] = 0.9f * first[i] + 0.1f * gradients[i];
      second[i] = 0.999f * second[i] + 0.001f * square(gradients[i]);
      const array m = first[i] / (1 - std::pow(0.9f, step));
      const array v = second[i] / (1 - std::pow(0.999f, step));
      policy[i] = policy[i] - 0.01f * m / (sqrt(v) + 1e-8f);
    }
    eval(policy);
    loss = value.item<float>();
  }
  std::printf("preferences: loss %.4f after 40 steps, 0.6931 before\n", loss);
  return loss < 0.2 ? 0 : 1;
}
