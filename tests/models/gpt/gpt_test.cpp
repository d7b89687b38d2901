#include "zerograd/models/gpt/gpt.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <utility>

#include "tests/models/gpt/gpt_case.h"
#include "tests/support/error_message.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/elementwise/dropout.h"

using namespace zg;
using namespace zg::models;
using namespace zg::testing;

namespace {

using Gradients = std::vector<std::vector<double>>;

struct Step {
  double loss = 0.0;
  Gradients gradients;  // in the order of the store
};

Step step_of(GPTCase& model, const Tensor& ids, const Tensor& targets, const ForwardPosition& place,
             bool checkpointing) {
  model.source.gradients.clear();
  Tape tape = model.tape();
  const Var loss = model.gpt.loss(tape, ids, targets, place, checkpointing);
  Step step{.loss = loss.value().item()};
  tape.backward(loss);
  for (const auto& parameter : model.store.parameters())
    step.gradients.push_back(model.source.gradients[parameter.get()]);
  return step;
}

bool same_step(const Step& a, const Step& b) {
  return std::bit_cast<uint64_t>(a.loss) == std::bit_cast<uint64_t>(b.loss) &&
         a.gradients == b.gradients;
}

int count(const std::vector<std::string>& log, const std::string& line) {
  return static_cast<int>(std::ranges::count(log, line));
}

}  // namespace

TEST_CASE("the loss of an untrained model is near ln V") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      INFO(level_of(device), ", ", name_of(dtype));
      GPTConfig config = GPTConfig::preset("gpt-nano");
      config.vocabulary = 65;
      config.block_size = 32;
      GPTCase model(config, device, dtype);
      const Tensor ids = random_ids(8, 32, 65, device, 1),
                   targets = random_ids(8, 32, 65, device, 2);
      // Logits are near normal with variance v = 48 * 0.02^2 = 0.02, so the mean over 256 targets
      // is ln V + v / 2 give or take sqrt(v / 256) = 0.009; four of those.
      CHECK(std::fabs(model.loss(ids, targets) - (std::log(65.0) + 0.01)) < 0.036);
    }
}

TEST_CASE("the whole model's gradient agrees with finite differences in f64") {
  const Device device = Device::cpu();
  const Tensor ids = random_ids(2, 5, 7, device, 1);
  const Tensor targets =
      Tensor::from(std::vector<int32_t>{-1, 3, 6, 0, 2, 5, -1, 1, 4, 6}, {2, 5}, device);
  const ForwardPosition place{.seed = 9, .step = 4, .first_sample = 12};
  for (GPTConfig config : tiny_decoders())
    for (float dropout : {0.0f, 0.2f}) {
      INFO(text_of(config), ", dropout ", dropout);
      config.dropout = dropout;
      GPTCase model(config, device, DType::f64, /*spread=*/15.0);
      const Step step = step_of(model, ids, targets, place, false);
      for (const auto& parameter : model.store.parameters()) {
        CAPTURE(parameter->name);
        const double worst = distance_from_slopes(
            model.source.at_rest(*parameter), step.gradients[static_cast<size_t>(parameter->index)],
            /*stride=*/23, [&] { return model.loss(ids, targets, place); });
        // Truncation is h^2 times third derivatives (below 100 here), rounding 2^-53 / h.
        CHECK(worst < 1e-8);
      }
    }
}

TEST_CASE(
    "checkpointing gives the same bits of loss and gradients, and each unit's gradients once") {
  for (const Device& device : devices_at_every_level()) {
    CAPTURE(level_of(device));
    for (const GPTConfig& config : tiny_decoders()) {
      CAPTURE(text_of(config));
      GPTCase model(config, device, config.tied ? DType::f32 : DType::bf16);
      const Tensor ids = random_ids(3, 6, 7, device, 1), targets = random_ids(3, 6, 7, device, 2);
      const ForwardPosition place{.seed = 5, .step = 2, .first_sample = 6};
      const Step plain = step_of(model, ids, targets, place, false);
      model.source.log.clear();
      const Step checkpointed = step_of(model, ids, targets, place, true);
      CHECK(same_step(plain, checkpointed));
      for (const std::vector<double>& gradient : plain.gradients)
        CHECK(std::ranges::any_of(gradient, [](double g) { return g != 0.0; }));
      for (const char* unit : {"embedding", "block.0", "block.1", "head"})
        CHECK(count(model.source.log, std::string("reduce ") + unit) == 1);
    }
  }
}

TEST_CASE("the number of threads does not change the bits of loss and gradients") {
  GPTConfig config = tiny_config();
  config.width = 48;
  config.heads = 3;
  config.block_size = 33;
  std::vector<Step> steps;
  for (int threads : {1, 2}) {
    const Device device = Device::cpu(0, {.threads = threads});
    GPTCase model(config, device);
    const Tensor ids = random_ids(5, 33, 7, device, 1), targets = random_ids(5, 33, 7, device, 2);
    steps.push_back(step_of(model, ids, targets, {.seed = 1}, false));
  }
  CHECK(same_step(steps[0], steps[1]));
}

TEST_CASE("a step on a meta device has the same peak memory as a step on the CPU") {
  const auto bytes_of_a_step = [](const GPTConfig& config, const Device& device,
                                  bool checkpointing) {
    ParameterStore store;
    const GPT model(store, config);
    Values source(store, normal_weights(store, 0.1f), device, {.compute = DType::bf16});
    // So many tokens that activations take more memory than gradients, which checkpointing leaves.
    const Tensor ids = Tensor::full({40, 6}, 1, DType::i32, device);
    Tape tape(device, &source);
    tape.backward(model.loss(tape, ids, ids, {}, checkpointing));
    return device.memory().peak();
  };
  const DeviceOptions one{.threads = 1};
  for (const GPTConfig& config : tiny_decoders()) {
    CAPTURE(text_of(config));
    int64_t planned[2];
    for (bool checkpointing : {false, true}) {
      planned[checkpointing] = bytes_of_a_step(config, Device::meta(0, one), checkpointing);
      CHECK(planned[checkpointing] == bytes_of_a_step(config, Device::cpu(0, one), checkpointing));
    }
    CHECK(planned[true] < planned[false]);
  }
}

TEST_CASE("dropout masks depend on seed, step and sample, not on how a batch is cut") {
  for (const Device& device : devices_at_every_level(/*threads=*/1)) {
    CAPTURE(level_of(device));
    GPTConfig config = tiny_config();
    config.dropout = 0.5f;
    GPTCase model(config, device, DType::f32, 10.0);
    const Tensor ids = random_ids(4, 6, 7, device, 1);
    // One target counts, so the loss is one position's: a sum over rows would round differently.
    const auto loss_at = [&](int64_t first, int64_t samples, int64_t sample,
                             ForwardPosition place) {
      std::vector<int32_t> targets(static_cast<size_t>(samples * 6), -1);
      targets[static_cast<size_t>((sample - first) * 6 + 5)] = 3;
      place.first_sample += first;
      return model.loss(ids.slice(first, first + samples),
                        Tensor::from(targets, {samples, 6}, device), place);
    };
    const ForwardPosition place{.seed = 5, .step = 2, .first_sample = 40};
    // A matmul of fewer rows may add in another order, a few units in the last place; another mask
    // at probability 0.5 moves the loss by far more.
    constexpr double rounding = 1e-5, masked = 1e-3;
    for (int64_t sample = 0; sample < 4; ++sample) {
      const double whole = loss_at(0, 4, sample, place);
      const auto distance = [&](double loss) { return std::fabs(loss - whole); };
      CHECK(distance(loss_at(sample / 2 * 2, 2, sample, place)) < rounding);
      CHECK(distance(loss_at(sample, 1, sample, place)) < rounding);
      CHECK(distance(loss_at(0, 4, sample, {.seed = 6, .step = 2, .first_sample = 40})) > masked);
      CHECK(distance(loss_at(0, 4, sample, {.seed = 5, .step = 3, .first_sample = 40})) > masked);
      CHECK(distance(loss_at(0, 4, sample, {.seed = 5, .step = 2, .first_sample = 41})) > masked);
    }
  }
}

namespace {

std::vector<uint32_t> dropout_sites;  // site of every dropout mask, in the order of the calls
Kernel<Dropout>::Function plain_dropout;
Kernel<AttentionForward>::Function plain_attention;

void noting_dropout(const Dropout& args, Workspace workspace, Stream& stream) {
  dropout_sites.push_back(args.key.site);
  plain_dropout(args, workspace, stream);
}
void noting_attention(const AttentionForward& args, Workspace workspace, Stream& stream) {
  dropout_sites.push_back(args.shape.dropout_key.site);
  plain_attention(args, workspace, stream);
}

}  // namespace

TEST_CASE("every dropout of a model has its own mask, and recomputation uses the same mask") {
  GPTConfig config = tiny_bloom();
  config.dropout = 0.5f;
  const Device device = Device::cpu(0, {.threads = 1});
  GPTCase model(config, device, DType::f32, 1.0);
  const Tensor ids = random_ids(2, 6, 7, device, 1), targets = random_ids(2, 6, 7, device, 2);
  plain_dropout = std::exchange(kernels::dropout[Device::Type::cpu].function, noting_dropout);
  plain_attention =
      std::exchange(kernels::attention_forward[Device::Type::cpu].function, noting_attention);
  dropout_sites.clear();
  Tape tape = model.tape();
  const Var loss = model.gpt.loss(tape, ids, targets, {}, /*checkpointing=*/true);
  const std::vector<uint32_t> forward = dropout_sites;
  tape.backward(loss);
  kernels::dropout[Device::Type::cpu].function = plain_dropout;
  kernels::attention_forward[Device::Type::cpu].function = plain_attention;
  const std::set<uint32_t> apart(forward.begin(), forward.end());
  CHECK(forward.size() == static_cast<size_t>(1 + 3 * config.layers));
  CHECK(apart.size() == forward.size());
  CHECK(std::set<uint32_t>(dropout_sites.begin(), dropout_sites.end()) == apart);
}

TEST_CASE("an inference tape applies no dropout") {
  const Device device = Device::cpu();
  GPTConfig config = tiny_config(), certain = tiny_config();
  config.dropout = 0.5f;
  certain.dropout = 0.0f;
  GPTCase model(config, device, DType::f32, 10.0), same(certain, device, DType::f32, 10.0);
  const Tensor ids = random_ids(3, 6, 7, device, 1), targets = random_ids(3, 6, 7, device, 2);
  Tape tape = model.tape(TapeMode::inference);
  const double inferred = model.gpt.loss(tape, ids, targets, {}).value().item();
  CHECK(inferred == same.loss(ids, targets));
  CHECK(inferred != model.loss(ids, targets));
}

TEST_CASE(
    "the loss is the mean cross-entropy of the logits over the targets that are not ignored") {
  const Device device = Device::cpu();
  GPTConfig config = tiny_config();
  config.dropout = 0.0f;
  GPTCase model(config, device, DType::f64, 15.0);
  const Tensor ids = random_ids(2, 3, 7, device, 1);
  const std::vector<int32_t> targets{-1, 4, 0, -1, -1, 6};
  Tape tape = model.tape(TapeMode::inference);
  const std::vector<double> logits = model.gpt.logits(tape, ids).value().to_doubles();
  double expected = 0.0;
  for (size_t n = 0; n < targets.size(); ++n) {
    if (targets[n] < 0) continue;
    double sum = 0.0;
    for (size_t v = 0; v < 7; ++v) sum += std::exp(logits[7 * n + v]);
    expected += (std::log(sum) - logits[7 * n + static_cast<size_t>(targets[n])]) / 3;
  }
  // A few hundred f64 operations on numbers near 1.
  CHECK(std::fabs(model.loss(ids, Tensor::from(targets, {2, 3}, device)) - expected) < 1e-13);
}

TEST_CASE("the logits of a position depend on the tokens up to it and on no later token") {
  const Device device = Device::cpu();
  for (const GPTConfig& config : tiny_decoders()) {
    CAPTURE(text_of(config));
    GPTCase model(config, device, DType::f32, 10.0);
    std::vector<int32_t> ids{1, 2, 3, 4, 5, 6};
    const auto logits = [&] {
      Tape tape = model.tape(TapeMode::inference);
      return model.gpt.logits(tape, Tensor::from(ids, {1, 6}, device)).value().to_host<float>();
    };
    const std::vector<float> before = logits();
    CHECK(before.size() == 6 * 7);
    ids[3] = 0;
    const std::vector<float> after = logits();
    for (size_t t = 0; t < 6; ++t) {
      CAPTURE(t);
      const bool same = std::equal(before.begin() + 7 * static_cast<long>(t),
                                   before.begin() + 7 * static_cast<long>(t + 1),
                                   after.begin() + 7 * static_cast<long>(t));
      CHECK(same == (t < 3));
    }
  }
}

TEST_CASE("a model refuses ids of a wrong shape or outside the vocabulary") {
  const Device device = Device::cpu();
  GPTCase model(tiny_config(), device);
  Tape tape = model.tape(TapeMode::inference);
  CHECK_THROWS_WITH_AS(model.gpt.logits(tape, random_ids(2, 7, 7, device, 1)),
                       "gpt: ids [2, 7] do not fit; expected [B, T] with T up to the block size 6",
                       ShapeError);
  CHECK_THROWS_AS(model.gpt.logits(tape, random_ids(2, 6, 7, device, 1).view({12})), ShapeError);
  CHECK_THROWS_AS(model.gpt.logits(tape, Tensor::from(std::vector<int32_t>{7}, {1, 1}, device)),
                  ShapeError);
}

TEST_CASE("a model whose part ends with its last layer gives the last hidden state") {
  GPTConfig config = GPTConfig::preset("gpt-nano");
  config.vocabulary = 11;
  config.block_size = 6;
  config.dropout = 0.0f;
  const Device device = Device::cpu();
  GPTCase whole(config, device, DType::f32);
  ParameterStore store;
  const GPT part(store, config, {.end_layer = config.layers});
  CHECK(store.find("lm_head.weight") == nullptr);
  FakeSource source(store, device, DType::f32);  // initial values depend on the names alone
  Tape tape(device, &source, TapeMode::inference);
  const Tensor ids = random_ids(2, 6, 11, device, 1);
  const Var hidden = part.stage(tape, {}, ids, {}, {});
  CHECK(hidden.shape() == Shape{2, 6, config.width});
  Tape other = whole.tape();
  const Unit& head = *whole.store.find("lm_head.weight")->unit;
  const Tape::Use use(other, head);
  const Var weight = other.parameter(*whole.store.find("lm_head.weight"));
  CHECK(linear(Var(hidden.value()), weight).value().to_host<float>() ==
        whole.gpt.logits(other, ids).value().to_host<float>());
  CHECK_ERROR(ConfigError, "gpt: this model has layers 0 to 3 of 3 and no head",
              part.logits(tape, ids));
  for (const GPTPart& wrong : {GPTPart{.end_layer = 4}, GPTPart{.first_layer = -1},
                               GPTPart{.first_layer = 2, .end_layer = 1}}) {
    ParameterStore unused;
    CHECK_ERROR(ConfigError, "expected a range of the model's 3 layers",
                GPT(unused, config, wrong));
  }
}

TEST_CASE(
    "a hook sees every hidden state of a decoder and changes what follows, with one set of bits") {
  const Device device = Device::cpu();
  const ForwardPosition place{.seed = 3, .step = 1};
  const LoraConfig lora{.rank = 2, .targets = {"all-linear"}};
  for (const bool checkpointing : {false, true}) {
    CAPTURE(checkpointing);
    for (const GPTConfig& config : tiny_decoders()) {
      CAPTURE(text_of(config));
      GPTCase model(config, device, DType::f32, 10.0);
      const Tensor ids = random_ids(2, 6, 7, device, 1), targets = random_ids(2, 6, 7, device, 2);
      std::vector<Var> states;
      std::vector<int64_t> layers;
      const nn::BlockHook keep = [&](int64_t layer, const Var& x) {
        layers.push_back(layer);
        return states.emplace_back(x);
      };
      Tape tape = model.tape();
      const Var loss = model.gpt.loss(tape, ids, targets, place, checkpointing, {}, {.hook = keep});
      CHECK(loss.value().item() == model.loss(ids, targets, place));
      CHECK(layers == std::vector<int64_t>{0, 1, 2});
      const Tensor last = states.back().value();
      CHECK(last.shape() == Shape{2, 6, config.width});

      const auto hidden = [&](int64_t changed, const nn::BlockHook& change) {
        Tape other = model.tape();
        const nn::BlockHook hook = [&](int64_t layer, const Var& x) {
          return layer == changed ? change(layer, x) : x;
        };
        return model.gpt.hidden(other, ids, place, checkpointing, {}, {.hook = hook})
            .value()
            .to_host<float>();
      };
      Tape unhooked = model.tape();
      const std::vector<float> plain =
          model.gpt.hidden(unhooked, ids, place).value().to_host<float>();
      // The head's norm of the last state, and nothing else, follows the last block.
      CHECK(hidden(2, [&](int64_t, const Var&) { return Var(last); }) == plain);
      CHECK(hidden(1, [](int64_t, const Var& x) { return mul(x, 2.0); }) != plain);

      // A loss on a state in the middle has gradients of the layers before it alone.
      model.source.gradients.clear();
      tape.backward(mean(states[1] * states[1]));
      CHECK(model.source.gradients.count(model.store.find(
                config.family == Family::gpt ? "transformer.h.0.mlp.c_fc.weight"
                                             : "transformer.h.0.mlp.dense_h_to_4h.weight")) == 1);
      CHECK(model.source.gradients.count(model.store.find(
                config.family == Family::gpt ? "transformer.h.1.mlp.c_fc.weight"
                                             : "transformer.h.1.mlp.dense_h_to_4h.weight")) == 0);
    }
  }
  GPTCase plain(tiny_config(), device), adapted(tiny_config(), device, DType::f32, 1.0, lora);
  for (const auto& parameter : adapted.store.parameters())
    if (parameter->trainable)
      for (double& value : adapted.source.at_rest(*parameter)) value = 0.5;
  const Tensor ids = random_ids(2, 6, 7, device, 1);
  const auto logits = [&](GPTCase& model, bool adapters) {
    Tape tape = model.tape(TapeMode::inference);
    return model.gpt.logits(tape, ids, {.adapters = adapters}).value().to_host<float>();
  };
  CHECK(logits(adapted, false) == logits(plain, true));
  CHECK(logits(adapted, true) != logits(plain, true));
  ParameterStore store;
  const GPT part(store, tiny_config(), {.first_layer = 1});
  Tape tape(device);
  CHECK_ERROR(ConfigError, "gpt: hidden: this rank has layers 1 to 2 of 2",
              part.hidden(tape, ids, {}));
}
