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
  // Other gradients than 1 reach it, and both operands may be one.
  const Tensor others = indices({3, 1, 0, 6, 6, 2}, {2, 3});
  check_gradient([&](Tape&, Vars in) { return mul(loss(in[0], in[1]), 3.0); }, {x, weight});
  check_gradient(
      [&](Tape&, Vars in) {
        const Var once = loss(in[0], in[1]);
        const Var again = projection_cross_entropy(in[0], in[1], others, 6);
        return add(mul(once, -0.5), again);
      },
      {x, weight});
  check_gradient(
      [&](Tape&, Vars in) {
        return projection_cross_entropy(in[0], in[0], indices({1, 0, 2}, {3}));
      },
      {doubles({3, 5}, 3)});
}

TEST_CASE("projection_cross_entropy in a checkpointed segment has the same bits") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(name_of(dtype));
    const Tensor x = random_tensor({2, 3, 5}, dtype, shared_device(), 1);
    const Tensor weight = random_tensor({7, 5}, dtype, shared_device(), 2);
    std::vector<Tensor> losses, gradients;
    for (const bool checkpointed : {false, true}) {
      Tape tape(shared_device());
      const Var inputs[] = {tape.variable(x), tape.variable(weight)};
      const auto head = [](Tape&, Vars in) {
        return projection_cross_entropy(in[0], in[1], targets);
      };
      const Var loss = checkpointed ? checkpoint(tape, inputs, head) : head(tape, inputs);
      tape.backward(loss, 2.0);
      losses.push_back(loss.value());
      for (const Var& input : inputs) gradients.push_back(tape.gradient(input));
    }
    CHECK(same_bits(losses[0], losses[1]));
    CHECK(gradients[0].dtype() == dtype);
    CHECK(gradients[1].dtype() == dtype);
    CHECK(same_bits(gradients[0], gradients[2]));
    CHECK(same_bits(gradients[1], gradients[3]));
  }
}

TEST_CASE(
    "projection_cross_entropy of f16 keeps gradients that would underflow f16 before the loss "
    "scale") {
  const Device& device = shared_device();
  Tape tape(device);
  const Var x(Tensor::full({4, 1}, 1, DType::f16, device));
  const Tensor logits = Tensor::zeros({2, 1}, DType::f16, device);
  logits.data<f16>()[1] = f16(-20.0f);
  const Var weight = tape.variable(logits);
  tape.backward(projection_cross_entropy(x, weight, indices({0, 0, 0, 0}, {4})), 0x1p16);
  // A ratio: Approx takes an error of epsilon itself, too.
  CHECK(tape.gradient(weight).to_doubles()[1] / (0x1p16 * std::exp(-20.0)) ==
        doctest::Approx(1).epsilon(0x1p-9));
  // The largest that there is, of a target without a chance, fits as well.
  tape = Tape(device);
  const Var again = tape.variable(logits);
  tape.backward(projection_cross_entropy(x, again, indices({1, 1, 1, 1}, {4})));
  CHECK(tape.gradient(again).to_doubles() == std::vector<double>{1, -1});
}

TEST_CASE("projection_cross_entropy with all targets ignored is 0 and has zero gradients") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    CAPTURE(dtype);
    const Device device = shared_device();
    Tape tape(device);
    const Var x = tape.variable(random_tensor({2, 5}, dtype, device, 1, -1.0, 1.0)),
              weight = tape.variable(random_tensor({7, 5}, dtype, device, 2, -1.0, 1.0));
    const Tensor ignored = indices({-1, -1}, {2});
    const Var loss = projection_cross_entropy(x, weight, ignored);
    CHECK(loss.value().item() == 0.0);
    tape.backward(loss);
    CHECK(tape.gradient(x).to_doubles() == std::vector<double>(10, 0.0));
    CHECK(tape.gradient(weight).to_doubles() == std::vector<double>(35, 0.0));
    // The same without gradients.
    CHECK(projection_cross_entropy(Var(x.value()), Var(weight.value()), ignored).value().item() ==
          0.0);
  }
}

TEST_CASE(
    "projection_cross_entropy allocates gradients only for operands that are recorded on a tape") {
  const Device device = Device::meta();
  const auto floats = [&](const Shape& shape) { return Tensor::empty(shape, DType::f32, device); };
  const Tensor x = floats({64, 8}), weight = floats({4096, 8});
  const Tensor wanted = Tensor::empty({64}, DType::i64, device);
  const int64_t before = device.memory().live();
  const auto taken = [&](const Var& rows, const Var& matrix) {
    const Var loss = projection_cross_entropy(rows, matrix, wanted);
    return device.memory().live() - before - arena_bytes(4);  // beside the loss
  };
  CHECK(taken(Var(x), Var(weight)) == 0);
  // The divisor of the gradients, too.
  Tape first(device), second(device);
  CHECK(taken(first.variable(x), Var(weight)) == x.bytes() + arena_bytes(4));
  first = Tape(device);
  CHECK(taken(Var(x), second.variable(weight)) == weight.bytes() + arena_bytes(4));
  second = Tape(device);
  CHECK(device.memory().live() == before);  // tapes without a backward
}

TEST_CASE("a loss of bf16 logits is f32, and is NaN when all targets are ignored") {
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

TEST_CASE("huber is quadratic up to delta and linear from there") {
  const Tensor x = doubles({3, 4}, 1), target = doubles({3, 4}, 2);
  for (const double delta : {0.05, 0.4, 10.0}) {
    const std::vector<double> a = x.to_doubles(), b = target.to_doubles();
    std::vector<double> expected;
    for (size_t i = 0; i < a.size(); ++i) {
      const double d = std::abs(a[i] - b[i]);
      expected.push_back(d <= delta ? d * d / 2 : delta * (d - delta / 2));
    }
    const Var losses = huber(Var(x), Var(target), delta, Reduction::none);
    CHECK(excess(losses.value(), expected, 1e-15) < 1.0);
    check_gradient([&](Tape&, Vars in) { return huber(in[0], in[1], delta); }, {x, target});
  }
  const Var wide(cast(Var(x), DType::bf16).value());
  CHECK(huber(wide, wide).dtype() == DType::f32);
  CHECK(huber(wide, wide).value().item() == 0.0);
  for (const double delta : {0.0, -1.0, static_cast<double>(NAN)})
    CHECK_ERROR(ConfigError, "expected a number above 0", huber(Var(x), Var(target), delta));
  CHECK_ERROR(ShapeError, "huber: target has shape [4]; expected [3, 4]",
              huber(Var(x), Var(doubles({4}, 1))));
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
  CHECK_ERROR(DTypeError, "cross_entropy: targets holds f64; expected i32 or i64",
              cross_entropy(logits, doubles({2, 3}, 1)));
  CHECK_ERROR(DTypeError, "cross_entropy: logits holds i64; expected f64",
              cross_entropy(Var(targets), targets));
  CHECK_ERROR(ShapeError, "7", cross_entropy(Var(doubles({1, 7}, 1)), indices({7}, {1})));
  CHECK_ERROR(ShapeError, "projection_cross_entropy: weight has shape [7, 5]; expected [V, 7]",
              projection_cross_entropy(logits, weight, targets));
  CHECK_ERROR(ShapeError, "mse: target has shape [7, 5]; expected [2, 3, 7]", mse(logits, weight));
}
