#include "zerograd/models/lora.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

// tests/reference/make_lora_fixtures.py makes the fixtures with PEFT.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

constexpr const char* lora_fixtures[] = {"llama", "qwen3", "gpt2"};

/// A base, PEFT's adapters for it, and what transformers computes with them.
struct PeftCase {
  explicit PeftCase(const std::string& name)
      : theirs("lora_" + name),
        folder(std::string(ZG_FIXTURES) + "hf_" + name),
        adapter(open_peft(theirs.path)),
        config(folder.model().config),
        base(folder.weights(config)),
        matrices(peft_weights(theirs.path, config, adapter.lora)) {
    config.dropout = 0.0f;  // as in the fixtures
  }

  const Transformers theirs;
  const HuggingFaceFolder folder;
  const PeftAdapter adapter;
  GPTConfig config;
  const WeightSource base, matrices;

  static Shape shape() { return {Transformers::B, Transformers::T}; }
};

void load_both(const PeftCase& peft, GPTCase& model) {
  load_weights(joined(peft.base, peft.matrices), model);
}

std::vector<double> wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

const LoraConfig small_lora{.rank = 2, .alpha = 3.0f, .targets = {"all-linear"}};

/// Sets every B to values that are not 0, so that adapters have an effect.
void fill_b(GPTCase& model) {
  for (const auto& parameter : model.store.parameters())
    if (parameter->name.ends_with("lora_B.weight")) {
      std::vector<float> values(static_cast<size_t>(parameter->shape.numel()));
      initialise(Init::normal(0.3f), 5, parameter->name, 0, values);
      model.source.at_rest(*parameter).assign(values.begin(), values.end());
    }
}

}  // namespace

TEST_CASE("logits, loss and the gradients of adapters match PEFT") {
  for (const char* name : lora_fixtures) {
    CAPTURE(std::string(name));
    const PeftCase peft(name);
    for (const Device& device : devices_at_every_level()) {
      CAPTURE(level_of(device));
      GPTCase model(peft.config, device, DType::f32, 1.0, peft.adapter.lora);
      load_both(peft, model);
      const Tensor ids = Tensor::from(peft.theirs.ids, PeftCase::shape(), device);
      Tape inference = model.tape(TapeMode::inference);
      CHECK(relative_error(model.gpt.logits(inference, ids).value().to_doubles(),
                           peft.theirs.expected.read_floats("logits")) < 1e-5);
      Tape tape = model.tape();
      const Var loss = model.gpt.loss(
          tape, ids, Tensor::from(peft.theirs.targets(), PeftCase::shape(), device), {});
      CHECK(relative_error({loss.value().item()}, peft.theirs.expected.read_floats("loss")) < 1e-6);
      tape.backward(loss);
      int64_t adapters = 0;
      for (const auto& parameter : model.store.parameters()) {
        CAPTURE(parameter->name);
        const bool is_base = lora_layer(parameter->name).empty();
        CHECK(parameter->trainable == !is_base);
        CHECK(parameter->saved == !is_base);
        if (is_base) {
          CHECK(model.source.gradients[parameter.get()].empty());
          continue;
        }
        ++adapters;
        // Both sides round to f32. In the gradients of queries and keys large terms cancel: those
        // that softmax subtracts are some ten times the result.
        const bool cancels = parameter->name.find(".q_proj") != std::string::npos ||
                             parameter->name.find(".k_proj") != std::string::npos;
        CHECK(relative_error(model.source.gradients[parameter.get()],
                             peft.theirs.expected.read_floats("gradient." + parameter->name)) <
              (cancels ? 2e-5 : 1e-5));
      }
      CHECK(adapters == static_cast<int64_t>(peft.matrices.shapes.size()));
    }
  }
}

TEST_CASE("an AdamW step on adapters matches PyTorch, and the base stays") {
  for (const char* name : lora_fixtures) {
    CAPTURE(std::string(name));
    const PeftCase peft(name);
    const Device device = Device::cpu();
    ParameterStore store;
    const GPT gpt(store, peft.config, {}, peft.adapter.lora);
    zero::Engine engine(
        store, device,
        {.update = {.beta1 = 0.9f, .beta2 = 0.95f, .weight_decay = 0.1f}, .clip_norm = 0.0f});
    zero::load_weights(joined(peft.base, peft.matrices), engine);
    Tape tape = engine.tape();
    const Var loss = gpt.loss(tape, Tensor::from(peft.theirs.ids, PeftCase::shape(), device),
                              Tensor::from(peft.theirs.targets(), PeftCase::shape(), device), {});
    engine.backward(tape, loss);
    engine.step(1e-3f);
    for (const auto& parameter : store.parameters()) {
      CAPTURE(parameter->name);
      const std::vector<float> values = engine.read(*parameter, zero::Engine::State::master);
      if (!parameter->trainable)
        CHECK(values == peft.base.read(parameter->name));
      else
        CHECK(relative_error(wide(values), peft.theirs.expected.read_floats(
                                               "updated." + parameter->name)) < 1e-5);
    }
  }
}

TEST_CASE("a merged model computes what PEFT's does") {
  for (const char* name : lora_fixtures) {
    CAPTURE(std::string(name));
    const PeftCase peft(name);
    const Device device = Device::cpu();
    GPTCase model(peft.config, device);
    const WeightSource weights = merged(peft.base, peft.matrices, peft.adapter.lora);
    CHECK(weights.shapes == peft.base.shapes);
    for (const auto& parameter : model.store.parameters()) {
      const std::vector<float> values = weights.read(parameter->name);
      model.source.at_rest(*parameter).assign(values.begin(), values.end());
    }
    Tape inference = model.tape(TapeMode::inference);
    const Tensor ids = Tensor::from(peft.theirs.ids, PeftCase::shape(), device);
    CHECK(relative_error(model.gpt.logits(inference, ids).value().to_doubles(),
                         peft.theirs.expected.read_floats("merged")) < 1e-5);
  }
}

TEST_CASE("adapters of PEFT are written as they were read") {
  for (const char* name : lora_fixtures) {
    CAPTURE(std::string(name));
    const PeftCase peft(name);
    const TemporaryFolder folder;
    const std::string path = folder.path() + "/adapters";
    export_peft(peft.matrices, peft.config, peft.adapter, path);
    CHECK(is_peft_folder(path));
    const PeftAdapter again = open_peft(path);
    CHECK(again.lora == peft.adapter.lora);
    CHECK(again.base == peft.adapter.base);
    const SafetensorsReader ours(path + "/adapter_model.safetensors"),
        theirs(peft.theirs.path + "/adapter_model.safetensors");
    REQUIRE(ours.entries().size() == theirs.entries().size());
    for (const auto& entry : theirs.entries()) {
      CAPTURE(entry.first);
      CHECK(ours.read_floats(entry.first) == theirs.read_floats(entry.first));
    }
    CHECK(ours.metadata().at("format") == "pt");
    const json config = json::parse(read_text(path + "/adapter_config.json")),
               expected = json::parse(read_text(peft.theirs.path + "/adapter_config.json"));
    for (const auto& [key, value] : config.items()) {
      CAPTURE(key);
      CHECK(expected.at(key) == value);
    }
  }
}

TEST_CASE("an adapter_config.json that means something else is refused by its key") {
  const json plain =
      json::parse(read_text(std::string(ZG_FIXTURES) + "lora_llama/adapter_config.json"));
  const auto refusal = [&](const char* key, const json& value) {
    json changed = plain;
    changed[key] = value;
    return message_of<Unsupported>([&] { peft_adapter(changed.dump(), "a.json"); });
  };
  const std::pair<const char*, json> refused[] = {{"peft_type", "IA3"},
                                                  {"task_type", "SEQ_CLS"},
                                                  {"bias", "lora_only"},
                                                  {"modules_to_save", {"lm_head"}},
                                                  {"use_dora", true},
                                                  {"lora_bias", true},
                                                  {"rank_pattern", {{"q_proj", 2}}},
                                                  {"alpha_pattern", {{"q_proj", 2}}},
                                                  {"layers_to_transform", {0}},
                                                  {"target_parameters", {"x"}},
                                                  {"target_modules", ".*q_proj"},
                                                  {"init_lora_weights", "pissa_niter_4"}};
  for (const auto& item : refused) {
    CAPTURE(std::string(item.first));
    const std::string message = refusal(item.first, item.second);
    CHECK(contains(message, std::string("a.json: ") + item.first));
  }
  for (const json& initial : {json("gaussian"), json("eva"), json(false)}) {
    json changed = plain;
    changed["init_lora_weights"] = initial;
    CHECK(peft_adapter(changed.dump(), "a.json").lora.rank == 4);
  }
  const auto invalid = [&](const char* key, const json& value) {
    json changed = plain;
    changed[key] = value;
    return message_of<FileError>([&] { peft_adapter(changed.dump(), "a.json"); });
  };
  CHECK(contains(invalid("r", 0), "a.json: r: expected"));
  CHECK(contains(invalid("lora_alpha", -1), "alpha: expected a number above 0, got -1"));
  CHECK(contains(invalid("lora_dropout", 1.0), "dropout: expected 0 or more and below 1, got 1"));
  CHECK(contains(invalid("target_modules", nullptr), "a.json: target_modules: expected a list"));
}

TEST_CASE("a folder of PEFT with other matrices than its config says is refused") {
  const PeftCase peft("llama");
  const GPTConfig config = peft.config;
  LoraConfig lora = peft.adapter.lora;
  lora.targets = {"q_proj"};
  CHECK_ERROR(FileError,
              "has 'base_model.model.model.layers.0.mlp.down_proj.lora_A.weight', which no "
              "adapter of the model has",
              peft_weights(peft.theirs.path, config, lora));
  lora.targets = {"q_proj", "v_proj", "down_proj", "k_proj"};
  CHECK_ERROR(FileError,
              "has no 'base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight' [4, "
              "20]",
              peft_weights(peft.theirs.path, config, lora));
  lora = peft.adapter.lora;
  lora.rank = 3;
  CHECK_ERROR(FileError, "has shape [4, 28]; expected [3, 28]",
              peft_weights(peft.theirs.path, config, lora));
  const TemporaryFolder pickled;
  write_file(pickled / "adapter_model.bin", "PK");
  CHECK_ERROR(Unsupported,
              "has adapter_model.bin, a pickle, which can run any program when it is read; "
              "expected adapter_model.safetensors; try saving it with safe_serialization",
              peft_weights(pickled.path(), config, lora));
}

TEST_CASE("a target that names no layer is refused with the names that there are") {
  ParameterStore store;
  LoraConfig lora = small_lora;
  lora.targets = {"c_attn", "q_proj"};
  CHECK(message_of<ConfigError>([&] { GPT(store, tiny_config(), {}, lora); }) ==
        "lora: targets: 'q_proj' names no linear layer of the model; expected some of c_attn, "
        "c_fc, c_proj, or all-linear");
  for (const auto& item :
       {std::pair(LoraConfig{.rank = -1}, "lora: rank: expected 1 or more, got -1"),
        std::pair(LoraConfig{.rank = 1, .alpha = 0.0f}, "lora: alpha: expected a number above 0"),
        std::pair(LoraConfig{.rank = 1, .dropout = 1.0f}, "lora: dropout: expected 0 or more"),
        std::pair(LoraConfig{.rank = 1}, "lora: targets: expected a name of linear layers")}) {
    ParameterStore other;
    CHECK_ERROR(ConfigError, item.second, GPT(other, tiny_config(), {}, item.first));
  }
}

TEST_CASE("fresh adapters change nothing: A is uniform within 1 / sqrt(in), B is 0") {
  for (const GPTConfig& config : tiny_decoders()) {
    CAPTURE(text_of(config));
    const Device device = Device::cpu();
    GPTCase plain(config, device), adapted(config, device, DType::f32, 1.0, small_lora);
    CHECK(adapted.gpt.transformer_parameters() == plain.gpt.transformer_parameters());
    int64_t layers = 0;
    for (const auto& parameter : adapted.store.parameters()) {
      const std::string layer = lora_layer(parameter->name);
      if (layer.empty()) continue;
      const std::vector<double>& values = adapted.source.at_rest(*parameter);
      if (parameter->name == lora_b_name(layer)) {
        CHECK(std::ranges::count(values, 0.0) == std::ssize(values));
        continue;
      }
      ++layers;
      const double bound = 1.0 / std::sqrt(static_cast<double>(parameter->shape[1]));
      double largest = 0.0, sum = 0.0;
      for (const double value : values) {
        largest = std::max(largest, std::fabs(value));
        sum += value * value;
      }
      CAPTURE(parameter->name);
      CHECK(largest <= bound);
      CHECK(largest > 0.7 * bound);  // of 16 values and more
      // The variance of U(-b, b) is b^2 / 3. That of 16 squares is 4 b^4 / 45 / 16.
      CHECK(std::fabs(sum / static_cast<double>(values.size()) - bound * bound / 3.0) <
            0.3 * bound * bound);
    }
    CHECK(layers == 4 * config.layers);
    const Tensor ids = random_ids(2, 6, config.vocabulary, device, 3);
    Tape one = plain.tape(TapeMode::inference), other = adapted.tape(TapeMode::inference);
    CHECK(adapted.gpt.logits(other, ids).value().to_doubles() ==
          plain.gpt.logits(one, ids).value().to_doubles());
  }
}

TEST_CASE("the scale of adapters is alpha / rank, or alpha / sqrt(rank)") {
  CHECK(lora_scale({.rank = 4, .alpha = 6.0f}) == 1.5f);
  CHECK(lora_scale({.rank = 4, .alpha = 6.0f, .rank_stabilised = true}) == 3.0f);
}

TEST_CASE("dropout of adapters acts in training alone, and checkpointed blocks draw it again") {
  GPTConfig config = tiny_config();
  config.dropout = 0.0f;
  const Device device = Device::cpu();
  LoraConfig lora = small_lora;
  GPTCase plain(config, device, DType::f32, 3.0, lora);
  lora.dropout = 0.5f;
  GPTCase dropping(config, device, DType::f32, 3.0, lora);
  fill_b(plain);
  fill_b(dropping);
  const Tensor ids = random_ids(2, 6, config.vocabulary, device, 3),
               targets = random_ids(2, 6, config.vocabulary, device, 4);
  CHECK(plain.loss(ids, targets) != dropping.loss(ids, targets));
  CHECK(dropping.loss(ids, targets, {.step = 0}) == dropping.loss(ids, targets, {.step = 0}));
  CHECK(dropping.loss(ids, targets, {.step = 0}) != dropping.loss(ids, targets, {.step = 1}));
  Tape one = plain.tape(TapeMode::inference), other = dropping.tape(TapeMode::inference);
  CHECK(plain.gpt.logits(one, ids).value().to_doubles() ==
        dropping.gpt.logits(other, ids).value().to_doubles());
  std::vector<std::vector<double>> gradients[2];
  for (const bool checkpointing : {false, true}) {
    Tape tape = dropping.tape();
    tape.backward(dropping.gpt.loss(tape, ids, targets, {}, checkpointing));
    for (const auto& parameter : dropping.store.parameters())
      gradients[checkpointing].push_back(dropping.source.gradients[parameter.get()]);
    dropping.source.gradients.clear();
  }
  CHECK(gradients[0] == gradients[1]);
}

TEST_CASE("weights and adapters that do not fit each other are refused") {
  const PeftCase peft("gpt2");
  WeightSource some = peft.matrices;
  const std::string layer = lora_layer(some.shapes.begin()->first);
  some.shapes.erase(lora_b_name(layer));
  CHECK_ERROR(FileError, fmt::format("has no '{}'", lora_b_name(layer)),
              merged(peft.base, some, peft.adapter.lora));
  some = peft.matrices;
  LoraConfig lora = peft.adapter.lora;
  lora.rank = 7;
  CHECK_ERROR(FileError, "for a rank of 7", merged(peft.base, some, lora));
  WeightSource less = peft.base;
  less.shapes.erase(layer + ".weight");
  CHECK_ERROR(FileError, fmt::format("has an adapter of '{}'", layer),
              merged(less, some, peft.adapter.lora));
  CHECK_ERROR(FileError, "is in", joined(peft.base, peft.base));
}
