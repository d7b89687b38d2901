#include <numeric>

#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

namespace {

bool shares_memory(const Var& a, const Var& b) { return a.value().buffer() == b.value().buffer(); }

/// 0, 1, 2, ... so that every element tells where it came from.
Var counted(const Shape& shape) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  std::iota(values.begin(), values.end(), 0.0);
  return Var(Tensor::from(values, shape, shared_device()));
}

}  // namespace

TEST_CASE("reshape fills in the extent that is -1") {
  const Tensor x = doubles({4, 6}, 1);
  CHECK(reshape(x, {-1}).shape() == Shape{24});
  CHECK(reshape(x, {2, -1, 3}).shape() == Shape{2, 4, 3});
  CHECK(reshape(x, {-1, 24}).shape() == Shape{1, 24});
  CHECK(x.view({8, -1}).shape() == Shape{8, 3});
  CHECK(reshape(doubles({0, 6}, 1), {-1, 3}).shape() == Shape{0, 3});
  check_gradient([](Tape&, Vars in) { return reshape(in[0], {3, -1}); }, {x});
  CHECK_ERROR(ShapeError,
              "reshape: the extents beside -1 hold 5 elements; expected a divisor of 24",
              reshape(x, {5, -1}));
  CHECK_ERROR(ShapeError, "reshape: expected one", reshape(x, {-1, -1}));
  CHECK_ERROR(ShapeError, "hold 0 elements", reshape(x, {0, -1}));
  CHECK_ERROR(ShapeError, "got -2", reshape(x, {-2, 12}));
}

TEST_CASE("reshape shares memory and sends the gradient back in the old shape") {
  const Var x = counted({2, 3, 5});
  CHECK(reshape(x, {6, 5}).shape() == Shape{6, 5});
  CHECK(shares_memory(x, reshape(x, {30})));
  check_gradient([](Tape&, Vars in) { return reshape(in[0], {15, 2}); }, {doubles({2, 3, 5}, 1)});
  CHECK(message_of<ShapeError>([&] { reshape(x, {7}); }) ==
        "reshape: x has shape [2, 3, 5]; expected the 7 elements of [7], got 30");
}

TEST_CASE("permute moves axes, and copies only if the order of the elements changes") {
  const Var x = counted({2, 3, 1, 4});
  const Var y = permute(x, {3, 0, -2, 1});
  CHECK(y.shape() == Shape{4, 2, 1, 3});
  for (int64_t i = 0; i < 2; ++i)
    for (int64_t j = 0; j < 3; ++j)
      for (int64_t k = 0; k < 4; ++k)
        CHECK(values_of(y)[static_cast<size_t>((k * 2 + i) * 3 + j)] ==
              static_cast<double>((i * 3 + j) * 4 + k));
  CHECK(shares_memory(x, permute(x, {0, 2, 1, 3})));
  CHECK_FALSE(shares_memory(x, y));
  check_gradient(
      [](Tape&, Vars in) {
        return permute(in[0], {3, 0, 2, 1});
      },
      {doubles({2, 3, 1, 4}, 1)});
  check_gradient(
      [](Tape&, Vars in) {
        return permute(in[0], {0, 2, 1, 3});
      },
      {doubles({2, 3, 1, 4}, 1)});
  check_gradient([](Tape&, Vars in) { return permute(in[0], {}); }, {doubles({}, 1)});
  CHECK_ERROR(ShapeError, "permute: x has shape [2, 3, 1, 4]; expected rank 2", permute(x, {0, 1}));
  CHECK_ERROR(ShapeError, "permute: axis 1 of [2, 3, 1, 4] is given twice",
              permute(x, {0, 1, 1, 2}));
  CHECK_ERROR(ShapeError, "permute: axis 4 of shape [2, 3, 1, 4]; expected -4 to 3",
              permute(x, {0, 1, 2, 4}));
}

TEST_CASE("empty tensors pass through ops forward and backward") {
  const Tensor empty = doubles({2, 0, 3}, 1);
  CHECK(permute(Var(empty), {2, 1, 0}).shape() == Shape{3, 0, 2});
  check_gradient([](Tape&, Vars in) { return permute(in[0], {2, 1, 0}); }, {empty});
  check_gradient([](Tape&, Vars in) { return sum(in[0], {1}); }, {empty});
  check_gradient([](Tape&, Vars in) { return mul(in[0], in[1]); }, {empty, doubles({1, 3}, 2)});
  check_gradient([](Tape&, Vars in) { return softmax(exp(in[0]), 1); }, {empty});
}

TEST_CASE("slice takes a range of any axis") {
  const Var x = counted({2, 5, 3});
  CHECK(values_of(slice(x, 1, 1, 3)) ==
        std::vector<double>{3, 4, 5, 6, 7, 8, 18, 19, 20, 21, 22, 23});
  CHECK(values_of(slice(x, -1, 2, 3)) == std::vector<double>{2, 5, 8, 11, 14, 17, 20, 23, 26, 29});
  CHECK(slice(x, 1, 2, 2).shape() == Shape{2, 0, 3});
  CHECK(shares_memory(x, slice(x, 0, 1, 2)));
  for (int axis : {0, 1, -1})
    check_gradient([&](Tape&, Vars in) { return slice(in[0], axis, 1, 2); },
                   {doubles({2, 5, 3}, 1)});
  check_gradient([&](Tape&, Vars in) { return slice(in[0], 1, 2, 2); }, {doubles({2, 5, 3}, 1)});
  CHECK_ERROR(ShapeError, "slice: range 3 to 6 is outside axis 1 of [2, 5, 3]; expected 0 <= begin",
              slice(x, 1, 3, 6));
  CHECK_ERROR(ShapeError,
              "0 to -1 is outside axis 1 of [2, 5, 3]; expected 0 <= begin <= end <= 5; "
              "try slice(x, {{.begin = b, .end = e}}) for places from the end",
              slice(x, 1, 0, -1));
  CHECK_ERROR(ShapeError, "slice: axis 3 of shape [2, 5, 3]", slice(x, 3, 0, 1));
}

TEST_CASE("concat of the parts of split gives back the tensor, along every axis") {
  const Shape shape{2, 4, 7};
  for (int axis : {0, 1, 2, -1}) {
    CAPTURE(axis);
    const int64_t extent = shape[axis];
    const std::vector<int64_t> sizes{1, 0, extent - 1};
    auto round_trip = [&](const Var& x) { return concat(split(x, sizes, axis), axis); };
    const Var x = counted(shape);
    CHECK(round_trip(x).shape() == shape);
    CHECK(values_of(round_trip(x)) == values_of(x));
    check_gradient([&](Tape&, Vars in) { return round_trip(in[0]); }, {doubles(shape, 1)});
  }
  const std::vector<Var> parts = split(counted(shape), std::vector<int64_t>{3, 4}, 2);
  CHECK(values_of(parts[0]) == values_of(slice(counted(shape), 2, 0, 3)));
  CHECK(values_of(parts[1]) == values_of(slice(counted(shape), 2, 3, 7)));
}

TEST_CASE("split shares memory along the first axis and takes any count of parts") {
  const Var x = counted({100, 2});
  const std::vector<Var> parts = split(x, std::vector<int64_t>(100, 1), 0);
  CHECK(parts.size() == 100);
  CHECK(shares_memory(parts[99], x));
  CHECK(values_of(parts[99]) == std::vector<double>{198, 199});
}

TEST_CASE("parts of split that do not reach the loss add zeros to the gradient") {
  check_gradient(
      [](Tape&, Vars in) {
        const std::vector<Var> parts = split(in[0], std::vector<int64_t>{1, 2, 2}, 1);
        return mul(parts[0], parts[2]);
      },
      {doubles({3, 5}, 1)});
}

TEST_CASE("concat passes gradcheck with constant and repeated parts") {
  const Var fixed(doubles({3, 2}, 3));
  for (int axis : {0, -1})
    check_gradient(
        [&](Tape&, Vars in) {
          const Var square = axis == 0 ? slice(in[0], 1, 0, 2) : in[0];
          const Var parts[] = {in[1], fixed, square, in[1]};
          return concat(parts, axis);
        },
        {doubles({3, 5}, 1), doubles({3, 2}, 2)});
}

TEST_CASE("concat and split refuse parts that do not fit") {
  const Var x = counted({2, 3}), y = counted({3, 3});
  const Var narrow = cast(x, DType::f32);
  const Var rows[] = {x, y}, mixed[] = {x, narrow};
  CHECK(concat(rows, 0).shape() == Shape{5, 3});
  CHECK(message_of<ShapeError>([&] { concat(rows, 1); }) ==
        "concat: a part has shape [3, 3]; expected [2, 3] but for axis 1");
  CHECK_ERROR(DTypeError, "expected one dtype; try cast", concat(mixed, 0));
  CHECK_ERROR(ShapeError, "concat: no parts", concat({}, 0));
  CHECK_ERROR(ShapeError, "split: x has shape [2, 3]; expected extent 2 along axis 1",
              split(x, std::vector<int64_t>{1, 1}, 1));
  CHECK_ERROR(ShapeError, "split: a size of -1", split(x, std::vector<int64_t>{4, -1}, 1));
}

TEST_CASE("broadcast_to repeats elements, and its gradient sums over the repeats") {
  const Var x = counted({3, 1});
  CHECK(values_of(broadcast_to(x, {2, 3, 2})) ==
        std::vector<double>{0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2});
  CHECK(shares_memory(x, broadcast_to(x, {1, 1, 3, 1})));
  check_gradient(
      [](Tape&, Vars in) {
        return broadcast_to(in[0], {2, 3, 5});
      },
      {doubles({3, 1}, 1)});
  check_gradient(
      [](Tape&, Vars in) {
        return broadcast_to(in[0], {1, 3, 1});
      },
      {doubles({3, 1}, 1)});
  check_gradient([](Tape&, Vars in) { return broadcast_to(in[0], {2, 2}); }, {doubles({}, 1)});
  CHECK_ERROR(ShapeError, "broadcast_to: cannot broadcast [3, 1] with [2, 2]",
              broadcast_to(x, {2, 2}));
  CHECK_ERROR(ShapeError, "broadcast_to: x has shape [3, 1]; expected one that broadcasts to [1]",
              broadcast_to(x, {1}));
}

TEST_CASE("gather picks elements along an axis, and its gradient sums over repeated indices") {
  const Var x = counted({2, 3, 2});
  const Tensor index = indices({2, 0, 0, 0, 1, 2, 1, 1}, {2, 2, 2});
  CHECK(values_of(gather(x, 1, index)) == std::vector<double>{4, 1, 0, 1, 8, 11, 8, 9});
  check_gradient([&](Tape&, Vars in) { return gather(in[0], 1, index); }, {doubles({2, 3, 2}, 1)});
  const Tensor last = indices({1, 1, 0, 1, 0, 0}, {2, 3, 1});
  check_gradient([&](Tape&, Vars in) { return gather(in[0], -1, last); }, {doubles({2, 3, 2}, 1)});
  CHECK_ERROR(DTypeError, "gather: index holds f64; expected i32 or i64", gather(x, 0, x.value()));
}

TEST_CASE("scatter_add adds along an axis and passes gradcheck for both operands") {
  const Tensor index = indices({1, 0, 1, 1, 2, 2}, {3, 2});
  const Var base = counted({4, 2});
  CHECK(values_of(scatter_add(base, 0, index, Var(doubles({3, 2}, 1, 1.0, 1.0)))) ==
        std::vector<double>{0, 2, 4, 4, 5, 6, 6, 7});
  CHECK(values_of(base) == values_of(counted({4, 2})));
  check_gradient([&](Tape&, Vars in) { return scatter_add(in[0], 0, index, in[1]); },
                 {doubles({4, 2}, 1), doubles({3, 2}, 2)});
  check_gradient([&](Tape&, Vars in) { return scatter_add(base, 0, index, in[0]); },
                 {doubles({3, 2}, 2)});
  CHECK_ERROR(DTypeError, "scatter_add: base holds f64 and source holds i64",
              scatter_add(base, 0, index, Var(index)));
}

TEST_CASE(
    "cast rounds, converts the gradient back and returns its operand if the dtype is the same") {
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({5}, 1));
  CHECK(shares_memory(cast(x, DType::f64), x));
  const Var narrow = cast(x, DType::bf16);
  CHECK(narrow.dtype() == DType::bf16);
  CHECK(excess(narrow.value(), values_of(x), 0.0, unit_roundoff(DType::bf16)) <= 1.0);
  CHECK_FALSE(cast(x, DType::i64).needs_gradient());
  tape.backward(sum(narrow));
  CHECK(tape.gradient(x).dtype() == DType::f64);
  CHECK(tape.gradient(x).to_doubles() == std::vector<double>(5, 1.0));
}

TEST_CASE("detach shares memory and stops the gradient") {
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({5}, 1));
  CHECK(shares_memory(detach(x), x));
  CHECK_FALSE(detach(x).needs_gradient());
  tape.backward(sum(mul(x, detach(x))));
  CHECK(tape.gradient(x).to_doubles() == values_of(x));  // x^2 would give 2x
  CHECK_ERROR(ShapeError, "detach: x is absent", detach(Var()));
}
