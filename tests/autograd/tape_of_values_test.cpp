// Values know their tape, and the tape holds the settings of a pass.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/autograd/fake_source.h"
#include "tests/autograd/op_check.h"
#include "tests/support/error_message.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct Depth {
  int value = 0;
};

bool is_on(const Var& x, const Tape& tape) {
  const Tape::With mark(tape, Depth{77});
  return x.tape().get<Depth>().value == 77;
}

Tensor ones(const Shape& shape, DType dtype = DType::f32) {
  return Tensor::full(shape, 1.0, dtype, shared_device());
}

}  // namespace

TEST_CASE("every value that an op computes keeps the tape of its operands, constants too") {
  for (const TapeMode mode : {TapeMode::record, TapeMode::inference}) {
    const Tape tape(shared_device(), nullptr, mode);
    const Tensor ids = ones({2, 3}, DType::i64), row = ones({6}), square = ones({6, 6});
    for (const bool is_variable : {false, true}) {
      CAPTURE(is_variable);
      const auto on_tape = [&](const Tensor& x) {
        return is_variable ? tape.variable(x) : tape.constant(x);
      };
      const Var x = on_tape(ones({2, 3, 6})), matrix = on_tape(square);
      const Var parts[] = {x, ones({2, 3, 6})};
      const NormedSum sums[] = {add_layer_norm(x, ones({2, 3, 6}), row, row),
                                layer_norm_of_sum(x, ones({2, 3, 6}), row, row),
                                rms_norm_of_sum(x, ones({2, 3, 6}), row)};
      std::vector<std::pair<std::string, Var>> made = {
          {"add", x + 1.0},
          {"mul", ones({2, 3, 6}) * x},
          {"div", 1.0 / x},
          {"pow", pow(x, 2.0)},
          {"where", where(x > 0.0, x, x)},
          {"masked_fill", masked_fill(ones({2, 3, 6}), x > 0.0, 2.0)},
          {"clamp", clamp(x, 0.0, 2.0)},
          {"equal", x == 1.0},
          {"less", ones({2, 3, 6}) < x},
          {"exp", exp(x)},
          {"gelu", gelu(x)},
          {"sum", sum(x)},
          {"max", max(x, {1})},
          {"var", var(x)},
          {"logsumexp", logsumexp(x)},
          {"argmax", argmax(x)},
          {"topk", topk(x, 2).values},
          {"sort", sort(x).values},
          {"cummax", cummax(x, 1).values},
          {"cummin", cummin(x, 1).values},
          {"cumprod", cumprod(x, 1)},
          {"slice with steps", slice(x, {{}, {.step = 2}})},
          {"slice_scatter", slice_scatter(x, ones({2, 1, 6}), {{}, {.begin = 2}})},
          {"index_add", index_add(x, 0, ones({1}, DType::i64), ones({1, 3, 6}))},
          {"masked_select", masked_select(x, x > 0.0)},
          {"softmax", softmax(x)},
          {"reshape", reshape(x, {6, 6})},
          {"permute", permute(x, {2, 0, 1})},
          {"slice", slice(x, 1, 1, 2)},
          {"concat", concat(parts, 1)},
          {"stack", stack(parts, 1)},
          {"repeat", repeat(x, {1, 2, 1})},
          {"pad", pad(x, 1, 1, 1)},
          {"cumsum", cumsum(x, 1)},
          {"tril", tril(x)},
          {"split", split(x, std::vector<int64_t>{1, 2}, 1)[1]},
          {"broadcast_to", broadcast_to(x, {2, 2, 3, 6})},
          {"gather", gather(x, 0, ones({1, 1, 1}, DType::i64))},
          {"scatter_add", scatter_add(x, 0, ones({1, 1, 1}, DType::i64), ones({1, 1, 1}))},
          {"cast", cast(x, DType::bf16)},
          {"cast to integers", cast(x, DType::i32)},
          {"detach", detach(x)},
          {"matmul", matmul(x, matrix)},
          {"linear", linear(ones({2, 6}), matrix)},
          {"feed_forward", feed_forward(x, square, row, square, row)},
          {"gated", gated(x, x)},
          {"gated_feed_forward", gated_feed_forward(x, square, square, square)},
          {"layer_norm", layer_norm(x, row, row)},
          {"rms_norm", rms_norm(x, row)},
          {"embedding", embedding(ids, matrix)},
          {"dropout", dropout(x, 0.5f, {})},
          {"dropout of none", dropout(x, 0.0f, {})},
          {"rope", rope(x, 3, rope_table({}, 2, 3, DType::f32, shared_device()))},
          {"attention", attention(concat(std::vector<Var>{x, x, x}, 2), 3)},
          {"cross_entropy", cross_entropy(x, ids)},
          {"smoothed cross_entropy", cross_entropy(x, ids, {.label_smoothing = 0.1})},
          {"projection_cross_entropy", projection_cross_entropy(x, square, ids)},
          {"binary_cross_entropy", binary_cross_entropy(x, ones({2, 3, 6}))},
          {"kl_divergence", kl_divergence(x, ones({2, 3, 6}))},
          {"mse", mse(x, ones({2, 3, 6}))}};
      for (const NormedSum& sum : sums) {
        made.emplace_back("the sum of a norm", sum.sum);
        made.emplace_back("the norm of a sum", sum.normed);
      }
      for (const auto& [name, value] : made) CHECK_MESSAGE(is_on(value, tape), name);
    }
  }
}

TEST_CASE("a value of two tapes is on the open one, or on that whose operand has a gradient") {
  std::optional<Tape> gone(std::in_place, shared_device(), nullptr, TapeMode::inference);
  const Var old = gone->constant(ones({2}));
  gone.reset();
  Tape tape(shared_device());
  const Tape other(shared_device(), nullptr, TapeMode::inference);
  const Var constant = tape.constant(ones({2})), variable = tape.variable(ones({2})),
            foreign = other.constant(ones({2}));
  CHECK(is_on(old + constant, tape));
  CHECK(is_on(constant * old, tape));
  CHECK(is_on(foreign * variable, tape));
  CHECK(
      contains(message_of<TapeError>([&] { (foreign + constant).tape(); }), "values of two tapes"));
  CHECK(contains(message_of<TapeError>([&] { (old + 1.0).tape(); }), "a value whose Tape is gone"));
  tape.backward(sum(foreign * variable));
  CHECK(tape.gradient(variable).to_doubles() == std::vector<double>{1, 1});
  const Var moved = constant + 1.0;  // a constant after backward
  CHECK(moved.value().to_doubles() == std::vector<double>{2, 2});
  Tape next(shared_device());
  const Var on_next = next.constant(ones({2}));
  tape = std::move(next);
  CHECK(is_on(on_next, tape));
  CHECK(contains(message_of<TapeError>([&] { constant.tape(); }), "a value whose Tape is gone"));
}

TEST_CASE("settings of a tape nest, and a recomputed segment has those of its call") {
  Tape tape(shared_device());
  const Var x = tape.variable(ones({2}));
  const auto depth = [](const Var& y) { return y.tape().get<Depth>().value; };
  CHECK(depth(x) == 0);
  std::vector<int> seen;
  const auto segment = [&](const Var& in) {
    const int before = depth(in);
    const Tape::With inside(in.tape(), Depth{before + 1});
    seen.insert(seen.end(), {before, depth(in)});
    return in * 2.0;
  };
  Var y;
  {
    const Tape::With outer(tape, Depth{1});
    CHECK(depth(x) == 1);
    {
      const Tape::With inner(tape, Depth{5});
      CHECK(depth(x) == 5);
      y = checkpoint(x, segment);
    }
    CHECK(depth(x) == 1);
    y = checkpoint(y, segment);
  }
  CHECK(depth(y) == 0);
  const Tape::With later(tape, Depth{9});
  tape.backward(sum(y));
  CHECK(seen == std::vector<int>{5, 6, 1, 2, 1, 2, 5, 6});
  CHECK(tape.gradient(x).to_doubles() == std::vector<double>{4, 4});
}

TEST_CASE("settings of a tape may be closed in any order") {
  Tape tape(shared_device());
  const Var x = tape.variable(ones({2}));
  const auto depth = [&] { return x.tape().get<Depth>().value; };
  std::optional<Tape::With> first, second, third;
  first.emplace(tape, Depth{1});
  second.emplace(tape, Depth{2});
  third.emplace(tape, Depth{3});
  second.reset();
  CHECK(depth() == 3);
  first.reset();
  CHECK(depth() == 3);
  second.emplace(tape, Depth{4});
  third.reset();
  CHECK(depth() == 4);
  second.reset();
  CHECK(depth() == 0);
}

TEST_CASE("a constant of the outer tape that a segment captures does not change its tape") {
  Tape tape(shared_device());
  const Var x = tape.variable(ones({2})), scale = tape.constant(ones({2})) * 3.0;
  std::vector<bool> on_inner;
  const Var y = checkpoint(tape, {x, scale}, [&](Tape& on, std::span<const Var> in) {
    on_inner.push_back(is_on(scale * in[1], on) && is_on(in[1] * scale, on));
    return scale * in[0];
  });
  tape.backward(sum(y));
  CHECK(on_inner == std::vector<bool>{true, true});
  CHECK(tape.gradient(x).to_doubles() == std::vector<double>{3, 3});
}
