#include <cmath>

#include "tests/autograd/op_check.h"
#include "zerograd/kernels/elementwise/elementwise.h"

using namespace zg;
using namespace zg::testing;

namespace {

const Shape layer_shape{2, 3, 7};

std::vector<double> normed(const std::vector<double>& x, const Tensor& gamma, const Tensor* beta) {
  const size_t C = static_cast<size_t>(gamma.numel());
  std::vector<double> y(x.size());
  for (size_t row = 0; row < x.size(); row += C) {
    double mean = 0, square = 0;
    if (beta)
      for (size_t i = 0; i < C; ++i) mean += x[row + i] / static_cast<double>(C);
    for (size_t i = 0; i < C; ++i)
      square += (x[row + i] - mean) * (x[row + i] - mean) / static_cast<double>(C);
    for (size_t i = 0; i < C; ++i)
      y[row + i] = (x[row + i] - mean) / std::sqrt(square + 1e-5f) * gamma.to_doubles()[i] +
                   (beta ? beta->to_doubles()[i] : 0.0);
  }
  return y;
}

}  // namespace

TEST_CASE("layer_norm and rms_norm normalize over the last axis and pass gradcheck") {
  const Tensor x = doubles(layer_shape, 1), gamma = doubles({7}, 2), beta = doubles({7}, 3);
  const Var g(gamma), b(beta);
  const std::vector<double> expected = normed(x.to_doubles(), gamma, &beta);
  CHECK(excess(layer_norm(Var(x), g, b).value(), expected, 1e-13) <= 1.0);
  CHECK(excess(rms_norm(Var(x), g).value(), normed(x.to_doubles(), gamma, nullptr), 1e-13) <= 1.0);

  check_gradient([](Tape&, Vars in) { return layer_norm(in[0], in[1], in[2]); }, {x, gamma, beta});
  check_gradient([](Tape&, Vars in) { return layer_norm(in[0], in[1], {}); }, {x, gamma});
  check_gradient([&](Tape&, Vars in) { return layer_norm(in[0], g, b); }, {x});
  check_gradient([&](Tape&, Vars in) { return layer_norm(Var(x), in[0], in[1]); }, {gamma, beta});
  check_gradient([](Tape&, Vars in) { return rms_norm(in[0], in[1]); }, {x, gamma});
  check_gradient([&](Tape&, Vars in) { return rms_norm(Var(x), in[0]); }, {gamma});
  check_gradient([](Tape&, Vars in) { return rms_norm(in[0], in[1]); }, {doubles({7}, 1), gamma});
}

TEST_CASE("add_layer_norm equals add followed by layer_norm, whichever of its results is used") {
  const Tensor x = doubles(layer_shape, 1), delta = doubles(layer_shape, 2);
  const Tensor gamma = doubles({7}, 3), beta = doubles({7}, 4);
  const Var total = add(Var(x), Var(delta));
  const NormedSum both = add_layer_norm(Var(x), Var(delta), Var(gamma), Var(beta));
  CHECK(values_of(both.sum) == values_of(total));
  CHECK(excess(both.normed.value(), values_of(layer_norm(total, Var(gamma), Var(beta))), 1e-14) <=
        1.0);

  const std::vector<Tensor> inputs{x, delta, gamma, beta};
  auto apply = [](Vars in) { return add_layer_norm(in[0], in[1], in[2], in[3]); };
  check_gradient(
      [&](Tape&, Vars in) {
        const NormedSum r = apply(in);
        return mul(r.sum, r.normed);
      },
      inputs);
  check_gradient(
      [&](Tape&, Vars in) {
        const NormedSum r = layer_norm_of_sum(in[0], in[1], in[2], in[3]);
        return mul(r.sum, r.normed);
      },
      inputs);
  check_gradient([&](Tape&, Vars in) { return apply(in).sum; }, inputs);
  check_gradient([&](Tape&, Vars in) { return apply(in).normed; }, inputs);
  check_gradient(
      [&](Tape&, Vars in) {
        const NormedSum r = add_layer_norm(Var(x), in[0], Var(gamma), Var(beta));
        return add(r.sum, r.normed);
      },
      {delta});
}

TEST_CASE("a norm adds the gradients of other uses of its input as the tape does, bit by bit") {
  const Device& device = shared_device();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
    for (const bool centred : {true, false}) {
      INFO(name_of(dtype), ", centred ", centred);
      const auto random = [&](const Shape& shape, uint64_t seed) {
        return random_tensor(shape, dtype, device, seed);
      };
      const Tensor x = random({4, 9}, 1), delta = random({4, 9}, 2), gamma = random({9}, 3);
      const Tensor beta = random({9}, 4), of_sum = random({4, 9}, 5), of_norm = random({4, 9}, 6);
      // The gradients of x, delta, gamma and beta, if the sum has this gradient, the norm that one.
      const auto gradients = [&](bool fused, bool sum_has, bool norm_has) {
        Tape tape(device);
        const Var in[] = {tape.variable(x), tape.variable(delta), tape.variable(gamma),
                          tape.variable(beta)};
        NormedSum both;
        if (fused)
          both = centred ? layer_norm_of_sum(in[0], in[1], in[2], in[3])
                         : rms_norm_of_sum(in[0], in[1], in[2]);
        else
          both.sum = add(in[0], in[1]);
        if (!fused)
          both.normed = centred ? layer_norm(both.sum, in[2], in[3]) : rms_norm(both.sum, in[2]);
        std::vector<Var> outputs;
        std::vector<Tensor> slopes;
        if (sum_has) outputs.push_back(both.sum), slopes.push_back(of_sum);
        if (norm_has) outputs.push_back(both.normed), slopes.push_back(of_norm);
        tape.backward(outputs, slopes);
        std::vector<Tensor> results = {both.sum.value(), both.normed.value()};
        for (const Var& variable : in)
          if (const Tensor gradient = tape.gradient(variable)) results.push_back(gradient);
        return results;
      };
      const std::vector<Tensor> apart = gradients(false, true, true);
      const std::vector<Tensor> together = gradients(true, true, true);
      REQUIRE(apart.size() == (centred ? 6 : 5));
      REQUIRE(together.size() == apart.size());
      for (size_t i = 0; i < apart.size(); ++i) CHECK(same_bits(apart[i], together[i]));
      // The gradient of x is the rounded one of the norm plus of_sum, which itself must not change.
      const Tensor before = Tensor::empty({4, 9}, dtype, device);
      copy(of_sum, before, device.compute());
      const Tensor norm_alone = gradients(true, false, true)[2];
      const Tensor total = Tensor::empty({4, 9}, dtype, device);
      copy(of_sum, total, device.compute());
      kernels::axpby({.x = norm_alone, .y = total, .a = 1.0, .b = 1.0}, device.compute());
      CHECK(same_bits(together[2], total));
      CHECK(same_bits(together[3], total));
      CHECK(same_bits(of_sum, before));
    }
}

TEST_CASE("embedding picks rows, adds positions and sums the gradients of repeated ids") {
  const Tensor ids = indices({4, 0, 4, 2, 2, 2}, {2, 3});
  const Tensor weight = doubles({5, 7}, 1), position = doubles({6, 7}, 2);
  const Var y = embedding(ids, Var(weight), Var(position), 2);
  CHECK(y.shape() == Shape{2, 3, 7});
  const std::vector<int64_t> rows = ids.to_host<int64_t>();
  for (size_t n = 0; n < 6; ++n)
    for (size_t c = 0; c < 7; ++c)
      CHECK(values_of(y)[n * 7 + c] == weight.to_doubles()[static_cast<size_t>(rows[n]) * 7 + c] +
                                           position.to_doubles()[(2 + n % 3) * 7 + c]);
  check_gradient([&](Tape&, Vars in) { return embedding(ids, in[0], in[1], 2); },
                 {weight, position});
  check_gradient([&](Tape&, Vars in) { return embedding(ids, in[0]); }, {weight});
  check_gradient([&](Tape&, Vars in) { return embedding(ids, Var(weight), in[0]); }, {position});
}

TEST_CASE("embedding without positions takes ids of any shape") {
  const Tensor weight = doubles({5, 3}, 1);
  for (const Shape& shape : {Shape{}, Shape{6}, Shape{1, 2, 3}, Shape{3, 1, 2, 1, 1}, Shape{0}}) {
    INFO(shape.str());
    std::vector<int64_t> numbers{4, 0, 2, 2, 1, 4};
    numbers.resize(static_cast<size_t>(shape.numel()));
    const Tensor ids = indices(numbers, shape);
    const Var y = embedding(ids, Var(weight));
    REQUIRE(y.shape().rank() == shape.rank() + 1);
    CHECK(values_of(y) == values_of(index_select(Var(weight), 0, ids.view({ids.numel()}))));
    check_gradient([&](Tape&, Vars in) { return embedding(ids, in[0]); }, {weight});
  }
  CHECK(embedding(indices({1, 2}, {1, 2, 1}), Var(weight)).shape() == Shape{1, 2, 1, 3});
}

TEST_CASE("dropout uses the mask of its key and applies the same mask and scale to the gradient") {
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({3, 5, 7}, 1, 1.0, 2.0));
  const DropoutKey key{.seed = 5, .step = 2, .sample = 9, .site = 3};
  const Var y = dropout(x, 0.25f, key);
  tape.backward(sum(y));
  int kept = 0;
  for (size_t i = 0; i < 105; ++i) {
    const auto sample = static_cast<uint32_t>(9 + i / 35), element = static_cast<uint32_t>(i % 35);
    const uint32_t word = Philox::block({element / 4, sample, 2, 3}, 5)[element % 4];
    const double factor = uniform(word) >= 0.25f ? 1 / 0.75 : 0.0;
    CHECK(values_of(y)[i] == doctest::Approx(values_of(x)[i] * factor));
    CHECK(tape.gradient(x).to_doubles()[i] == doctest::Approx(factor));
    kept += factor > 0;
  }
  CHECK(kept > 0);
  CHECK(kept < 105);
}

TEST_CASE("dropout with probability 0 returns its operand, and dropout passes gradcheck") {
  const Var x(doubles({3}, 1));
  CHECK(dropout(x, 0.0f, {}).value().buffer() == x.value().buffer());
  check_gradient([](Tape&, Vars in) { return dropout(in[0], 0.5f, {.seed = 1}); },
                 {doubles({3, 5}, 1)});
  check_gradient([](Tape&, Vars in) { return dropout(in[0], 0.5f, {.seed = 1}); },
                 {doubles({}, 1)});
}

TEST_CASE("layers refuse operands that do not fit") {
  const Var x(doubles({2, 7}, 1)), seven(doubles({7}, 2)), six(doubles({6}, 2));
  const Tensor ids = indices({0, 1}, {1, 2});
  const Var whole(indices({0, 1}, {2}));
  CHECK(message_of<ShapeError>([&] { layer_norm(x, six, seven); }) ==
        "layer_norm: gamma has shape [6]; expected [7]");
  CHECK_ERROR(ShapeError, "layer_norm: beta", layer_norm(x, seven, six));
  CHECK_ERROR(DTypeError, "layer_norm: x holds f64 and gamma holds f32",
              layer_norm(x, cast(seven, DType::f32), seven));
  CHECK_ERROR(DTypeError, "rms_norm: x holds i64", rms_norm(whole, seven));
  CHECK_ERROR(ShapeError, "rms_norm_of_sum: delta", rms_norm_of_sum(x, seven, seven));
  CHECK_ERROR(ShapeError, "layer_norm_of_sum: delta is absent",
              layer_norm_of_sum(x, {}, seven, seven));
  CHECK_ERROR(ShapeError, "add_layer_norm: delta has shape [7]; expected [2, 7]",
              add_layer_norm(x, seven, seven, seven));
  CHECK_ERROR(ShapeError, "embedding: ids has shape [1]; expected rank 2 with positions: [B, T]",
              embedding(indices({0}, {1}), x, x));
  CHECK_ERROR(ShapeError, "embedding: weight has shape [7]; expected rank 2",
              embedding(indices({0}, {1}), seven));
  CHECK_ERROR(DTypeError, "embedding: ids holds f64; expected i32 or i64",
              embedding(doubles({1, 2}, 1), x));
  CHECK_ERROR(ShapeError, "embedding: position has shape [2, 6]; expected [P, 7]",
              embedding(ids, x, Var(doubles({2, 6}, 1))));
  for (const int64_t first : {int64_t{1}, INT64_MAX})
    CHECK_ERROR(ShapeError,
                "embedding: position [2, 7] has no 2 rows from " + std::to_string(first),
                embedding(ids, x, x, first));
  CHECK_ERROR(ShapeError, "2", embedding(indices({0, 2}, {1, 2}), x));
  CHECK_ERROR(ConfigError, "dropout: probability 1.000000; expected 0 <= p < 1",
              dropout(x, 1.0f, {}));
  CHECK_ERROR(DTypeError, "dropout: x holds i64", dropout(whole, 0.5f, {}));
}
