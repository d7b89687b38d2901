#include "zerograd/autograd/grad.h"

#include "tests/autograd/op_check.h"
#include "tests/support/planned.h"
#include "zerograd/autograd/values.h"

using namespace zg;
using namespace zg::testing;

namespace {

const GradOptions again{.create_graph = true};

/// sum(x_i^2 x_(i+1)), whose Hessian matrix has 2 x_(i+1) on and 2 x_i beside the diagonal.
Var chain(const Var& x) {
  const int64_t n = x.shape()[0];
  const Var first = slice(x, 0, 0, n - 1);
  return dot(square(first), slice(x, 0, 1, n));
}

/// Two layers with a norm: a critic of rows.
struct Critic {
  ParameterStore store;
  const Unit& unit = store.unit("critic");
  const Parameter& w1 = store.add(unit, "w1", {8, 3}, Init::normal(0.6f));
  const Parameter& b1 = store.add(unit, "b1", {8}, Init::normal(0.3f));
  const Parameter& gamma = store.add(unit, "gamma", {8}, Init::normal(1.0f));
  const Parameter& w2 = store.add(unit, "w2", {1, 8}, Init::normal(0.6f));

  Var operator()(const Var& x) const {
    const Tape tape = x.tape();
    const Tape::Use use(tape, unit);  // at its begin backward gives the gradients away
    const Var w = tape.parameter(w1), b = tape.parameter(b1);
    const Var hidden = linear(x, w, b, Activation::gelu_tanh);
    return linear(rms_norm(hidden, tape.parameter(gamma)), tape.parameter(w2));
  }
  /// The gradient penalty of rows.
  Var penalty(const Var& x) const {
    const Var slope = grad(sum((*this)(x)), x, again);
    return mean(square(sqrt(sum(square(slope), 1)) - 1.0));
  }
};

}  // namespace

TEST_CASE("grad with create_graph gives derivatives of any order") {
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({3}, 1, 0.5, 2.0));
  const std::vector<double> at = values_of(x);
  Var y = sum(x * square(x) * exp(x));
  for (int order = 1; order <= 4; ++order) {
    const Var slope = grad(y, x, again);
    const double n = order;
    CAPTURE(order);
    for (size_t i = 0; i < at.size(); ++i) {
      const double v = at[i];
      const double exact =
          std::exp(v) * (v * v * v + 3 * n * v * v + 3 * n * (n - 1) * v + n * (n - 1) * (n - 2));
      CHECK(values_of(slope)[i] == doctest::Approx(exact).epsilon(1e-12));
    }
    y = sum(slope);
  }
  tape.backward(y);  // the fifth
  const double v = at[0];
  CHECK(tape.gradient(x).to_doubles()[0] ==
        doctest::Approx(std::exp(v) * (v * v * v + 15 * v * v + 60 * v + 60)).epsilon(1e-12));
}

TEST_CASE("grad of values inside a computation, of parameters and of unused inputs") {
  const Critic critic;
  Values values(critic.store, initial_weights(critic.store, 1), shared_device());
  for (const bool create_graph : {true, false}) {
    CAPTURE(create_graph);
    Tape tape = values.tape();
    const Var x = tape.variable(random_tensor({4, 3}, DType::f32, shared_device(), 1));
    const Var unused = tape.variable(random_tensor({2}, DType::f32, shared_device(), 2));
    const Var w2 = tape.parameter(critic.w2);
    const Var scores = critic(x), loss = mean(square(scores));
    const std::vector<double> of_scores = values_of(0.5 * detach(scores));
    const std::vector<Var> slopes =
        grad({&loss, 1}, std::vector{x, scores, w2, unused}, {.create_graph = create_graph});
    CHECK(values.gradients().empty());
    CHECK(excess(slopes[1].value(), of_scores, 1e-6) < 1);
    CHECK(slopes[3].value().to_doubles() == std::vector<double>(2));
    CHECK(slopes[0].needs_gradient() == create_graph);

    Tape other = values.tape();
    const Var same = other.variable(x.value());
    other.backward(mean(square(critic(same))));
    CHECK(excess(slopes[0].value(), other.gradient(same).to_doubles(), 1e-6) < 1);
    CHECK(excess(slopes[2].value(), values.gradient(critic.w2).to_doubles(), 1e-6) < 1);
    values.clear_gradients();
    if (!create_graph)  // a constant, which is not mixed with recorded values unnoticed
      CHECK_ERROR(TapeError, "create_graph", other = Tape(shared_device()),
                  mul(other.variable(x.value()), slopes[0]));
  }
}

TEST_CASE("a gradient penalty has the gradients of central differences, checkpointed as well") {
  const Critic critic;
  const ValuesOptions options{.compute = DType::f64};
  Values values(critic.store, initial_weights(critic.store, 1), shared_device(), options);
  const Tensor x = doubles({4, 3}, 1);
  const auto penalty = [&](bool checkpointed) {
    Tape tape = values.tape();
    const Var in = tape.variable(x);
    Var loss;
    if (checkpointed) {
      const Var y = checkpoint(in, [&](const Var& rows) { return critic(rows); });
      const Var slope = grad(sum(y), in, again);
      loss = mean(square(sqrt(sum(square(slope), 1)) - 1.0));
    } else {
      loss = critic.penalty(in);
    }
    tape.backward(loss);
    return loss.value().item();
  };
  std::map<std::string, std::vector<double>> gradients;
  for (const bool checkpointed : {true, false}) {
    values.clear_gradients();
    penalty(checkpointed);
    for (const auto& [name, gradient] : values.gradients()) {
      if (checkpointed) gradients[name] = gradient.to_doubles();
      CAPTURE(name);
      CHECK(excess(gradient, gradients[name], 1e-13) < 1);
    }
  }
  CHECK(gradients.size() == 4);
  for (const Parameter* parameter : {&critic.w1, &critic.b1, &critic.gamma, &critic.w2}) {
    const std::vector<double> at = values.value(*parameter).to_doubles();
    for (size_t i = 0; i < at.size(); i += 3) {
      const auto moved = [&](double by) {
        std::vector<double> there = at;
        there[i] += by;
        values.set(*parameter, Tensor::from(there, parameter->shape, shared_device()));
        return penalty(false);
      };
      const double numeric = (moved(1e-6) - moved(-1e-6)) / 2e-6;
      CAPTURE(parameter->name);
      CAPTURE(i);
      CHECK(gradients[parameter->name][i] == doctest::Approx(numeric).epsilon(1e-6));
    }
    values.set(*parameter, Tensor::from(at, parameter->shape, shared_device()));
  }
}

TEST_CASE("vjp, jvp and hvp are products with Jacobian and Hessian matrices") {
  Tape tape(shared_device());
  const Tensor matrix = doubles({3, 4}, 1), rows = doubles({5, 3}, 2), tangent = doubles({3, 4}, 3),
               rows_tangent = doubles({5, 3}, 4), cotangent = doubles({5, 4}, 5);
  const FunctionOfVars f = [](std::span<const Var> in) { return zg::tanh(matmul(in[0], in[1])); };
  const Var inputs[] = {tape.constant(rows), matrix};
  const Var slope = 1.0 - square(f(inputs));
  const auto [y, products] = vjp(f, inputs, cotangent);
  CHECK(same_bits(y.value(), f(inputs).value()));
  const Var through = slope * Var(cotangent);
  CHECK(excess(products[0].value(), values_of(matmul(through, transpose(Var(matrix), 0, 1))),
               1e-13) < 1);
  CHECK(excess(products[1].value(), values_of(matmul(transpose(Var(rows), 0, 1), through)), 1e-13) <
        1);
  const Tensor tangents[] = {rows_tangent, tangent};
  const auto [same, product] = jvp(f, inputs, tangents);
  CHECK(same_bits(same.value(), y.value()));
  const Var moved = matmul(Var(rows_tangent), Var(matrix)),
            turned = matmul(Var(rows), Var(tangent));
  CHECK(excess(product.value(), values_of(slope * (moved + turned)), 1e-13) < 1);
  CHECK(product.needs_gradient());

  const FunctionOfVars constant = [&](std::span<const Var>) { return Var(matrix); };
  CHECK(jvp(constant, inputs, tangents).product.value().to_doubles() == std::vector<double>(12));
  CHECK(vjp(constant, inputs, matrix).products[0].value().shape() == rows.shape());

  Tape next(shared_device());
  const Var x = next.variable(doubles({3}, 6));
  const std::vector<double> at = values_of(x), v = {0.5, -1.0, 2.0};
  const Tensor vector = Tensor::from(v, {3}, shared_device());
  const std::vector<double> expected = {2 * at[1] * v[0] + 2 * at[0] * v[1],
                                        2 * at[0] * v[0] + 2 * at[2] * v[1] + 2 * at[1] * v[2],
                                        2 * at[1] * v[1]};
  CHECK(excess(hvp(chain(x), {&x, 1}, {&vector, 1})[0].value(), expected, 1e-14) < 1);
  Tape last(shared_device());
  const Var z = last.variable(vector);
  CHECK(hvp(sum(z), {&z, 1}, {&vector, 1})[0].value().to_doubles() == std::vector<double>(3));
}

TEST_CASE("a gradient of another tape serves as a variable and as a vector") {
  Tensor vector;
  {
    Tape first(shared_device());
    const Var w = first.variable(doubles({3}, 1));
    vector = grad(sum(square(w)), w).value();
  }
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({3}, 2)), v = tape.variable(vector);
  const FunctionOfVars f = [](std::span<const Var> in) { return square(in[0]); };
  const std::vector<double> expected = values_of(2.0 * detach(x) * detach(v));
  CHECK(excess(jvp(f, {&x, 1}, {&vector, 1}).product.value(), expected, 1e-15) < 1);
  CHECK(excess(vjp(f, {&x, 1}, vector).products[0].value(), expected, 1e-15) < 1);
  CHECK(excess(grad(sum(square(v)), v).value(), values_of(2.0 * detach(v)), 1e-15) < 1);
}

TEST_CASE(
    "a fused op without a second derivative throws alone or beside others, if it is reached") {
  Tape tape(shared_device());
  const Var x = tape.variable(doubles({1, 2, 4, 4}, 1));
  const Var attended = sum(attention(x, x, x, {})), other = sum(square(x));
  for (const Var& loss : {attended, attended + other}) {
    CHECK_ERROR(Unsupported, "grad: attention has no second derivative", grad(loss, x, again));
    CHECK_ERROR(Unsupported, "try matmul(softmax(mul(matmul(q, transpose(k, -1, -2)), scale)), v)",
                grad(loss, x, again));
  }
  CHECK(excess(grad(other, x, again).value(), values_of(2.0 * x), 1e-15) < 1);  // the tape goes on
  // Beside the attention, which does not depend on z.
  const Var z = tape.variable(doubles({1}, 2));
  CHECK(grad(attended + sum(square(z)), z, again).value().item() == 2 * z.value().item());
  CHECK(grad(attended, x).value().shape() == x.shape());  // once, by backward
}

TEST_CASE("derivatives of a power at 0 are finite when its exponent has reached 0") {
  for (int exponent = 0; exponent < 3; ++exponent) {
    Tape tape(shared_device());
    const Var x = tape.variable(Tensor::zeros({2}, DType::f64, shared_device()));
    Var y = sum(pow(x, double(exponent)));
    for (int order = 1; order < 5; ++order) {
      const Var slope = grad(y, x, {.create_graph = true});
      const double expected = order == exponent ? order : 0;  // order! of 1 and 2
      CHECK(slope.value().to_doubles() == std::vector<double>(2, expected));
      y = sum(slope);
      if (!y.needs_gradient()) break;
    }
  }
}

TEST_CASE("wrong arguments of grad are errors") {
  Tape tape(shared_device()), other(shared_device());
  const Var x = tape.variable(doubles({3}, 1)), y = other.variable(doubles({3}, 2));
  const Var constant = tape.constant(doubles({3}, 3));
  CHECK_ERROR(TapeError, "the outputs are constants", grad(sum(constant), x));
  CHECK_ERROR(TapeError, "input 0 needs no gradient", grad(sum(x), constant, again));
  CHECK_ERROR(TapeError, "another tape than the inputs", grad(sum(x), y, again));
  CHECK_ERROR(TapeError, "input 1 needs no gradient on the tape of input 0",
              grad({&x, 1}, std::vector{x, y}, again));
  CHECK_ERROR(ShapeError, "output 0 has shape [3]; expected one element", grad(x, x));
  CHECK_ERROR(ShapeError, "cotangent 0 is f64 [2]; expected f64 [3]",
              grad(x, x, {.cotangents = {doubles({2}, 4)}}));
  CHECK_ERROR(ShapeError, "2 cotangents for 1 outputs", grad(x, x, {.cotangents = {x, x}}));
  CHECK_ERROR(TapeError, "outside of the segments of checkpoint()",
              checkpoint(x, [](const Var& in) { return grad(sum(in), in); }));
  const Var early = sum(x);
  CHECK(values_of(grad(early, x)) == std::vector<double>(3, 1.0));
  CHECK_ERROR(TapeError, "grad: backward has already run", grad(early, x));
}

TEST_CASE("second derivatives of ops with a steep formula stay finite far from 0") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    Tape tape(shared_device());
    const Tensor far = Tensor::full({}, 1e4, dtype, shared_device());
    const Var x = tape.variable(far), low = tape.variable(neg(far).value());
    for (const Var& at : {x, low}) {
      const Var values[] = {silu(at),       softplus(at), sigmoid(at), logaddexp(at, neg(at)),
                            gelu(at),       zg::tanh(at), zg::erf(at), logsigmoid(at),
                            hard_swish(at), elu(at)};
      for (const Var& y : values) {
        const Var slope = grad(y, at, again);
        if (!slope.needs_gradient()) continue;
        const double second = grad(slope, at, again).value().item();
        CAPTURE(name_of(dtype));
        CAPTURE(at);
        CAPTURE(&y - values);
        CHECK(second == doctest::Approx(0.0));
      }
    }
  }
}

TEST_CASE("gradients of a penalty are near f64's in narrower dtypes") {
  const Critic critic;
  std::vector<double> exact;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    const ValuesOptions options{.compute = dtype};
    Values values(critic.store, initial_weights(critic.store, 1), shared_device(), options);
    Tape tape = values.tape();
    tape.backward(critic.penalty(tape.variable(random_tensor({4, 3}, dtype, shared_device(), 1))));
    const Tensor gradient = values.gradient(critic.w1);
    if (exact.empty()) exact = gradient.to_doubles();
    CAPTURE(name_of(dtype));
    CHECK(excess(gradient, exact, dtype == DType::bf16 ? 0.05 : 1e-6) < 1);
  }
}

TEST_CASE("a plan counts the bytes of gradients of gradients") {
  check_planned(1, [](Communicator&, const Device& device) {
    const Critic critic;
    Values values(critic.store, initial_weights(critic.store, 1), device);
    Tape tape = values.tape();
    const Var x = tape.variable(Tensor::full({4, 3}, 0.5, DType::f32, device));
    tape.backward(critic.penalty(x));
    Tape second = values.tape();
    const Var w = second.parameter(critic.w1);
    const Tensor vector = Tensor::full({8, 3}, 1.0, DType::f32, device);
    hvp(mean(square(critic(second.constant(x.value())))), {&w, 1}, {&vector, 1});
  });
}
