#include "zerograd/models/gpt/family.h"

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "tests/support/error_message.h"
#include "zerograd/models/hugging_face/hugging_face.h"
#include "zerograd/models/hugging_face/peft.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;

namespace {

constexpr const char* fixtures[] = {"hf_gpt_neox", "hf_gpt_neox_serial", "hf_olmo2", "hf_gemma3",
                                    "hf_phi3"};

}  // namespace

TEST_CASE("families whose blocks differ give the same logits with a cache as without one") {
  for (const char* name : fixtures) {
    CAPTURE(std::string(name));
    const Transformers theirs(name);
    const HuggingFaceFolder folder(theirs.path);
    GPTCase model(folder.model().config);
    load_weights(folder.weights(model.gpt.config()), model);
    const int64_t B = Transformers::B, T = Transformers::T;
    const std::vector<float> all = theirs.expected.read_floats("logits");
    const int64_t V = std::ssize(all) / (B * T);
    KeyValueCache cache(model.gpt.config(), T);
    // Phi-3's first 9 tokens are more than its first training had, so that all keys turn alike.
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 9}, {9, 10}, {10, T}}) {
      std::vector<int32_t> part;
      std::vector<float> expected;
      for (int64_t b = 0; b < B; ++b) {
        part.insert(part.end(), theirs.ids.begin() + b * T + begin,
                    theirs.ids.begin() + b * T + end);
        const auto row = all.begin() + (b * T + end - 1) * V;
        expected.insert(expected.end(), row, row + V);
      }
      Tape tape = model.tape(TapeMode::inference);
      const Tensor ids = Tensor::from(part, {B, end - begin}, model.device);
      CHECK(relative_error(model.gpt.next_logits(tape, ids, cache).to_doubles(), expected) < 1e-5);
    }
  }
}

TEST_CASE("bf16 logits of each family are about as near to f32's as those of transformers") {
  for (const char* name : fixtures) {
    CAPTURE(std::string(name));
    const Transformers theirs(name);
    const HuggingFaceFolder folder(theirs.path);
    GPTCase model(folder.model().config, Device::cpu(), DType::bf16);
    load_weights(folder.weights(model.gpt.config()), model);
    Tape tape = model.tape(TapeMode::inference);
    const Tensor ids = Tensor::from(theirs.ids, {Transformers::B, Transformers::T}, model.device);
    const std::vector<float> exact = theirs.expected.read_floats("logits"),
                             rounded = theirs.expected.read_floats("logits_of_bf16");
    const double ours = relative_error(model.gpt.logits(tape, ids).value().to_doubles(), exact),
                 other = relative_error({rounded.begin(), rounded.end()}, exact);
    CAPTURE(ours);
    CAPTURE(other);
    CHECK(ours < 1.5 * other);
  }
}

TEST_CASE("a checkpointed block of each family gives the bits of loss and gradients") {
  for (const char* name : fixtures) {
    CAPTURE(std::string(name));
    const Transformers theirs(name);
    const HuggingFaceFolder folder(theirs.path);
    const auto gradients = [&](bool checkpointing) {
      GPTCase model(folder.model().config);
      load_weights(folder.weights(model.gpt.config()), model);
      const Shape shape{Transformers::B, Transformers::T};
      Tape tape = model.tape();
      tape.backward(model.gpt.loss(tape, Tensor::from(theirs.ids, shape, model.device),
                                   Tensor::from(theirs.targets(), shape, model.device), {},
                                   checkpointing));
      std::vector<std::vector<double>> all;
      for (const auto& parameter : model.store.parameters())
        all.push_back(model.source.gradients[parameter.get()]);
      return all;
    };
    CHECK(gradients(true) == gradients(false));
  }
}

TEST_CASE("each family has PEFT's targets and names itself in messages") {
  CHECK(peft_targets(Family::gpt_neox) == std::vector<std::string>{"query_key_value"});
  CHECK(peft_targets(Family::phi3) == std::vector<std::string>{"qkv_proj"});
  for (const Family family : {Family::llama, Family::olmo2, Family::gemma3})
    CHECK(peft_targets(family) == std::vector<std::string>{"q_proj", "v_proj"});
  CHECK(list_families(&FamilyRow::model_type) ==
        "gpt2, bloom, llama, mistral, qwen2, qwen3, gpt_neox, olmo2, gemma3_text or phi3");
  for (const Family family : all_families) CHECK(GPTConfig::of(family).family == family);
}

TEST_CASE("structure that a family has not is an error that names the field") {
  const auto refused = [](Family family, auto field, auto value) {
    GPTConfig config = GPTConfig::of(family);
    config.layers = config.heads = 2;
    config.width = 16;
    config.vocabulary = 7;
    config.block_size = 6;
    validate(config);
    config.*field = value;
    return message_of<ConfigError>([&] { validate(config); });
  };
  CHECK(contains(refused(Family::llama, &GPTConfig::parallel_residual, true),
                 "gpt: parallel_residual: expected false in the family llama, got true"));
  CHECK(contains(refused(Family::mistral, &GPTConfig::window_period, 6),
                 "gpt: window_period: expected 0 in the family mistral, got 6"));
  CHECK(contains(refused(Family::phi3, &GPTConfig::local_theta, 1e4),
                 "gpt: local_theta: expected 0 in the family phi3, got 10000"));
  CHECK(contains(refused(Family::gpt_neox, &GPTConfig::kv_heads, 1),
                 "gpt: kv_heads: expected 2, as many as heads, in the family gpt_neox, got 1; try "
                 "without --num-query-groups, or a --model-type of llama, "));
  CHECK(contains(refused(Family::gpt_neox, &GPTConfig::query_key_norm, true),
                 "gpt: family: expected llama"));
}
