#include <cmath>
#include <numbers>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct ProductShapes {
  Shape a, b;
};

const ProductShapes product_shapes[] = {
    {{3, 5}, {5, 2}},
    {{1, 1}, {1, 1}},
    {{4, 3, 5}, {4, 5, 2}},
    {{4, 3, 5}, {5, 2}},           // one b for all: more rows of one product
    {{3, 5}, {4, 5, 2}},           // one a for all
    {{2, 1, 3, 5}, {4, 5, 2}},     // each repeats along another axis
    {{2, 4, 3, 5}, {1, 4, 5, 2}},  // b repeats along the outer axis alone
    {{2, 4, 3, 5}, {2, 1, 5, 2}},  // b repeats along the inner axis alone
    {{2, 1, 3, 1, 3, 5}, {4, 1, 2, 5, 2}},
};

/// Plain loops over the broadcast leading axes.
std::vector<double> expected_product(const Tensor& a, const Tensor& b, const Shape& out) {
  const int64_t M = out[-2], N = out[-1], K = a.extent(-1);
  auto leading = [](const Shape& s) { return Shape(s.extents().first(s.extents().size() - 2)); };
  const std::vector<double> x = a.to_doubles(), y = b.to_doubles();
  std::vector<double> result;
  for (int64_t place = 0; place < leading(out).numel(); ++place) {
    const double* rows =
        x.data() + source_of(place, leading(out), leading(a.shape())) * static_cast<size_t>(M * K);
    const double* columns =
        y.data() + source_of(place, leading(out), leading(b.shape())) * static_cast<size_t>(K * N);
    for (int64_t i = 0; i < M; ++i)
      for (int64_t j = 0; j < N; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < K; ++k) sum += rows[i * K + k] * columns[k * N + j];
        result.push_back(sum);
      }
  }
  return result;
}

double activated(double x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return 0.5 * x *
             (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    default:
      return x;
  }
}

}  // namespace

TEST_CASE("matmul broadcasts its leading axes") {
  for (const ProductShapes& pair : product_shapes) {
    INFO(pair.a.str(), ", ", pair.b.str());
    const Tensor a = doubles(pair.a, 1), b = doubles(pair.b, 2);
    const Var y = matmul(Var(a), Var(b));
    // Five products below 1.
    CHECK(excess(y.value(), expected_product(a, b, y.shape()), 25 * unit_roundoff(DType::f64)) <=
          1.0);
    check_gradient([](Tape&, Vars in) { return matmul(in[0], in[1]); }, {a, b});
    check_gradient([&](Tape&, Vars in) { return matmul(in[0], Var(b)); }, {a});
    check_gradient([&](Tape&, Vars in) { return matmul(Var(a), in[0]); }, {b});
  }
  check_gradient([](Tape&, Vars in) { return matmul(in[0], in[0]); }, {doubles({3, 3}, 1)});
}

TEST_CASE("matmul takes a vector for a row of a or a column of b, as PyTorch") {
  struct VectorProduct {
    Shape a, b, as_matrix_a, as_matrix_b, y, whole_y;
  };
  for (const VectorProduct& p : {VectorProduct{{5}, {5, 2}, {1, 5}, {5, 2}, {2}, {1, 2}},
                                 {{3, 5}, {5}, {3, 5}, {5, 1}, {3}, {3, 1}},
                                 {{5}, {4, 5, 2}, {1, 5}, {4, 5, 2}, {4, 2}, {4, 1, 2}},
                                 {{2, 4, 3, 5}, {5}, {2, 4, 3, 5}, {5, 1}, {2, 4, 3}, {2, 4, 3, 1}},
                                 {{5}, {5}, {1, 5}, {5, 1}, {}, {1, 1}}}) {
    INFO(p.a.str(), ", ", p.b.str());
    const Tensor a = doubles(p.a, 1), b = doubles(p.b, 2);
    const Var y = matmul(Var(a), Var(b));
    CHECK(y.shape() == p.y);
    const std::vector<double> expected =
        expected_product(a.view(p.as_matrix_a), b.view(p.as_matrix_b), p.whole_y);
    CHECK(excess(y.value(), expected, 25 * unit_roundoff(DType::f64)) <= 1.0);
    check_gradient([](Tape&, Vars in) { return matmul(in[0], in[1]); }, {a, b});
  }
  CHECK_ERROR(ShapeError, "matmul: a [1, 4] does not match b [5, 2]",
              matmul(Var(doubles({4}, 1)), Var(doubles({5, 2}, 2))));
}

TEST_CASE("matmul of empty batches and of empty sums works, and its gradients are zero") {
  Tape tape(shared_device());
  const Var a = tape.variable(doubles({0, 3, 5}, 1)), b = tape.variable(doubles({5, 2}, 2));
  const Var shared = tape.variable(doubles({1, 3, 5}, 3));
  const Var y = matmul(a, b), z = matmul(shared, Var(doubles({0, 5, 2}, 4)));
  CHECK(y.shape() == Shape{0, 3, 2});
  CHECK(z.shape() == Shape{0, 3, 2});
  CHECK(values_of(matmul(Var(doubles({2, 0}, 1)), Var(doubles({0, 2}, 1)))) ==
        std::vector<double>(4, 0.0));
  tape.backward(add(sum(y), sum(z)));
  CHECK(tape.gradient(b).to_doubles() == std::vector<double>(10, 0.0));
  CHECK(tape.gradient(shared).to_doubles() == std::vector<double>(15, 0.0));
}

TEST_CASE("the gradient of a bf16 operand broadcast over many products is summed in f32") {
  Tape tape(shared_device());
  // 300 additions of 1 onto 256 would get stuck at 256 in bf16.
  const Var a = tape.variable(Tensor::full({1, 1, 1}, 1.0, DType::bf16, shared_device()));
  tape.backward(sum(matmul(a, Var(Tensor::full({300, 1, 1}, 1.0, DType::bf16, shared_device())))));
  CHECK(tape.gradient(a).dtype() == DType::bf16);
  CHECK(tape.gradient(a).item() == 300);
}

TEST_CASE("linear is the activation of x weight^T + bias") {
  const Tensor x = doubles({2, 3, 5}, 1), weight = doubles({7, 5}, 2), bias = doubles({7}, 3);
  for (Activation activation : {Activation::none, Activation::gelu_tanh, Activation::gelu_erf})
    for (bool biased : {true, false}) {
      const Var b = biased ? Var(bias) : Var();
      const Var y = linear(Var(x), Var(weight), b, activation);
      CHECK(y.shape() == Shape{2, 3, 7});
      std::vector<double> expected =
          expected_product(x, permute(Var(weight), {1, 0}).value(), {2, 3, 7});
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] =
            activated(expected[i] + (biased ? bias.to_doubles()[i % 7] : 0.0), activation);
      CHECK(excess(y.value(), expected, 1e-14) <= 1.0);
      check_gradient(
          [&](Tape&, Vars in) { return linear(in[0], in[1], biased ? in[2] : Var(), activation); },
          {x, weight, bias});
    }
}

TEST_CASE("linear passes gradcheck with frozen operands") {
  const Tensor x = doubles({3, 5}, 1), weight = doubles({7, 5}, 2), bias = doubles({7}, 3);
  const auto gelu = Activation::gelu_tanh;
  check_gradient([&](Tape&, Vars in) { return linear(in[0], Var(weight), Var(bias), gelu); }, {x});
  check_gradient([&](Tape&, Vars in) { return linear(Var(x), in[0], Var(bias), gelu); }, {weight});
  check_gradient([&](Tape&, Vars in) { return linear(Var(x), Var(weight), in[0], gelu); }, {bias});
  check_gradient([&](Tape&, Vars in) { return linear(Var(x), Var(weight), in[0]); }, {bias});
  check_gradient([&](Tape&, Vars in) { return linear(in[0], in[1]); },
                 {doubles({5}, 1), doubles({1, 5}, 2)});
}

TEST_CASE("products keep their operands for backward, and what an activation needs") {
  const Device device = Device::cpu();
  auto kept = [&](const auto& op, bool frozen) {
    Tape tape(device);
    const Var x = tape.variable(Tensor::zeros({64, 64}, DType::f32, device));
    const Tensor matrix = Tensor::zeros({64, 64}, DType::f32, device);
    const Var weight = frozen ? Var(matrix) : tape.variable(matrix);
    const int64_t before = device.memory().live();
    const Var y = op(x, weight);
    return (device.memory().live() - before) / (64 * 64 * 4);
  };
  const auto gelu = Activation::gelu_tanh;
  const auto plain = [](Var x, Var w) { return linear(mul(x, 2.0), w); };
  CHECK(kept(plain, false) == 2);  // the operand of linear, y
  CHECK(kept(plain, true) == 1);   // only the weight would read the operand
  // and the sum before the activation
  CHECK(kept([&](Var x, Var w) { return linear(mul(x, 2.0), w, {}, gelu); }, false) == 3);
  const auto sum_of = [](const SplitOperand& h, const Var& w) {
    return split_sum(h, {w, {}, 32}, 2, nullptr);
  };
  for (const bool frozen : {false, true}) {
    CHECK(kept([&](Var x, Var w) { return sum_of({mul(x, 2.0)}, w); }, frozen) == 2 - frozen);
    CHECK(kept([&](Var x, Var w) { return sum_of({mul(x, 2.0), {}, gelu}, w); }, frozen) == 2);
    CHECK(kept([&](Var x, Var w) { return sum_of({mul(x, 2.0), neg(x)}, w); }, frozen) == 3);
  }
}

TEST_CASE("linear layers whose sums are divided in groups equal linear and pass gradcheck") {
  constexpr int64_t groups = 2;
  constexpr auto gelu = Activation::gelu_erf;
  constexpr auto gate = Gate::gelu_tanh;
  const Tensor fixed = doubles({6, 6}, 8);
  const auto parts_of = [](Vars v) {
    return std::vector<SplitWeight>{{v[1], v[2], 4}, {v[3], {}, 3}, {v[4], {}, 3}};
  };
  const auto all = [&](Tape&, Vars v) {
    const std::vector<Var> y = split_linears(v[0], parts_of(v), groups);
    const Var parts[] = {split_sum({y[0]}, {v[5], v[2], 4}, groups, nullptr),
                         split_sum({y[0], {}, gelu}, {v[5], {}, 4}, groups, nullptr),
                         split_sum({y[1], y[2], {}, gate}, {v[6], {}, 3}, groups, nullptr),
                         split_sum({Var(fixed), y[2]}, {v[6], {}, 3}, groups, nullptr), y[1]};
    return concat(parts, 1);
  };
  const std::vector<Tensor> inputs = {doubles({6, 4}, 1), doubles({8, 4}, 2), doubles({8}, 3),
                                      doubles({6, 4}, 4), doubles({6, 4}, 5), doubles({8, 8}, 6),
                                      doubles({5, 6}, 7)};
  check_gradient(all, inputs);
  check_gradient([&](Tape&, Vars v) { return split_linears(v[0], parts_of(v), groups)[2]; },
                 inputs);
  const std::vector<Var> v(inputs.begin(), inputs.end());
  const Var wide = linear(v[0], v[1], v[2]);
  const Var left = linear(v[0], v[3]), right = linear(v[0], v[4]);
  const Var plain[] = {linear(wide, v[5], v[2]), linear(zg::gelu(wide, gelu), v[5]),
                       linear(gated(left, right, gate), v[6]),
                       linear(gated(Var(fixed), right), v[6]), left};
  Tape tape(shared_device());
  CHECK(excess(all(tape, v).value(), values_of(concat(plain, 1)), 1e-14) <= 1.0);

  const std::vector<SplitWeight> four(4, {v[3], {}, 3});
  CHECK_ERROR(ShapeError, "split_linears: 4 weights of 4 blocks; expected 1 to 3 blocks",
              split_linears(v[0], four, groups));
  CHECK_ERROR(ShapeError, "up", split_sum({v[0], v[1]}, {v[1], {}, 4}, groups, nullptr));
}

TEST_CASE("products refuse operands that do not fit") {
  const Var x(doubles({8, 3}, 1)), weight(doubles({7, 4}, 2));
  CHECK(message_of<ShapeError>([&] { linear(x, weight); }) ==
        "linear: weight [7, 4] does not match x [8, 3]; expected a last axis of x of 4, got 3");
  CHECK_ERROR(ShapeError, "linear: bias has shape [7, 4]; expected [7]",
              linear(x, Var(doubles({7, 3}, 1)), weight));
  CHECK_ERROR(ShapeError, "linear: weight has shape [3]; expected rank 2: [out, in]",
              linear(x, Var(doubles({3}, 1))));
  CHECK_ERROR(DTypeError, "linear: x holds f64 and weight holds bf16; expected one dtype; try cast",
              linear(x, cast(weight, DType::bf16)));
  CHECK_ERROR(DTypeError, "linear: x holds i64; expected f64, f32, bf16 or f16",
              linear(Var(indices({1}, {1})), weight));
  CHECK(message_of<ShapeError>([&] { matmul(x, weight); }) ==
        "matmul: a [8, 3] does not match b [7, 4]; expected 3 rows of b, got 7");
  CHECK_ERROR(ShapeError, "matmul: b has shape []; expected rank 2 or more",
              matmul(x, Var(doubles({}, 1))));
  CHECK_ERROR(ShapeError, "matmul: cannot broadcast [2] with [4]",
              matmul(Var(doubles({2, 3, 3}, 1)), Var(doubles({4, 3, 3}, 1))));
}
