#include <cmath>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

const Tensor targets = indices({3, -1, 0, 6, 6, -1}, {2, 3});

/// Mean of -log softmax at the targets that are not `ignored`.
double mean_loss(const std::vector<double>& logits, const Tensor& targets, int64_t ignored) {
  const std::vector<int64_t> wanted = targets.to_host<int64_t>();
  const size_t V = logits.size() / wanted.size();
  double total = 0, count = 0;
  for (size_t n = 0; n < wanted.size(); ++n) {
    if (wanted[n] == ignored) continue;
    double sum = 0;
    for (size_t v = 0; v < V; ++v) sum += std::exp(logits[n * V + v]);
    total += std::log(sum) - logits[n * V + static_cast<size_t>(wanted[n])];
    ++count;
  }
  return total / count;
}

}  // namespace

TEST_CASE("cross_entropy is the mean over targets that are not ignored") {
  const Tensor logits = doubles({2, 3, 7}, 1, -3, 3);
  const Var loss = cross_entropy(Var(logits), targets);
  CHECK(loss.shape() == Shape{});
  CHECK(loss.value().item() == doctest::Approx(mean_loss(logits.to_doubles(), targets, -1)));
  check_gradient([&](Tape&, Vars in) { return cross_entropy(in[0], targets); }, {logits});

  const Tensor all = indices({3, 1, 0, 6, 6, 2}, {2, 3});
  CHECK(cross_entropy(Var(logits), all, 6).value().item() ==
        doctest::Approx(mean_loss(logits.to_doubles(), all, 6)));
  check_gradient([&](Tape&, Vars in) { return cross_entropy(in[0], all, 6); }, {logits});
  check_gradient([&](Tape&, Vars in) { return cross_entropy(in[0], indices({2}, {1})); },
                 {doubles({1, 7}, 1)});
}

TEST_CASE("projection_cross_entropy is cross_entropy of linear") {
  const Tensor x = doubles({2, 3, 5}, 1), weight = doubles({7, 5}, 2);
  const double expected = cross_entropy(linear(Var(x), Var(weight)), targets).value().item();
  CHECK(projection_cross_entropy(Var(x), Var(weight), targets).value().item() ==
        doctest::Approx(expected));
  auto loss = [](const Var& x, const Var& weight) {
    return projection_cross_entropy(x, weight, targets);
  };
  check_gradient([&](Tape&, Vars in) { return loss(in[0], in[1]); }, {x, weight});
  check_gradient([&](Tape&, Vars in) { return loss(in[0], Var(weight)); }, {x});
  check_gradient([&](Tape&, Vars in) { return loss(Var(x), in[0]); }, {weight});
}

TEST_CASE("a loss of bf16 logits is f32, and of ignored targets alone is not a number") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var logits = tape.variable(Tensor::zeros({2, 4}, DType::bf16, device));
  const Tensor wanted = Tensor::from(std::vector<int32_t>{1, 2}, {2}, device);
  const Var loss = cross_entropy(logits, wanted);
  CHECK(loss.dtype() == DType::f32);
  CHECK(loss.value().item() == doctest::Approx(std::log(4.0)));
  CHECK(mse(logits, Var(Tensor::full({2, 4}, 2.0, DType::bf16, device))).dtype() == DType::f32);
  const Tensor ignored = Tensor::from(std::vector<int32_t>{-1, -1}, {2}, device);
  CHECK(std::isnan(cross_entropy(logits, ignored).value().item()));
  tape.backward(loss);
  CHECK(tape.gradient(logits).dtype() == DType::bf16);
  CHECK(tape.gradient(logits).to_doubles()[1] == doctest::Approx((0.25 - 1) / 2));
}

TEST_CASE("mse is the mean of squared differences") {
  const Tensor x = doubles({3, 5}, 1), target = doubles({3, 5}, 2);
  double expected = 0;
  for (size_t i = 0; i < 15; ++i)
    expected += std::pow(x.to_doubles()[i] - target.to_doubles()[i], 2) / 15;
  CHECK(mse(Var(x), Var(target)).value().item() == doctest::Approx(expected));
  check_gradient([](Tape&, Vars in) { return mse(in[0], in[1]); }, {x, target});
}

TEST_CASE("losses refuse operands that do not fit") {
  const Var logits(doubles({2, 3, 7}, 1)), weight(doubles({7, 5}, 1));
  CHECK(message_of<ShapeError>([&] {
          cross_entropy(logits, indices({1, 2}, {2}));
        }) == "cross_entropy: targets has shape [2]; expected [2, 3]");
  CHECK(contains(message_of<DTypeError>([&] {
                   cross_entropy(logits, doubles({2, 3}, 1));
                 }),
                 "cross_entropy: targets holds f64; expected i32 or i64"));
  CHECK(contains(message_of<DTypeError>([&] { cross_entropy(Var(targets), targets); }),
                 "cross_entropy: logits holds i64; expected f64"));
  CHECK(contains(message_of<ShapeError>([&] {
                   cross_entropy(Var(doubles({1, 7}, 1)), indices({7}, {1}));
                 }),
                 "7"));
  CHECK(contains(message_of<ShapeError>([&] { projection_cross_entropy(logits, weight, targets); }),
                 "projection_cross_entropy: weight has shape [7, 5]; expected [V, 7]"));
  CHECK(contains(message_of<ShapeError>([&] { mse(logits, weight); }),
                 "mse: target has shape [7, 5]; expected [2, 3, 7]"));
}
