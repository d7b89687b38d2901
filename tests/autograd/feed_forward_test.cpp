#include <algorithm>
#include <map>
#include <memory>

#include "tests/autograd/fake_source.h"
#include "tests/autograd/op_check.h"
#include "zerograd/runtime/trace.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr int operand_count = 5;
constexpr unsigned every_operand = (1u << operand_count) - 1;
enum Input : unsigned { x_operand, fc_weight, fc_bias, out_weight, out_bias };

/// x [2, 3, 5], a hidden layer of 7, y [2, 3, 4].
const Shape shapes[operand_count] = {{2, 3, 5}, {7, 5}, {7}, {4, 7}, {4}};

using Layer = Var (*)(Vars operands, Activation form);
Var one_op(Vars in, Activation form) {
  return feed_forward(in[0], in[1], in[2], in[3], in[4], form);
}
Var two_ops(Vars in, Activation form) {
  const Var hidden = linear(in[0], in[1], in[2], form);
  return linear(hidden, in[3], in[4]);
}

std::vector<Tensor> random_operands(DType dtype, const Device& device) {
  std::vector<Tensor> operands;
  for (const Shape& shape : shapes)
    operands.push_back(random_tensor(shape, dtype, device, operands.size() + 1));
  return operands;
}

/// Those of `trained` on the tape, the others constants; those not of `given` absent.
std::vector<Var> on(Tape& tape, const std::vector<Tensor>& operands, unsigned trained,
                    unsigned given = every_operand) {
  std::vector<Var> vars;
  for (unsigned i = 0; i < operand_count; ++i) {
    if (!(given >> i & 1u))
      vars.emplace_back();
    else
      vars.push_back(trained >> i & 1u ? tape.variable(operands[i]) : Var(operands[i]));
  }
  return vars;
}

/// The result and the gradients of every operand given.
std::vector<Tensor> pass(Layer layer, Activation form, const std::vector<Tensor>& operands,
                         unsigned given) {
  Tape tape(operands[0].device());
  const std::vector<Var> vars = on(tape, operands, given, given);
  const Var y = layer(vars, form);
  const Tensor dy = random_tensor(y.shape(), y.dtype(), y.device(), 9);
  tape.backward(std::span(&y, 1), std::span(&dy, 1));
  std::vector<Tensor> results{y.value()};
  for (const Var& var : vars)
    if (var) results.push_back(tape.gradient(var));
  return results;
}

/// How often each kernel runs in backward when these operands take a gradient.
std::map<std::string, int> kernels_of_backward(unsigned trained) {
  const Device device = Device::cpu(0, {.threads = 1});
  Tape tape(device);
  const Var y =
      one_op(on(tape, random_operands(DType::f32, device), trained), Activation::gelu_tanh);
  const Tensor dy = random_tensor(y.shape(), DType::f32, device, 9);
  const auto trace = std::make_shared<Trace>();
  device.set_trace(trace);
  tape.backward(std::span(&y, 1), std::span(&dy, 1));
  std::map<std::string, int> counts;
  for (const Trace::Span& span : trace->spans()) ++counts[span.name];
  counts.erase("feed_forward");  // the op around them
  return counts;
}

}  // namespace

TEST_CASE("feed_forward is bit-identical to two linear layers, forward and backward") {
  const unsigned no_fc_bias = every_operand & ~(1u << fc_bias);
  const unsigned no_out_bias = every_operand & ~(1u << out_bias);
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      for (Activation form : {Activation::gelu_tanh, Activation::gelu_erf})
        for (unsigned given : {every_operand, no_fc_bias, no_out_bias, no_fc_bias & no_out_bias}) {
          INFO(level_of(device), ", ", name_of(dtype), ", given ", given);
          const std::vector<Tensor> operands = random_operands(dtype, device);
          const auto actual = pass(one_op, form, operands, given);
          const auto expected = pass(two_ops, form, operands, given);
          REQUIRE(actual.size() == expected.size());
          for (size_t i = 0; i < actual.size(); ++i) {
            CAPTURE(i);
            CHECK(same_bits(actual[i], expected[i]));
          }
        }
}

TEST_CASE("feed_forward passes gradcheck whichever operands are frozen") {
  const std::vector<Tensor> operands = random_operands(DType::f64, shared_device());
  for (unsigned trained = 1; trained <= every_operand; ++trained) {
    CAPTURE(trained);
    std::vector<Tensor> inputs;
    for (unsigned i = 0; i < operand_count; ++i)
      if (trained >> i & 1u) inputs.push_back(operands[i]);
    check_gradient(
        [&](Tape&, Vars in) {
          std::vector<Var> all;
          size_t next = 0;
          for (unsigned i = 0; i < operand_count; ++i)
            all.push_back(trained >> i & 1u ? in[next++] : Var(operands[i]));
          return one_op(all, trained % 2 ? Activation::gelu_tanh : Activation::gelu_erf);
        },
        inputs);
  }
  check_gradient([](Tape&, Vars in) { return feed_forward(in[0], in[1], {}, in[2], {}); },
                 {operands[x_operand], operands[fc_weight], operands[out_weight]});
  check_gradient([](Tape&, Vars in) { return feed_forward(in[0], in[1], {}, in[1], {}); },
                 {doubles({2, 3}, 1), doubles({3, 3}, 2)});
}

TEST_CASE("feed_forward runs in backward only the kernels that the trained operands need") {
  for (unsigned trained = 1; trained <= every_operand; ++trained) {
    CAPTURE(trained);
    const auto is = [&](Input operand) { return static_cast<int>(trained >> operand & 1u); };
    const int hidden = is(x_operand) | is(fc_weight) | is(fc_bias);
    std::map<std::string, int> expected{
        {"matmul", hidden + is(x_operand) + is(fc_weight) + is(out_weight)},
        // A bias's gradient comes with the product of its weight's, the activation that
        // out_weight's gradient reads with gelu_backward.
        {"reduce", (is(fc_bias) & !is(fc_weight)) + (is(out_bias) & !is(out_weight))},
        {"gelu_backward", hidden}};
    std::erase_if(expected, [](const auto& entry) { return entry.second == 0; });
    CHECK(kernels_of_backward(trained) == expected);
  }
}

TEST_CASE("feed_forward acquires in backward only the weights that a gradient passes through") {
  for (const bool trains_x : {false, true})
    for (const bool trains_fc : {false, true}) {
      ParameterStore store;
      const Unit& first = store.unit("fc");
      const Unit& second = store.unit("out");
      const Parameter& fc = store.add(first, "fc", shapes[fc_weight], Init::normal(1.0f),
                                      {.decay = false, .trainable = trains_fc});
      const Parameter& out = store.add(second, "out", shapes[out_weight], Init::normal(1.0f));
      FakeSource source(store, shared_device());
      Tape tape(shared_device(), &source);
      const Tensor values = doubles(shapes[x_operand], 1);
      Var loss;
      {
        const Tape::Use use_of_fc(tape, first), use_of_out(tape, second);
        const Var x = trains_x ? tape.variable(values) : Var(values);
        loss = sum(feed_forward(x, tape.parameter(fc), {}, tape.parameter(out), {}));
      }
      source.log.clear();
      tape.backward(loss);
      const auto reads = [&](const char* call) {
        return std::ranges::count(source.log, call) == 1;
      };
      INFO("trains x ", trains_x, ", trains fc ", trains_fc);
      CHECK(reads("acquire fc") == trains_x);
      CHECK(reads("acquire out") == (trains_x || trains_fc));
    }
}

TEST_CASE(
    "feed_forward keeps its input and one hidden tensor for backward, less if operands are "
    "frozen") {
  const Device device = Device::cpu();
  constexpr int64_t rows = 64, width = 64, hidden = 256, unit = rows * width * 4;
  const auto zeros = [&](const Shape& shape) { return Tensor::zeros(shape, DType::f32, device); };
  struct Bytes {
    int64_t kept, most;  // more in backward than what was kept
  };
  const auto measure = [&](unsigned trained) -> Bytes {
    Tape tape(device);
    const std::vector<Tensor> operands{zeros({rows, width}), zeros({hidden, width}),
                                       zeros({hidden}), zeros({width, hidden}), zeros({width})};
    std::vector<Var> vars = on(tape, operands, trained);
    const int64_t before = device.memory().live();
    if (trained >> x_operand & 1u) vars[0] = mul(vars[0], 2.0);
    const Var y = one_op(vars, Activation::gelu_tanh);
    const int64_t kept = device.memory().live() - before;
    const Tensor dy = Tensor::full(y.shape(), 1.0, DType::f32, device);
    const int64_t live = device.memory().live();
    device.memory().reset_peaks();
    {
      const PhaseScope phase(device, "backward");
      tape.backward(std::span(&y, 1), std::span(&dy, 1));
    }
    // The scratch of products is none of it: how much they take depends on the level.
    int64_t most = 0;
    for (const MemoryTracker::Row& row : device.memory().rows())
      if (row.phase == "backward")
        most = row.peak - row.live[static_cast<size_t>(Purpose::workspace)] - live;
    return {kept / unit, most / unit};
  };
  const unsigned inner = 1u << x_operand | 1u << fc_weight;
  // The operand, the sum of the hidden layer (4) and y.
  CHECK(measure(inner | 1u << out_weight).kept == 6);
  CHECK(measure(inner).kept == 6);
  // Nothing is read but the sum or, for out_weight alone, its activation.
  CHECK(measure(1u << fc_bias).kept == 5);
  CHECK(measure(1u << out_weight).kept == 5);
  CHECK(measure(1u << out_bias).kept == 1);
  // A weight's gradient (4) and one tensor of the hidden layer (4) at a time; before fc_weight's
  // there are out_weight's and the gradient of x.
  CHECK(measure(inner | 1u << out_weight).most == 4 + 4 + 4 + 1);
  CHECK(measure(1u << out_weight).most == 4);
}

TEST_CASE("feed_forward refuses operands that do not fit") {
  const Var x(doubles({8, 3}, 1)), fc(doubles({7, 3}, 2)), out(doubles({4, 7}, 3));
  CHECK(message_of<ShapeError>([&] { feed_forward(x, out, {}, out, {}); }) ==
        "feed_forward: fc_weight [4, 7] does not match x [8, 3]; expected a last axis of x of 7, "
        "got 3");
  CHECK(message_of<ShapeError>([&] { feed_forward(x, fc, {}, fc, {}); }) ==
        "feed_forward: out_weight [7, 3] does not match hidden [8, 7]; expected a last axis of "
        "hidden of 3, got 7");
  CHECK_ERROR(ShapeError, "feed_forward: fc_bias has shape [7, 3]; expected [7]",
              feed_forward(x, fc, fc, out, {}));
  CHECK_ERROR(ShapeError, "feed_forward: out_bias has shape [4, 7]; expected [4]",
              feed_forward(x, fc, {}, out, out));
  CHECK_ERROR(ShapeError, "feed_forward: fc_weight is absent; expected a tensor",
              feed_forward(x, {}, {}, out, {}));
  CHECK_ERROR(
      DTypeError,
      "feed_forward: hidden holds f64 and out_weight holds bf16; expected one dtype; try cast",
      feed_forward(x, fc, {}, cast(out, DType::bf16), {}));
  CHECK(message_of<ConfigError>([&] { feed_forward(x, fc, {}, out, {}, Activation::none); }) ==
        "feed_forward: the activation is none; expected gelu_tanh or gelu_erf");
}
