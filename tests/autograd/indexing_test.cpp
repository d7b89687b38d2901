#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

Shape shape_in(const nlohmann::json& extents) {
  const auto values = extents.get<std::vector<int64_t>>();
  return Shape(std::span(values));
}

struct Recorded {
  Shape shape;
  std::vector<double> values;
};
Recorded recorded_in(const nlohmann::json& from, const char* name) {
  return {shape_in(from.at(name).at("shape")), from.at(name).at("values")};
}

Tensor tensor_in(const nlohmann::json& from, const char* name) {
  const auto& [shape, values] = recorded_in(from, name);
  return Tensor::from(values, shape, shared_device());
}

void check_equal(const Tensor& actual, const Recorded& expected) {
  CHECK(actual.shape().str() == expected.shape.str());
  CHECK(actual.to_doubles() == expected.values);
}

}  // namespace

TEST_CASE("gather and scatter_add with an index smaller than the input match PyTorch") {
  std::ifstream file(ZG_FIXTURES "indexing.json");
  const nlohmann::json cases = nlohmann::json::parse(file);
  REQUIRE(cases.size() == 11);
  for (const nlohmann::json& c : cases) {
    const int axis = c.at("axis");
    const Tensor index = indices(c.at("index"), shape_in(c.at("index_shape")));
    INFO(index.shape().str(), ", axis ", axis, ", ", c.at("x").at("shape").dump(), ", ",
         c.at("source").at("shape").dump());
    {
      Tape tape(shared_device());
      const Var x = tape.variable(tensor_in(c, "x"));
      const Var y = gather(x, axis, index);
      check_equal(y.value(), recorded_in(c, "gather"));
      const Tensor dy = tensor_in(c, "dgather");
      tape.backward({&y, 1}, {&dy, 1});
      check_equal(tape.gradient(x), recorded_in(c, "dx"));
    }
    Tape tape(shared_device());
    const Var base = tape.variable(tensor_in(c, "x"));
    const Var source = tape.variable(tensor_in(c, "source"));
    const Var y = scatter_add(base, axis, index, source);
    check_equal(y.value(), recorded_in(c, "scatter_add"));
    const Tensor dy = tensor_in(c, "dscatter_add");
    tape.backward({&y, 1}, {&dy, 1});
    check_equal(tape.gradient(base), recorded_in(c, "dbase"));
    check_equal(tape.gradient(source), recorded_in(c, "dsource"));
  }
}

TEST_CASE("gather and scatter_add with an index smaller than the input pass gradcheck") {
  const Tensor index = indices({2, 0, 0, 1, 1, 2}, {1, 3, 2});
  check_gradient([&](Tape&, Vars in) { return gather(in[0], 1, index); }, {doubles({2, 3, 4}, 1)});
  check_gradient([&](Tape&, Vars in) { return scatter_add(in[0], 1, index, in[1]); },
                 {doubles({2, 3, 4}, 1), doubles({3, 4, 2}, 2)});
  const Tensor none = indices({}, {0, 7});
  check_gradient([&](Tape&, Vars in) { return scatter_add(in[0], 1, none, in[1]); },
                 {doubles({2, 3}, 1), doubles({2, 2}, 2)});
}

TEST_CASE("index_max is the largest element of each place, and of x there") {
  const std::vector<int64_t> places{4, 1, 4, 2, 4, 1, 2};  // none at 0 and 3
  const auto count = static_cast<int64_t>(places.size());
  const Tensor index = indices(places, {count});
  for (const int axis : {0, 1, -1}) {
    const Shape shape = Shape{2, 3, 2}.with(axis, 5);
    for (const double low : {-HUGE_VAL, -0.5}) {
      const Tensor x =
          low < -1 ? Tensor::full(shape, low, DType::f64, shared_device()) : doubles(shape, 1);
      const Tensor source = doubles(shape.with(axis, count), 2);
      std::vector<Var> rows = split(Var(x), std::vector<int64_t>(5, 1), axis);
      for (int64_t j = 0; j < count; ++j) {
        Var& row = rows[static_cast<size_t>(places[static_cast<size_t>(j)])];
        row = maximum(row, slice(Var(source), axis, j, j + 1));
      }
      CHECK(values_of(index_max(Var(x), axis, index, Var(source))) ==
            values_of(concat(rows, axis)));
    }
    check_gradient([&](Tape&, Vars in) { return index_max(in[0], axis, index, in[1]); },
                   {doubles(shape, 3), doubles(shape.with(axis, count), 4)});
  }
  const Var whole = index_max(Var(indices({1, 9}, {2})), 0, indices({1, 1, 0}, {3}),
                              Var(indices({3, 11, -2}, {3})));
  CHECK(whole.value().to_host<int64_t>() == std::vector<int64_t>{1, 11});
  const Var x(doubles({3, 2}, 1));
  CHECK(values_of(index_max(x, 0, indices({}, {0}), Var(doubles({0, 2}, 1)))) == values_of(x));
  CHECK_ERROR(ShapeError, "index_max: source has shape [2, 2]; expected [1, 2]",
              index_max(x, 0, indices({1}, {1}), Var(doubles({2, 2}, 1))));
  CHECK_ERROR(ShapeError, "index_max: index holds 3 at element 0; expected 0 to 2",
              index_max(x, 0, indices({3}, {1}), Var(doubles({1, 2}, 1))));
}

TEST_CASE("gather and scatter_add refuse an index tensor whose shape is too large") {
  const Var x(doubles({3, 4}, 1)), source(doubles({2, 4}, 2));
  const auto index = [](const Shape& shape) {
    return Tensor::zeros(shape, DType::i64, shared_device());
  };
  CHECK(message_of<ShapeError>([&] {
          gather(x, 0, index({9, 5}));
        }) ==
        "gather: index has shape [9, 5]; expected as many axes as x [3, 4], none longer except "
        "axis 0");
  CHECK(
      message_of<ShapeError>([&] { gather(x, 0, index({3})); }) ==
      "gather: index has shape [3]; expected as many axes as x [3, 4], none longer except axis 0");
  CHECK(message_of<ShapeError>([&] {
          scatter_add(x, 0, index({3, 4}), source);
        }) ==
        "scatter_add: index has shape [3, 4]; expected as many axes as x [2, 4], none longer");
  CHECK(message_of<ShapeError>([&] {
          scatter_add(x, 1, index({4, 4}), Var(doubles({4, 4}, 3)));
        }) ==
        "scatter_add: index has shape [4, 4]; expected as many axes as y [3, 4], none longer "
        "except axis 1");
}
