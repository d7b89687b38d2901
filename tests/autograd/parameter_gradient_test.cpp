#include "tests/autograd/fake_source.h"
#include "tests/autograd/op_check.h"
#include "zerograd/autograd/values.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// One unit of bf16 parameters, and the gradients that one loss gave them.
class Bf16Unit {
 public:
  const Parameter& add(const std::string& name, const Shape& shape) {
    return store_.add(unit_, name, shape, Init::normal(0.5f));
  }

  /// `loss` in a recorded pass over the parameters, then backward.
  void run(const std::function<Var(Tape&)>& loss) {
    source_ = std::make_unique<FakeSource>(store_, shared_device(), DType::bf16);
    Tape tape(shared_device(), source_.get());
    Var result;
    {
      Tape::Use use(tape, unit_);
      result = sum(loss(tape));
    }
    tape.backward(result);
  }

  const FakeSource& source() const { return *source_; }

  /// The gradient arrived in f32 and is as close to `expected` as sums in f32 are.
  void check(const Parameter& parameter, const std::vector<double>& expected) const {
    CAPTURE(parameter.name);
    REQUIRE(source_->gradients.contains(&parameter));
    CHECK(source_->gradient_dtypes.at(&parameter) == DType::f32);
    const std::vector<double>& actual = source_->gradients.at(&parameter);
    REQUIRE(actual.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i)
      CHECK(actual[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  }

 private:
  ParameterStore store_;
  const Unit& unit_ = store_.unit("unit");
  std::unique_ptr<FakeSource> source_;
};

Tensor narrow(const Shape& shape, uint64_t seed) {
  return random_tensor(shape, DType::bf16, shared_device(), seed);
}

}  // namespace

TEST_CASE("gradients of bf16 weights and biases are summed and kept in f32") {
  Bf16Unit unit;
  const Parameter& weight = unit.add("weight", {2, 3});
  const Parameter& bias = unit.add("bias", {2});
  const Tensor x = narrow({100, 3}, 1);
  unit.run([&](Tape& tape) {
    const Var w = tape.parameter(weight), b = tape.parameter(bias);
    return linear(Var(x), w, b);
  });
  std::vector<double> columns(3);
  for (size_t i = 0; i < 300; ++i) columns[i % 3] += x.to_doubles()[i];
  unit.check(weight, {columns[0], columns[1], columns[2], columns[0], columns[1], columns[2]});
  unit.check(bias, {100, 100});
}

TEST_CASE("feed_forward gives bf16 parameters the f32 gradients of two linear layers") {
  Bf16Unit unit;
  const Parameter* parameters[] = {&unit.add("fc.weight", {7, 3}), &unit.add("fc.bias", {7}),
                                   &unit.add("out.weight", {2, 7}), &unit.add("out.bias", {2})};
  const Tensor x = narrow({100, 3}, 1);
  const auto run = [&](auto layers) {
    unit.run([&](Tape& tape) {
      std::vector<Var> p;
      for (const Parameter* parameter : parameters) p.push_back(tape.parameter(*parameter));
      return layers(p);
    });
    return unit.source().gradients;
  };
  const auto expected = run([&](const std::vector<Var>& p) {
    const Var hidden = linear(Var(x), p[0], p[1], Activation::gelu_tanh);
    return linear(hidden, p[2], p[3]);
  });
  const auto actual =
      run([&](const std::vector<Var>& p) { return feed_forward(Var(x), p[0], p[1], p[2], p[3]); });
  CHECK(actual == expected);
  for (const Parameter* parameter : parameters)
    CHECK(unit.source().gradient_dtypes.at(parameter) == DType::f32);
}

TEST_CASE("gradients of broadcast bf16 parameters are summed in f32") {
  Bf16Unit unit;
  const Parameter& shift = unit.add("shift", {3});
  const Parameter& factor = unit.add("factor", {1});
  const Tensor x = narrow({1000, 3}, 1);
  unit.run([&](Tape& tape) {
    const Var b = tape.parameter(shift), f = tape.parameter(factor);
    const Var shifted = add(Var(x), b);
    return add(shifted, broadcast_to(f, {1000, 3}));
  });
  unit.check(shift, {1000, 1000, 1000});
  unit.check(factor, {3000});
}

TEST_CASE("gradients of bf16 embedding tables and norm parameters are summed in f32") {
  Bf16Unit unit;
  const Parameter& table = unit.add("table", {4, 2});
  const Parameter& gamma = unit.add("gamma", {2});
  const Parameter& beta = unit.add("beta", {2});
  std::vector<int64_t> ids(1000, 1);
  ids[7] = 3;
  const Tensor x = narrow({1000, 2}, 1);
  const Tensor places = Tensor::from(ids, {1, 1000}, shared_device());
  unit.run([&](Tape& tape) {
    const Var t = tape.parameter(table), g = tape.parameter(gamma), b = tape.parameter(beta);
    const Var rows = embedding(places, t);
    const Var normed = layer_norm(Var(x), g, b);
    return add(rows, reshape(normed, {1, 1000, 2}));
  });
  unit.check(table, {0, 0, 999, 999, 0, 0, 1, 1});
  unit.check(beta, {1000, 1000});
}

TEST_CASE("a parameter gradient that a kernel writes in bf16 is converted to f32") {
  Bf16Unit unit;
  const Parameter& weight = unit.add("weight", {2, 2});
  unit.run([&](Tape& tape) {
    const Var w = tape.parameter(weight);
    return slice(relu(add(permute(w, {1, 0}), 100.0)), 1, 0, 1);
  });
  unit.check(weight, {1, 1, 0, 0});
  unit.run([&](Tape& tape) { return split(tape.parameter(weight), {1, 1}, 1)[1]; });
  unit.check(weight, {0, 1, 0, 1});
}

TEST_CASE("a parameter used twice gets the sum of both gradients") {
  Bf16Unit unit;
  const Parameter& weight = unit.add("weight", {3, 2});
  const Tensor ids = indices({2, 0, 2}, {1, 3}), x = narrow({5, 2}, 1);
  unit.run([&](Tape& tape) {
    const Var w = tape.parameter(weight);
    const Var picked = sum(embedding(ids, w)), projected = sum(linear(Var(x), w));
    return add(picked, projected);
  });
  std::vector<double> columns(2);
  for (size_t i = 0; i < 10; ++i) columns[i % 2] += x.to_doubles()[i];
  unit.check(weight, {1 + columns[0], 1 + columns[1], columns[0], columns[1], 2 + columns[0],
                      2 + columns[1]});
}

TEST_CASE(
    "a gradient is written to the tensor that gradient_place offers, and further uses add to it") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  const Parameter& weight = store.add(unit, "weight", {3, 2}, Init::normal(1.0f));
  const Parameter& shift = store.add(unit, "shift", {2}, Init::normal(1.0f));
  const Tensor ids = indices({2, 0, 2}, {1, 3}), x = narrow({5, 2}, 1);
  std::map<const Parameter*, std::vector<double>> expected;
  for (const bool offered : {false, true}) {
    FakeSource source(store, shared_device(), DType::bf16);
    std::map<const Parameter*, std::byte*> places;
    if (offered)
      for (const Parameter* parameter : unit.parameters) {
        source.places[parameter] = Tensor::empty(parameter->shape, DType::f32, shared_device());
        places[parameter] = source.places[parameter].raw();
      }
    Tape tape(shared_device(), &source);
    Var loss;
    {
      Tape::Use use(tape, unit);
      const Var w = tape.parameter(weight), b = tape.parameter(shift);
      const Var picked = sum(embedding(ids, w)), projected = sum(linear(Var(x), w));
      // Its gradient comes in bf16 and is converted.
      loss = add(sum(mul(b, 2.0)), add(picked, projected));
    }
    tape.backward(loss);
    if (!offered) expected = source.gradients;
    CHECK(source.gradients == expected);
    for (const auto& [parameter, place] : places) {
      CAPTURE(parameter->name);
      CHECK(source.reduced.at(parameter).raw() == place);
    }
  }
}

TEST_CASE(
    "a gradient computed in forward is in the offered tensor and not in the activation store") {
  struct Refusing final : ActivationStore {
    Tensor keep(const Tensor& tensor, Stream&) override {
      kept_weight = kept_weight || tensor.shape() == Shape{4, 2};
      return tensor;
    }
    Tensor fetch(const Tensor& kept, Stream&) override { return kept; }
    bool kept_weight = false;
  };
  ParameterStore store;
  const Unit& unit = store.unit("tied");
  const Parameter& weight = store.add(unit, "weight", {4, 2}, Init::normal(1.0f));
  const Tensor ids = indices({2, 0, 3}, {1, 3}), targets = indices({1, 1, 0}, {1, 3});
  std::vector<double> expected;
  for (const int heads : {1, 2})
    for (const bool offered : {false, true}) {
      CAPTURE(heads);
      FakeSource source(store, shared_device(), DType::bf16);
      const std::byte* place = nullptr;
      if (offered) {
        const PurposeScope purpose(shared_device(), Purpose::gradient);
        source.places[&weight] = Tensor::empty({4, 2}, DType::f32, shared_device());
        place = source.places[&weight].raw();
      }
      Refusing activations;
      Tape tape(shared_device(), &source, TapeMode::record, &activations);
      Var loss;
      {
        Tape::Use use(tape, unit);
        const Var x = embedding(ids, tape.parameter(weight));
        for (int head = 0; head < heads; ++head) {
          const Var own = projection_cross_entropy(x, tape.parameter(weight), targets);
          loss = loss ? add(loss, own) : own;
        }
      }
      CHECK_FALSE(source.places[&weight]);
      tape.backward(loss);
      CHECK_FALSE(activations.kept_weight);
      if (!offered) expected = source.gradients[&weight];
      CHECK(source.gradients[&weight] == expected);
      if (offered && heads == 1) CHECK(source.reduced[&weight].raw() == place);
    }
}

TEST_CASE("an embedding adds its rows to the gradient of a tied head, without a second table") {
  ParameterStore store;
  const Parameter& weight = store.add(store.unit("tied"), "weight", {2000, 64}, Init::normal(1.0f));
  int64_t peak = 0;
  const auto gradient = [&](bool embeds, bool projects) {
    const Device device = Device::cpu();
    const Tensor ids = Tensor::from(std::vector<int64_t>{5, 0, 5, 1999}, {1, 4}, device);
    Values values(store, initial_weights(store, 1), device);
    Tape tape = values.tape();
    const Var w = tape.parameter(weight);
    Var loss;
    if (embeds) loss = sum(gelu(embedding(ids, w)));
    if (projects) {
      const Var own = sum(gelu(linear(Var(Tensor::full({3, 64}, 0.1, DType::f32, device)), w)));
      loss = loss ? add(loss, own) : own;
    }
    device.memory().reset_peaks();
    tape.backward(loss);
    peak = device.memory().peak();
    return values.gradient(weight).to_doubles();
  };
  std::vector<double> sum_of_both = gradient(true, false);
  const std::vector<double> head = gradient(false, true);
  const int64_t peak_of_head = peak;
  for (size_t i = 0; i < head.size(); ++i)
    sum_of_both[i] = static_cast<float>(sum_of_both[i]) + static_cast<float>(head[i]);
  CHECK(gradient(true, true) == sum_of_both);
  CHECK(peak < peak_of_head + weight.shape.numel() * 4 / 2);
}

TEST_CASE("a frozen parameter needs no gradient and gets none") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  const Parameter& weight = store.add(unit, "weight", {2, 3}, Init::normal(1.0f));
  const Parameter& frozen =
      store.add(unit, "frozen", {2, 3}, Init::normal(1.0f), {.decay = false, .trainable = false});
  FakeSource source(store, shared_device());
  Tape tape(shared_device(), &source);
  Var loss;
  {
    Tape::Use use(tape, unit);
    const Var w = tape.parameter(weight), f = tape.parameter(frozen);
    CHECK_FALSE(relu(f).needs_gradient());
    loss = sum(mul(w, f));
  }
  tape.backward(loss);
  CHECK(source.gradients.contains(&weight));
  CHECK_FALSE(source.gradients.contains(&frozen));
}
