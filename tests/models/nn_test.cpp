#include "zerograd/models/nn.h"

#include <algorithm>
#include <optional>

#include "tests/autograd/op_check.h"
#include "tests/support/error_message.h"
#include "tests/support/normal_weights.h"
#include "zerograd/zero/engine.h"

// Layers as a model of one's own uses them: names, gradients, generation with a cache, and errors.
using namespace zg;
using namespace zg::testing;

namespace {

struct OwnLayer : nn::Module {
  using Module::Module;
  nn::Norm norm{this, "norm", {.width = 8, .kind = nn::NormKind::rms}};
  nn::Attention attention{
      this, "attention", {.width = 8, .heads = 4, .kv_heads = 2, .rope = RopeOptions()}};
  Var operator()(const Var& x) const { return x + attention(norm(x)); }
};

struct OwnDecoder : nn::Module {
  nn::Embedding tokens{this, "tokens", {.tokens = 11, .width = 8}};
  nn::List<OwnLayer> layers{this, "layer", 2};
  nn::Mlp mlp{this, "mlp", {.width = 8, .hidden = 12, .kind = nn::MlpKind::gated_silu}};
  nn::Dropout drop{this, "drop"};

  Var hidden(const Var& ids) const {
    Var x = tokens(ids);
    for (const auto& layer : layers) x = layer(x);
    return x + mlp(x);
  }
  Var logits(const Var& ids) const { return tokens.logits(hidden(ids)); }
};

Values values_of_model(const nn::Module& model) {
  return Values(model.store(), normal_weights(model.store(), 0.3f), shared_device(),
                {.compute = DType::f64});
}

const Tensor text = indices({3, 1, 4, 1, 5, 9}, {1, 6});

}  // namespace

TEST_CASE("modules give their parameters the names of their path, and lists are units") {
  const OwnDecoder model;
  std::vector<std::string> names, units;
  for (const auto& parameter : model.store().parameters()) names.push_back(parameter->name);
  for (const auto& unit : model.store().units()) units.push_back(unit->name);
  CHECK(names[0] == "tokens.weight");
  CHECK(std::ranges::count(names, "layer.1.attention.k_proj.weight") == 1);
  CHECK(std::ranges::count(names, "mlp.gate_proj.weight") == 1);
  CHECK(units == std::vector<std::string>{"tokens", "layer.0", "layer.1", "mlp"});
  CHECK(model.layers[1].attention.name() == "layer.1.attention");
  const OwnDecoder copy(model);
  CHECK(&copy.store() == &model.store());
  CHECK(copy.tokens.weight == model.tokens.weight);
}

TEST_CASE("a module's own parameter has its name, and its call opens its unit") {
  struct Scale : nn::Module {
    using Module::Module;
    const Parameter& gain = add("gain", {8}, Init::ones());
    Var operator()(const Var& x) const { return x * x.tape().parameter(gain); }
  };
  struct Model : nn::Module {
    nn::List<Scale> scales{this, "scale", 2};
    Scale bare{this, "bare"};
  };
  const Model model;
  CHECK(model.store().parameters()[1]->name == "scale.1.gain");
  CHECK(model.bare.gain.unit->name == "bare");
  zero::Engine engine(model.store(), shared_device(),
                      {.stage = 3, .param_persistence_threshold = 0});
  Tape tape = engine.tape();
  const Var x = tape.constant(randn({2, 8}, 7, "x", DType::f32, shared_device()));
  const Var y = model.scales[1](model.scales[0](x));
  CHECK(values_of(y) == x.value().to_doubles());
  const std::string message = message_of<NotResident>([&] { model.bare(x); });
  CHECK(contains(message, "expected unit 'bare' to be open"));
  CHECK(contains(message, "or nn::Call call(*this, x) in a module"));
  const nn::Call call(model.bare, x);
  CHECK(values_of(model.bare(x)) == x.value().to_doubles());
}

TEST_CASE("a root's store and adapters are those of its parts") {
  struct Net : nn::Module {
    explicit Net(const models::ParallelStore& root) : Module(root) {}
    nn::Linear in{this, "in", {.in = 4, .out = 4}}, out{this, "out", {.in = 4, .out = 4}};
  };
  ParameterStore store;
  const Net net({store, {}, {.rank = 2, .targets = {"out"}}});
  CHECK(&net.out.store() == &store);
  CHECK(store.find("in.lora_A.weight") == nullptr);
  REQUIRE(store.find("out.lora_B.weight") != nullptr);
  CHECK(store.find("out.lora_B.weight")->trainable);
  CHECK(!net.out.weight->trainable);
}

TEST_CASE("a module without parts has no store, and a layer looks for the tape of its input") {
  CHECK(message_of<ConfigError>([] { nn::Linear(nullptr, "out", {.in = 1, .out = 1}); }) ==
        "module 'out': the parent is null; expected `this` of the module around it");
  const nn::Module empty;
  CHECK(contains(message_of<ConfigError>([&] { empty.store(); }), "no parts and no parameters"));
  const OwnDecoder model;
  Values values = values_of_model(model);
  std::optional<Tape> tape(values.inference_tape());
  const Var x = tape->constant(doubles({1, 2, 8}, 1));
  CHECK(values_of(model.mlp(x)).size() == 16);
  CHECK(contains(message_of<TapeError>([&] { model.mlp(Var(x.value())); }),
                 "a constant that was made without one"));
  CHECK(contains(message_of<TapeError>([&] { model.mlp(Var()); }), "an absent Var"));
  tape.reset();
  CHECK(contains(message_of<TapeError>([&] { model.mlp(x); }), "a value whose Tape is gone"));
}

TEST_CASE("a tied head's loss is cross_entropy of its logits") {
  const OwnDecoder model;
  Values values = values_of_model(model);
  Tape tape(shared_device(), &values, TapeMode::inference);
  const Var x = model.hidden(tape.constant(text));
  const Tensor targets = indices({1, 4, 1, 5, 9, 2}, {1, 6});
  const double expected = cross_entropy(model.tokens.logits(x), targets).value().item();
  CHECK(model.tokens.loss(x, targets).value().item() == doctest::Approx(expected));
}

TEST_CASE("logits of tokens fed through a key-value cache match those of the whole text") {
  const OwnDecoder model;
  Values values = values_of_model(model);
  Tape tape(shared_device(), &values, TapeMode::inference);
  const std::vector<double> whole = values_of(model.logits(tape.constant(text)));
  nn::KeyValueCache cache(2, 6);
  std::vector<double> continued;
  for (const int64_t tokens : {3, 1, 2}) {
    const Tape::With pass(tape, nn::Pass{.cache = &cache});
    const int64_t begin = cache.length();
    const Tensor next = text.view({6}).slice(begin, begin + tokens).view({1, tokens});
    const std::vector<double> some = values_of(model.logits(tape.constant(next)));
    continued.insert(continued.end(), some.begin(), some.end());
    cache.advance(tokens);
  }
  REQUIRE(continued.size() == whole.size());
  for (size_t i = 0; i < whole.size(); ++i) CHECK(continued[i] == doctest::Approx(whole[i]));
}

TEST_CASE("a key-value cache that does not fit the pass is refused with its sizes") {
  const OwnDecoder model;
  Values values = values_of_model(model);
  const auto message = [&](TapeMode mode, nn::KeyValueCache& cache, const Tensor& ids) {
    Tape tape(shared_device(), &values, mode);
    const Tape::With pass(tape, nn::Pass{.cache = &cache});
    return message_of<ConfigError>([&] { model.logits(tape.constant(ids)); });
  };
  nn::KeyValueCache small(2, 4), few(1, 9), used(2, 9);
  CHECK(contains(message(TapeMode::record, used, text), "expected a tape in inference mode"));
  CHECK(contains(message(TapeMode::inference, small, text),
                 "6 more tokens, after 0 of 4 positions; expected at most 4 more"));
  CHECK(contains(message(TapeMode::inference, few, text),
                 "'layer.1.attention.o_proj.weight' finds the cache full: it is for 1 layers"));
  CHECK(message(TapeMode::inference, used, text) == "nothing was thrown");
  CHECK(contains(message(TapeMode::inference, used, indices({1, 2}, {2, 1})),
                 "a pass with 2 rows after passes with 1 rows"));
  CHECK(contains(message_of<ConfigError>([&] { used.advance(10); }),
                 "advance by 10 positions; the cache holds 0 and has room for 9 in all"));
}

TEST_CASE(
    "attention with a key-value cache refuses document starts and attention to later tokens") {
  nn::Module model;
  const nn::Attention forward(&model, "forward", {.width = 8, .heads = 2});
  const nn::Attention both(&model, "both", {.width = 8, .heads = 2, .causal = false});
  Values values = values_of_model(model);
  Tape tape(shared_device(), &values, TapeMode::inference);
  nn::KeyValueCache cache(1, 9);
  const Var x = tape.constant(random_tensor({1, 3, 8}, DType::f64, shared_device(), 1));
  const auto message = [&](const nn::Attention& attention, const Tensor& starts) {
    const Tape::With pass(tape, nn::Pass{.starts = starts, .cache = &cache});
    return message_of<ConfigError>([&] { attention(x); });
  };
  const std::string expected = "expected causal true and no starts, got ";
  CHECK(contains(message(forward, indices({0, 0, 2}, {1, 3})), expected + "starts"));
  CHECK(contains(message(both, {}), expected + "causal false"));
  CHECK(message(forward, {}) == "nothing was thrown");
}

TEST_CASE("layers without parameters or sizes are refused by name") {
  Tape tape(shared_device(), nullptr, TapeMode::inference);
  const Var x = tape.constant(doubles({1, 2, 4}, 1));
  nn::Module root;
  const auto refuses = [](const std::string& words, const std::function<void()>& f) {
    CHECK(contains(message_of<ConfigError>(f), words));
  };
  refuses("linear: the layer has no parameters", [&] { nn::Linear()(x); });
  refuses("norm: the layer has no parameters", [&] { nn::Norm()(x); });
  refuses("mlp: the layer has no parameters", [&] { nn::Mlp()(x); });
  refuses("attention: the layer has no parameters", [&] { nn::Attention()(x); });
  refuses("embedding: the layer has no parameters", [&] { nn::Embedding()(x); });
  refuses("linear 'l': out is 0; expected 1 or more", [&] { nn::Linear(&root, "l", {.in = 4}); });
  refuses("norm 'n': width is 0", [&] { nn::Norm(&root, "n", {}); });
  refuses("mlp 'm': width is 0", [&] { nn::Mlp(&root, "m", {}); });
  refuses("embedding 'e': tokens is 0", [&] { nn::Embedding(&root, "e", {.width = 4}); });
  refuses("attention", [&] { nn::Attention(&root, "a", {.heads = 2}); });
}

TEST_CASE("a checkpointed segment has the settings of its call when backward runs it again") {
  const OwnDecoder model;
  Values values = values_of_model(model);
  const auto gradient_of = [&](const std::function<Var(const Var&)>& body) {
    Tape tape(shared_device(), &values);
    const Var x = tape.variable(randn({1, 6, 8}, 7, "x", DType::f64, shared_device()));
    Var loss;
    {
      const Tape::With pass(tape, nn::Pass{.dropout = 0.5f});  // gone when backward runs
      loss = sum(body(x));
    }
    const Tape::With other(tape, nn::Pass{.dropout = 0.25f});
    tape.backward(loss);
    return values_of(tape.gradient(x));
  };
  const auto run = [&model](const Var& x) {
    REQUIRE(x.tape().get<nn::Pass>().dropout == 0.5f);
    return model.drop(model.mlp(x));
  };
  CHECK(gradient_of([&](const Var& x) { return checkpoint(x, run); }) == gradient_of(run));
}

TEST_CASE(
    "two dropouts of one name in a model are refused, in other modules they are two streams") {
  struct Part : nn::Module {
    using Module::Module;
    nn::Dropout drop{this, "drop"};
  };
  struct Net : nn::Module {
    Part first{this, "first"}, second{this, "second"};
  };
  Net net;
  CHECK(net.first.drop.site != net.second.drop.site);
  const Part copy = net.first;
  CHECK(copy.drop.site == net.first.drop.site);
  CHECK(
      message_of<ConfigError>([&] { nn::Dropout(&net.first, "drop"); }) ==
      "dropout: 'first.drop' exists already, and would drop the same elements; expected a name of "
      "its own, or one layer that is called twice");
}
