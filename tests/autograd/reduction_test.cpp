#include <cmath>
#include <type_traits>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

const Shape reduction_shape{3, 1, 5, 7};

/// The values of x that fall on each element of the reduced shape (axes kept with extent 1).
std::vector<std::vector<double>> groups(const Tensor& x, const Shape& kept) {
  std::vector<std::vector<double>> result(static_cast<size_t>(kept.numel()));
  const std::vector<double> values = x.to_doubles();
  for (int64_t i = 0; i < x.numel(); ++i)
    result[source_of(i, x.shape(), kept)].push_back(values[static_cast<size_t>(i)]);
  return result;
}

void check_values(const Tensor& x, const Shape& kept, const Var& sums, const Var& means,
                  const Var& maxima) {
  std::vector<double> sum, mean, maximum;
  for (const std::vector<double>& group : groups(x, kept)) {
    double total = 0, largest = -INFINITY;
    for (double value : group) total += value, largest = std::fmax(largest, value);
    sum.push_back(total);
    mean.push_back(total / static_cast<double>(group.size()));
    maximum.push_back(largest);
  }
  // 105 terms below 1 in f64, in another order.
  CHECK(excess(sums.value(), sum, 105 * 105 * unit_roundoff(DType::f64)) <= 1.0);
  CHECK(excess(means.value(), mean, 105 * unit_roundoff(DType::f64)) <= 1.0);
  CHECK(values_of(maxima) == maximum);
}

}  // namespace

TEST_CASE("sum, mean and max over any axes match plain loops, with the axes kept or dropped") {
  const Tensor x = doubles(reduction_shape, 1);
  const Var v(x);
  check_values(x, {1, 1, 1, 1}, sum(v), mean(v), max(v));
  check_values(x, {3, 1, 5, 1}, sum(v, {-1}), mean(v, {3}), max(v, {-1}));
  check_values(x, {1, 1, 5, 7}, sum(v, {0}), mean(v, {0}), max(v, {-4}));
  check_values(x, {1, 1, 5, 1}, sum(v, {0, 3}), mean(v, {-1, 0, 1}), max(v, {3, 0}));
  CHECK(sum(v).shape() == Shape{});
  CHECK(sum(v, {}, true).shape() == Shape{1, 1, 1, 1});
  CHECK(mean(v, {0, 2}).shape() == Shape{1, 7});
  CHECK(max(v, {0, 2}, true).shape() == Shape{1, 1, 1, 7});
  CHECK(sum(Var(doubles({}, 1))).value().item() == doubles({}, 1).item());
}

TEST_CASE("a reduction takes one axis without braces, and a bool is not an axis") {
  const Var x(random_tensor({3, 4}, DType::f64, Device::cpu(), 1));
  CHECK(same_bits(sum(x, -1).value(), sum(x, {1}).value()));
  CHECK(same_bits(mean(x, 0, true).value(), mean(x, {0}, true).value()));
  CHECK(sum(x, {}).shape() == Shape());
  CHECK(same_bits(sum(x, int64_t{-1}).value(), sum(x, {1}).value()));
  static_assert(!std::is_convertible_v<bool, Axes>);
}

TEST_CASE("sum, mean and max pass gradcheck over any axes") {
  const Tensor x = doubles(reduction_shape, 1);
  check_gradient([](Tape&, Vars in) { return sum(in[0]); }, {x});
  check_gradient([](Tape&, Vars in) { return sum(in[0], {0, -1}); }, {x});
  check_gradient([](Tape&, Vars in) { return sum(in[0], {2}, true); }, {x});
  check_gradient([](Tape&, Vars in) { return mean(in[0]); }, {x});
  check_gradient([](Tape&, Vars in) { return mean(in[0], {1, 2}); }, {x});
  check_gradient([](Tape&, Vars in) { return mean(in[0], {-1}, true); }, {x});
  check_gradient([](Tape&, Vars in) { return max(in[0]); }, {x});
  check_gradient([](Tape&, Vars in) { return max(in[0], {0, 2}); }, {x});
  check_gradient([](Tape&, Vars in) { return max(in[0], {3}, true); }, {x});
  check_gradient([](Tape&, Vars in) { return sum(in[0]); }, {doubles({}, 1)});
}

TEST_CASE("max splits the gradient evenly, even among more equal maxima than bf16 can count") {
  const Device device = Device::cpu();
  Tape tape(device);
  const int64_t n = 1023;
  const Var x = tape.variable(Tensor::full({2, n}, 1.0, DType::bf16, device));
  tape.backward(sum(max(x, {1})));
  for (double share : tape.gradient(x).to_doubles())
    CHECK(share == static_cast<double>(bf16(1.0f / static_cast<float>(n))));
}

TEST_CASE("argmax is the index of the first maximum and needs no gradient") {
  const Device device = Device::cpu();
  Tape tape(device);
  const Var x = tape.variable(Tensor::from(std::vector<double>{1, 5, 5, 9, 2, 9}, {2, 3}, device));
  CHECK(argmax(x).value().to_host<int64_t>() == std::vector<int64_t>{1, 0});
  CHECK(argmax(x, 0, true).value().to_host<int64_t>() == std::vector<int64_t>{1, 0, 1});
  CHECK(argmax(x, 0, true).shape() == Shape{1, 3});
  CHECK_FALSE(argmax(x).needs_gradient());
}

TEST_CASE("softmax and log_softmax along any axis match plain loops and pass gradcheck") {
  const Tensor x = doubles({3, 5, 2, 7}, 1, -4, 4);
  for (int axis : {-1, 0, 1, -2}) {
    CAPTURE(axis);
    const Shape kept = x.shape().with(axis, 1);
    std::vector<double> total(static_cast<size_t>(kept.numel())), expected, logs;
    const std::vector<double> values = x.to_doubles();
    for (int64_t i = 0; i < x.numel(); ++i)
      total[source_of(i, x.shape(), kept)] += std::exp(values[static_cast<size_t>(i)]);
    for (int64_t i = 0; i < x.numel(); ++i) {
      const double sum = total[source_of(i, x.shape(), kept)];
      expected.push_back(std::exp(values[static_cast<size_t>(i)]) / sum);
      logs.push_back(values[static_cast<size_t>(i)] - std::log(sum));
    }
    CHECK(excess(softmax(Var(x), axis).value(), expected, 1e-14) <= 1.0);
    CHECK(excess(log_softmax(Var(x), axis).value(), logs, 1e-13) <= 1.0);
    check_gradient([&](Tape&, Vars in) { return softmax(in[0], axis); }, {x});
    check_gradient([&](Tape&, Vars in) { return log_softmax(in[0], axis); }, {x});
  }
}

TEST_CASE("softmax along an axis has the bits that it has for rows, on every instruction set") {
  const auto check = [](const Device& device, DType dtype, bool log, int64_t extent) {
    INFO(level_of(device), " ", name_of(dtype), " ", log, " ", extent);
    const Tensor x = random_tensor({2, extent, 37}, dtype, device, 5, -8, 8);
    const Tensor dy = random_tensor(x.shape(), dtype, device, 6);
    const auto results = [&](bool by_rows) {
      Tape tape(device);
      const Var in = tape.variable(x), moved = by_rows ? transpose(in, 1, 2) : in;
      const int axis = by_rows ? -1 : 1;
      const Var p = log ? log_softmax(moved, axis) : softmax(moved, axis);
      const Var y = by_rows ? transpose(p, 1, 2) : p;
      tape.backward({&y, 1}, {&dy, 1});
      return std::pair{y.value(), tape.gradient(in)};
    };
    const auto [y, dx] = results(false);
    const auto [y_rows, dx_rows] = results(true);
    CHECK(same_bits(y, y_rows));
    CHECK(same_bits(dx, dx_rows));
  };
  // In a long row the elements after the last whole vectors change no bit of most sums.
  for (const Device& device : devices_at_every_level())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16})
      for (const bool log : {false, true})
        for (const int64_t extent : {58, 1114}) check(device, dtype, log, extent);
}

TEST_CASE("reductions refuse a wrong axis or dtype and the max of an empty axis, and name the op") {
  const Device device = Device::cpu();
  const Var x(Tensor::zeros({2, 3}, DType::f32, device));
  const Var whole(Tensor::zeros({2, 3}, DType::i64, device));
  const Var empty(Tensor::zeros({2, 0}, DType::f32, device));
  CHECK(message_of<ShapeError>([&] { sum(x, {2}); }) ==
        "sum: axis 2 of shape [2, 3]; expected -2 to 1");
  CHECK_ERROR(ShapeError, "mean: axis 0 of [2, 3] is given twice", mean(x, {0, -2}));
  CHECK_ERROR(DTypeError, "mean: x holds i64; expected f64", mean(whole));
  CHECK_ERROR(DTypeError, "max: x holds bool", max(equal(whole, 0)));
  CHECK_ERROR(DTypeError, "argmax: x holds bool", argmax(equal(whole, 0)));
  CHECK_ERROR(DTypeError, "softmax: x holds i64", softmax(whole));
  CHECK_ERROR(ShapeError, "log_softmax: axis -3 of shape [2, 3]", log_softmax(x, -3));
  CHECK_ERROR(ShapeError, "max: x has shape [2, 0]", max(empty, {1}));
  CHECK(sum(whole).value().to_host<int64_t>() == std::vector<int64_t>{0});
  CHECK(sum(empty, {1}).value().to_doubles() == std::vector<double>{0, 0});
}

TEST_CASE("sums over permuted axes copy nothing and have the bits of sums of the operand") {
  struct Case {
    Shape x;
    std::initializer_list<int> order;
    Axes axes, axes_of_x, order_of_y;
  };
  const Case cases[] = {{{3, 50, 4, 7}, {0, 2, 1, 3}, {2}, {1}, {0, 1, 2}},
                        {{3, 50, 4, 7}, {3, 1, 0, 2}, {1, 3}, {1, 2}, {1, 0}},
                        {{3, 1, 40}, {2, 0, 1}, {0}, {2}, {0, 1}},
                        {{6, 300}, {1, 0}, {0}, {1}, {0}},
                        {{6, 300}, {1, 0}, {0, 1}, {0, 1}, {}}};
  for (const Device& device : devices_at_every_level(2))
    for (const DType dtype : on_device({DType::f64, DType::f32, DType::bf16}, device))
      for (const auto& [shape, order, axes, axes_of_x, order_of_y] : cases) {
        INFO(shape.str(), ", ", name_of(dtype), ", ", level_of(device));
        Tape tape(device);
        const Var x = tape.variable(random_tensor(shape, dtype, device, 1));
        const Var view = permute(x, order);
        const int64_t before = device.memory().live();
        for (const auto& op : {sum, mean}) {
          const Var y = op(view, axes, false), of_x = op(x, axes_of_x, false);
          const Var expected =
              order_of_y.size() == 2 && *order_of_y.begin() == 1 ? transpose(of_x, 0, 1) : of_x;
          CHECK(y.shape() == expected.shape());
          CHECK(same_bits(values_of(y), values_of(expected)));
          CHECK(op(view, axes, true).value().numel() == y.value().numel());
        }
        CHECK(device.memory().live() == before);
      }
  for (const auto& [shape, order, axes, axes_of_x, order_of_y] : cases)
    check_gradient([&](Tape&, Vars in) { return square(mean(permute(in[0], order), axes)); },
                   {doubles(shape, 1)});
}
