#include "zerograd/models/nn.h"

#include <new>

#include "tests/autograd/op_check.h"
#include "tests/support/error_message.h"
#include "tests/support/normal_weights.h"

// Layers as a model of one's own uses them: names, gradients, generation with a cache, and errors.
using namespace zg;
using namespace zg::testing;

namespace {

struct OwnDecoder {
  ParameterStore store;
  const Unit& unit = store.unit("model");
  nn::Embedding tokens{store, unit, "tokens", {.tokens = 11, .width = 8}};
  std::vector<nn::Attention> attention;
  nn::Norm norm{store, unit, "norm", {.width = 8, .kind = nn::NormKind::rms}};
  nn::Mlp mlp{store, unit, "mlp", {.width = 8, .hidden = 12, .kind = nn::MlpKind::gated_silu}};

  OwnDecoder() {
    for (int64_t layer = 0; layer < 2; ++layer)
      attention.emplace_back(
          store, unit, "attention." + std::to_string(layer),
          nn::AttentionConfig{.width = 8, .heads = 4, .kv_heads = 2, .rope = RopeOptions()}, layer);
  }
  Var hidden(const nn::Pass& pass, const Tensor& ids) const {
    Var x = tokens(pass, ids);
    for (const nn::Attention& layer : attention) x += layer(pass, norm(pass, x));
    return x + mlp(pass, x);
  }
  Var logits(const nn::Pass& pass, const Tensor& ids) const {
    return tokens.logits(pass, hidden(pass, ids));
  }
};

const Tensor text = indices({3, 1, 4, 1, 5, 9}, {1, 6});

}  // namespace

TEST_CASE("nn layers begin their parameters' names with the name of the layer") {
  const OwnDecoder model;
  std::vector<std::string> names;
  for (const auto& parameter : model.store.parameters()) names.push_back(parameter->name);
  CHECK(names[0] == "tokens.weight");
  CHECK(std::count(names.begin(), names.end(), "attention.1.k_proj.weight") == 1);
  CHECK(std::count(names.begin(), names.end(), "mlp.gate_proj.weight") == 1);
}

TEST_CASE("a tied head's loss is cross_entropy of its logits") {
  const OwnDecoder model;
  Values values(model.store, normal_weights(model.store, 0.3f), shared_device(),
                {.compute = DType::f64});
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Tape::Use use(tape, model.unit);
  const nn::Pass pass{tape};
  const Var x = model.hidden(pass, text);
  const Tensor targets = indices({1, 4, 1, 5, 9, 2}, {1, 6});
  const double expected = cross_entropy(model.tokens.logits(pass, x), targets).value().item();
  CHECK(model.tokens.loss(pass, x, targets).value().item() == doctest::Approx(expected));
}

TEST_CASE("logits of tokens fed through a key-value cache match those of the whole text") {
  const OwnDecoder model;
  Values values(model.store, normal_weights(model.store, 0.3f), shared_device(),
                {.compute = DType::f64});
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Tape::Use use(tape, model.unit);
  const std::vector<double> whole = values_of(model.logits(nn::Pass{tape}, text));
  nn::KeyValueCache cache(2, 6);
  std::vector<double> continued;
  for (const int64_t tokens : {3, 1, 2}) {
    const nn::Pass pass{.tape = tape, .cache = &cache};
    const int64_t begin = cache.length();
    const Tensor next = text.view({6}).slice(begin, begin + tokens).view({1, tokens});
    const std::vector<double> some = values_of(model.logits(pass, next));
    continued.insert(continued.end(), some.begin(), some.end());
    cache.advance(tokens);
  }
  REQUIRE(continued.size() == whole.size());
  for (size_t i = 0; i < whole.size(); ++i) CHECK(continued[i] == doctest::Approx(whole[i]));
}

TEST_CASE("a key-value cache that does not fit the pass is refused with its sizes") {
  const OwnDecoder model;
  Values values(model.store, normal_weights(model.store, 0.3f), shared_device(),
                {.compute = DType::f64});
  const auto message = [&](TapeMode mode, nn::KeyValueCache& cache, const Tensor& ids) {
    Tape tape(shared_device(), &values, mode);
    const Tape::Use use(tape, model.unit);
    const nn::Pass pass{.tape = tape, .cache = &cache};
    return message_of<ConfigError>([&] { model.logits(pass, ids); });
  };
  nn::KeyValueCache small(2, 4), few(1, 9), used(2, 9);
  CHECK(contains(message(TapeMode::record, used, text), "expected a tape in inference mode"));
  CHECK(contains(message(TapeMode::inference, small, text),
                 "6 more tokens, after 0 of 4 positions; expected at most 4 more"));
  CHECK(contains(message(TapeMode::inference, few, text),
                 "attention layer 1 of a cache for 1 layers"));
  CHECK(message(TapeMode::inference, used, text) == "nothing was thrown");
  CHECK(contains(message(TapeMode::inference, used, indices({1, 2}, {2, 1})),
                 "a pass with 2 rows after passes with 1 rows"));
  CHECK(contains(message_of<ConfigError>([&] { used.advance(10); }),
                 "advance by 10 positions; the cache holds 0 and has room for 9 in all"));
}

TEST_CASE(
    "attention with a key-value cache refuses document starts and attention to later tokens") {
  ParameterStore store;
  const Unit& unit = store.unit("model");
  const nn::Attention forward(store, unit, "forward", {.width = 8, .heads = 2}, 0);
  const nn::Attention both(store, unit, "both", {.width = 8, .heads = 2, .causal = false}, 0);
  Values values(store, normal_weights(store, 0.3f), shared_device(), {.compute = DType::f64});
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Tape::Use use(tape, unit);
  nn::KeyValueCache cache(1, 9);
  const Var x(random_tensor({1, 3, 8}, DType::f64, shared_device(), 1));
  const auto message = [&](const nn::Attention& attention, const Tensor& starts) {
    const nn::Pass pass{.tape = tape, .starts = starts, .cache = &cache};
    return message_of<ConfigError>([&] { attention(pass, x); });
  };
  const std::string expected = "expected causal true and no starts, got ";
  CHECK(contains(message(forward, indices({0, 0, 2}, {1, 3})), expected + "starts"));
  CHECK(contains(message(both, {}), expected + "causal false"));
  CHECK(message(forward, {}) == "nothing was thrown");
}

TEST_CASE("layers without parameters or sizes are refused by name") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  Values values(store, normal_weights(store, 0.3f), shared_device(), {.compute = DType::f64});
  Tape tape(shared_device(), &values, TapeMode::inference);
  const nn::Pass pass{tape};
  const Var x(doubles({1, 2, 4}, 1));
  const auto refuses = [](const std::string& words, const std::function<void()>& f) {
    CHECK(contains(message_of<ConfigError>(f), words));
  };
  refuses("linear: the layer has no parameters", [&] { nn::Linear()(pass, x); });
  refuses("norm: the layer has no parameters", [&] { nn::Norm()(pass, x); });
  refuses("mlp: the layer has no parameters", [&] { nn::Mlp()(pass, x); });
  refuses("attention: the layer has no parameters", [&] { nn::Attention()(pass, x); });
  refuses("embedding: the layer has no parameters", [&] { nn::Embedding()(pass, text); });
  refuses("linear 'l': out is 0; expected 1 or more",
          [&] { nn::Linear(store, unit, "l", {.in = 4}); });
  refuses("norm 'n': width is 0", [&] { nn::Norm(store, unit, "n", {}); });
  refuses("mlp 'm': width is 0", [&] { nn::Mlp(store, unit, "m", {}); });
  refuses("embedding 'e': tokens is 0", [&] { nn::Embedding(store, unit, "e", {.width = 4}); });
  refuses("attention", [&] { nn::Attention(store, unit, "a", {.heads = 2}); });
}

TEST_CASE("a checkpointed segment gets a copy of its Pass, and a Pass that is gone is an error") {
  const OwnDecoder model;
  Values values(model.store, normal_weights(model.store, 0.3f), shared_device(),
                {.compute = DType::f64});
  const auto gradient_of = [&](const std::function<Var(Tape&, const Var&)>& body) {
    Tape tape(shared_device(), &values);
    const Var x = tape.variable(randn({1, 6, 8}, 7, "x", DType::f64, shared_device()));
    tape.backward(sum(body(tape, x)));
    return values_of(tape.gradient(x));
  };
  const auto run = [&model](const nn::Pass& pass, std::span<const Var> in) {
    const Tape::Use use(pass.tape, model.unit);
    return pass.drop(model.mlp(pass, in[0]), 5);
  };
  const std::vector<double> expected = gradient_of([&](Tape& tape, const Var& x) {
    return run(nn::Pass{.tape = tape, .dropout = 0.5f}, {&x, 1});
  });
  const std::vector<double> got = gradient_of([&](Tape& tape, const Var& x) {
    const nn::Pass local{.tape = tape, .dropout = 0.5f};  // gone when backward runs
    return nn::checkpoint(local, {x}, run);
  });
  CHECK(got == expected);
  std::optional<nn::Pass> captured;
  const std::string message = message_of<TapeError>([&] {
    gradient_of([&](Tape& tape, const Var& x) {
      captured.emplace(nn::Pass{.tape = tape});
      const Var y = checkpoint(
          tape, {x}, [&](Tape& on, std::span<const Var> in) { return run(captured->on(on), in); });
      captured->~Pass();  // its memory stays
      return y;
    });
  });
  new (&*captured) nn::Pass{.tape = captured->tape};
  CHECK(contains(message, "reads a Pass that is gone"));
  CHECK(contains(message, "nn::checkpoint"));
}
