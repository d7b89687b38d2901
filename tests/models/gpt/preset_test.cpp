#include <cmath>
#include <string>

#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::models;

namespace {

GPTConfig one_small_layer() {
  return {.layers = 1, .heads = 2, .width = 8, .vocabulary = 5, .block_size = 4};
}

double stddev_of(const Parameter& parameter) {
  std::vector<float> values(static_cast<size_t>(parameter.shape.numel()));
  initialise(parameter.init, 3407, parameter.name, 0, values);
  double sum = 0.0, squares = 0.0;
  for (float value : values) sum += value, squares += double{value} * value;
  const double n = static_cast<double>(values.size());
  return std::sqrt(squares / n - sum / n * (sum / n));
}

}  // namespace

TEST_CASE("the nine presets have minGPT's parameter counts") {
  struct Count {
    const char* name;
    int64_t sort_task, gpt2_vocabulary;
  };
  for (const Count& count :
       {Count{"openai-gpt", 85066752, 124439808}, Count{"gpt2", 85066752, 124439808},
        Count{"gpt2-medium", 302325760, 354823168}, Count{"gpt2-large", 708408320, 774030080},
        Count{"gpt2-xl", 1475584000, 1557611200}, Count{"gopher-44m", 25227264, 51475968},
        Count{"gpt-mini", 2672256, 12515520}, Count{"gpt-micro", 795136, 7357312},
        Count{"gpt-nano", 85584, 2546400}}) {
    CAPTURE(count.name);
    GPTConfig config = GPTConfig::preset(count.name);
    config.vocabulary = 3;
    config.block_size = 11;
    ParameterStore sort_task;
    CHECK(GPT(sort_task, config).transformer_parameters() == count.sort_task);
    CHECK(sort_task.numel() == count.sort_task + 3 * config.width);

    config.vocabulary = 50257;
    config.block_size = 1024;
    config.tied = true;
    ParameterStore language;
    CHECK(GPT(language, config).transformer_parameters() == count.gpt2_vocabulary);
    CHECK(language.numel() == count.gpt2_vocabulary);
  }
  CHECK(GPTConfig::preset_names().size() == 9 + 7 + 13);  // minGPT's, BLOOM, like Llama
  CHECK_THROWS_WITH_AS(
      GPTConfig::preset("gpt-huge"),
      "gpt: model type: expected one of openai-gpt, gpt2, gpt2-medium, "
      "gpt2-large, gpt2-xl, gopher-44m, gpt-mini, gpt-micro, gpt-nano, "
      "bloom-560m, bloom-1b1, bloom-1b7, bloom-3b, bloom-7b1, bloom-13b, "
      "bloom-176b, llama-2-7b, llama-3.1-8b, llama-3.2-1b, llama-3.2-3b, smollm2-135m, "
      "smollm2-360m, smollm2-1.7b, mistral-7b, qwen2-0.5b, qwen2-1.5b, qwen3-0.6b, "
      "qwen3-1.7b, qwen3-4b, got 'gpt-huge'",
      ConfigError);
}

TEST_CASE("presets of Llama, SmolLM2, Mistral and Qwen have the published parameter counts") {
  struct Count {
    const char* name;
    int64_t parameters;
  };
  for (const Count& count : {Count{"llama-2-7b", 6738415616}, Count{"llama-3.1-8b", 8030261248},
                             Count{"llama-3.2-1b", 1235814400}, Count{"llama-3.2-3b", 3212749824},
                             Count{"smollm2-135m", 134515008}, Count{"smollm2-360m", 361821120},
                             Count{"smollm2-1.7b", 1711376384}, Count{"mistral-7b", 7241732096},
                             Count{"qwen2-0.5b", 494032768}, Count{"qwen2-1.5b", 1543714304},
                             Count{"qwen3-0.6b", 596049920}, Count{"qwen3-1.7b", 1720574976},
                             Count{"qwen3-4b", 4022468096}}) {
    CAPTURE(count.name);
    ParameterStore store;
    const GPT model(store, GPTConfig::preset(count.name));
    CHECK(store.numel() == count.parameters);
  }
}

TEST_CASE(
    "GPTConfig::published sets the vocabulary and block size that a model was published with") {
  struct Published {
    const char* name;
    int64_t vocabulary, positions;
  };
  for (const Published& model :
       {Published{"openai-gpt", 40478, 512}, Published{"gpt2", 50257, 1024},
        Published{"gpt2-medium", 50257, 1024}, Published{"gpt2-large", 50257, 1024},
        Published{"gpt2-xl", 50257, 1024}, Published{"gopher-44m", 32000, 2048},
        Published{"gpt-mini", 0, 0}, Published{"gpt-micro", 0, 0}, Published{"gpt-nano", 0, 0},
        Published{"bloom-560m", 250880, 2048}, Published{"bloom-13b", 50304, 2048}}) {
    CAPTURE(model.name);
    const GPTConfig config = GPTConfig::published(model.name),
                    named = GPTConfig::preset(model.name);
    CHECK(config.vocabulary == model.vocabulary);
    CHECK(config.block_size == model.positions);
    CHECK(config.layers == named.layers);
    CHECK(config.width == named.width);
    CHECK(config.tied == named.tied);
    // preset() sets the vocabulary of BLOOM only; for the others the data decides it.
    CHECK(named.vocabulary == (named.family == Family::bloom ? model.vocabulary : 0));
  }
  CHECK_THROWS_AS(GPTConfig::published("gpt-huge"), ConfigError);
}

TEST_CASE("parameters have the names, shapes, units and decay of minGPT's state dict") {
  ParameterStore store;
  const GPT model(store, one_small_layer());
  std::string listing;
  for (const auto& p : store.parameters())
    listing +=
        p->unit->name + " " + p->name + " " + p->shape.str() + (p->decay ? " decay" : "") + "\n";
  CHECK(listing ==
        "embedding transformer.wte.weight [5, 8]\n"
        "embedding transformer.wpe.weight [4, 8]\n"
        "block.0 transformer.h.0.ln_1.weight [8]\n"
        "block.0 transformer.h.0.ln_1.bias [8]\n"
        "block.0 transformer.h.0.attn.c_attn.weight [24, 8] decay\n"
        "block.0 transformer.h.0.attn.c_attn.bias [24]\n"
        "block.0 transformer.h.0.attn.c_proj.weight [8, 8] decay\n"
        "block.0 transformer.h.0.attn.c_proj.bias [8]\n"
        "block.0 transformer.h.0.ln_2.weight [8]\n"
        "block.0 transformer.h.0.ln_2.bias [8]\n"
        "block.0 transformer.h.0.mlp.c_fc.weight [32, 8] decay\n"
        "block.0 transformer.h.0.mlp.c_fc.bias [32]\n"
        "block.0 transformer.h.0.mlp.c_proj.weight [8, 32] decay\n"
        "block.0 transformer.h.0.mlp.c_proj.bias [8]\n"
        "head transformer.ln_f.weight [8]\n"
        "head transformer.ln_f.bias [8]\n"
        "head lm_head.weight [5, 8] decay\n");

  GPTConfig tied = one_small_layer();
  tied.tied = true;
  ParameterStore shared;
  const GPT tied_model(shared, tied);
  CHECK(shared.find("lm_head.weight") == nullptr);
  CHECK_FALSE(shared.find("transformer.wte.weight")->decay);
}

TEST_CASE(
    "weights start with standard deviation 0.02, projections into the residual stream with less") {
  GPTConfig config = GPTConfig::preset("gpt-mini");
  config.vocabulary = 1000;
  config.block_size = 128;
  ParameterStore store;
  const GPT model(store, config);
  for (const auto& p : store.parameters()) {
    CAPTURE(p->name);
    const auto ends = [&](const char* ending) { return p->name.ends_with(ending); };
    const double deviation = stddev_of(*p);
    if (ends(".bias")) {
      CHECK(p->init.kind == Init::Kind::zeros);
    } else if (p->name.find("ln_") != std::string::npos) {
      CHECK(p->init.kind == Init::Kind::ones);
    } else {
      const double expected = ends("c_proj.weight") ? 0.02 / std::sqrt(2.0 * 6) : 0.02;
      // The standard deviation of n normal values has the relative standard error 1 / sqrt(2n). The
      // test allows five times that.
      const double n = static_cast<double>(p->shape.numel());
      CHECK(std::fabs(deviation / expected - 1.0) < 5.0 / std::sqrt(2.0 * n));
    }
  }
}

TEST_CASE("a config out of range is refused, naming the field") {
  const auto refused = [](const char* field, auto change) {
    CAPTURE(field);
    GPTConfig config = one_small_layer();
    change(config);
    ParameterStore store;
    std::string message;
    try {
      GPT(store, config);
    } catch (const ConfigError& error) {
      message = error.what();
    }
    CHECK(message.starts_with("gpt: " + std::string(field) + ": expected "));
    CHECK(store.parameters().empty());
  };
  refused("layers", [](GPTConfig& c) { c.layers = 0; });
  refused("width", [](GPTConfig& c) { c.width = -8; });
  refused("width", [](GPTConfig& c) { c.width = int64_t{1} << 40; });
  refused("heads", [](GPTConfig& c) { c.heads = 0; });
  refused("heads", [](GPTConfig& c) { c.heads = 3; });
  refused("heads", [](GPTConfig& c) { c.width = 4096, c.heads = 2; });
  refused("vocabulary", [](GPTConfig& c) { c.vocabulary = 0; });
  refused("block_size", [](GPTConfig& c) { c.block_size = 0; });
  refused("dropout", [](GPTConfig& c) { c.dropout = 1.0f; });
  refused("dropout", [](GPTConfig& c) { c.dropout = NAN; });
  refused("embedding_norm", [](GPTConfig& c) { c.embedding_norm = true; });
  refused("kv_heads", [](GPTConfig& c) { c.kv_heads = 1; });
  refused("kv_heads", [](GPTConfig& c) { c.kv_heads = 3; });
  refused("position", [](GPTConfig& c) { c.position = Position::rope; });
  refused("head_size", [](GPTConfig& c) { c.head_size = 1025; });
  refused("hidden", [](GPTConfig& c) { c.hidden = -1; });
  refused("window", [](GPTConfig& c) { c.window = -1; });
  refused("norm_epsilon", [](GPTConfig& c) { c.norm_epsilon = -1.0f; });
}

TEST_CASE("a second model with the same parameter names in one store is refused") {
  ParameterStore store;
  const GPT first(store, one_small_layer());
  CHECK_THROWS_AS(GPT(store, one_small_layer()), ConfigError);
}
