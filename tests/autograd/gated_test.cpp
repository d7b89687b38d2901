
#include "tests/autograd/op_check.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("gated_feed_forward equals two linear layers, gated and a third linear layer") {
  for (Gate form : {Gate::silu, Gate::gelu_tanh, Gate::gelu_erf}) {
    CAPTURE(std::string(name_of(form)));
    const std::vector<Tensor> inputs = {doubles({2, 3, 5}, 1), doubles({7, 5}, 2),
                                        doubles({7, 5}, 3), doubles({4, 7}, 4)};
    const Var x(inputs[0]), gate(inputs[1]), up(inputs[2]), out(inputs[3]);
    const std::vector<double> fused = values_of(gated_feed_forward(x, gate, up, out, form));
    const Var gates = linear(x, gate), ups = linear(x, up);
    const std::vector<double> separate = values_of(linear(gated(gates, ups, form), out));
    CHECK(fused == separate);
    check_gradient(
        [form](Tape&, Vars v) {
          const Var y = gated_feed_forward(v[0], v[1], v[2], v[3], form);
          return sum(y * y);
        },
        inputs);
  }
}

TEST_CASE(
    "gated_feed_forward gives an input the same gradient when the other inputs are constants") {
  const std::vector<Tensor> inputs = {doubles({3, 5}, 1), doubles({7, 5}, 2), doubles({7, 5}, 3),
                                      doubles({4, 7}, 4)};
  Tape all(shared_device());
  std::vector<Var> variables;
  for (const Tensor& input : inputs) variables.push_back(all.variable(input));
  all.backward(sum(gated_feed_forward(variables[0], variables[1], variables[2], variables[3])));
  for (size_t alone = 0; alone < inputs.size(); ++alone) {
    CAPTURE(alone);
    Tape tape(shared_device());
    std::vector<Var> operands;
    for (size_t i = 0; i < inputs.size(); ++i)
      operands.push_back(i == alone ? tape.variable(inputs[i]) : Var(inputs[i]));
    tape.backward(sum(gated_feed_forward(operands[0], operands[1], operands[2], operands[3])));
    CHECK(tape.gradient(operands[alone]).to_doubles() ==
          all.gradient(variables[alone]).to_doubles());
  }
}

TEST_CASE("gated_feed_forward names the operand that does not fit") {
  const Var x(doubles({3, 5}, 1)), gate(doubles({7, 5}, 2)), up(doubles({6, 5}, 3)),
      out(doubles({4, 7}, 4));
  CHECK(message_of<ShapeError>([&] { gated_feed_forward(x, gate, up, out); }) ==
        "gated_feed_forward: up_weight has shape [6, 5]; expected [7, 5]");
  CHECK(
      message_of<ShapeError>([&] { gated_feed_forward(x, gate, gate, up); }) ==
      "gated_feed_forward: out_weight [6, 5] does not match hidden [3, 7]; expected a last axis of "
      "hidden of 5, got 7");
  CHECK(message_of<ShapeError>([&] { gated(gate, up); }) ==
        "gated: up has shape [6, 5]; expected [7, 5]");
}

TEST_CASE("rope passes gradcheck with positions per document and refuses absent positions") {
  const Tensor table = rope_table({.theta = 100.0}, 4, 9, DType::f64, shared_device());
  const Tensor positions =
      Tensor::from(std::vector<int32_t>{0, 1, 2, 0, 1, 8, 7, 0}, {2, 4}, shared_device());
  const std::vector<Tensor> inputs = {doubles({2, 4, 15}, 1), doubles({2, 4, 15}, 2)};
  check_gradient([&](Tape&, Vars v) { return sum(rope(v[0], 3, table, positions) * v[1]); },
                 inputs);
  CHECK(message_of<ShapeError>([&] { rope(inputs[0], 3, table, Tensor()); }) ==
        "rope: positions is absent; expected an i32 tensor [B, T]");
}
