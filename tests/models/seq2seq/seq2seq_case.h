#pragma once

#include <string>
#include <vector>

#include "tests/models/gpt/gpt_case.h"
#include "tests/models/hugging_face/transformers_results.h"
#include "zerograd/models/hugging_face/hf_seq2seq.h"
#include "zerograd/models/seq2seq/seq2seq.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"

// Shared by tests of encoder-decoder models: models with their parameters, and what transformers
// computes with them (tests/reference/make_seq2seq_fixtures.py).
namespace zg::testing {

inline constexpr const char* seq2seq_fixtures[] = {"hf_blenderbot", "hf_bart"};

/// The ids and results of transformers for a model in a folder.
struct Seq2SeqFixture {
  std::string path;
  SafetensorsReader expected;

  explicit Seq2SeqFixture(const std::string& name)
      : path(std::string(ZG_FIXTURES) + name), expected(path + "/expected.safetensors") {}

  const Shape& shape(const std::string& name) const { return expected.entries().at(name).shape; }
  /// Integers, which transformers has as i64.
  std::vector<int32_t> ids(const std::string& name) const {
    std::vector<int64_t> wide(static_cast<size_t>(shape(name).numel()));
    File::open(path + "/expected.safetensors")
        .read_at(expected.entries().at(name).begin, std::as_writable_bytes(std::span(wide)));
    return {wide.begin(), wide.end()};
  }
  std::vector<std::vector<int32_t>> rows(const std::string& name) const {
    const std::vector<int32_t> all = ids(name);
    std::vector<std::vector<int32_t>> rows;
    const auto length = static_cast<std::ptrdiff_t>(shape(name)[1]);
    for (auto at = all.begin(); at != all.end(); at += length) rows.emplace_back(at, at + length);
    return rows;
  }
  /// The sources without padding.
  std::vector<std::vector<int32_t>> sources() const {
    std::vector<std::vector<int32_t>> found = rows("source");
    const std::vector<int32_t> lengths = ids("lengths");
    for (size_t i = 0; i < found.size(); ++i) found[i].resize(static_cast<size_t>(lengths[i]));
    return found;
  }
  models::Seq2SeqBatch batch(const Device& device) const {
    const auto tensor = [&](const char* name) {
      return Tensor::from(ids(name), shape(name), device);
    };
    return {.source = tensor("source"),
            .source_lengths = tensor("lengths"),
            .labels = tensor("labels")};
  }
  /// The largest difference, relative to the largest expected value.
  double error(const std::string& name, const std::vector<double>& got) const {
    return relative_error(got, expected.read_floats(name));
  }
};

/// True for the biases of keys. A softmax does not change if all its scores are moved by the same
/// number, so their gradient is 0, and what is computed is rounding.
inline bool has_no_gradient(const std::string& name) { return name.ends_with("k_proj.bias"); }

struct Seq2SeqCase : ModelCase<models::Seq2Seq> {
  explicit Seq2SeqCase(const models::Seq2SeqConfig& config, const Device& where = Device::cpu(),
                       DType dtype = DType::f32)
      : ModelCase(where, dtype, config) {}
};

/// The model of a fixture with its weights.
struct Seq2SeqFixtureCase : Seq2SeqCase {
  explicit Seq2SeqFixtureCase(const Seq2SeqFixture& fixture, const Device& device = Device::cpu())
      : Seq2SeqFixtureCase(models::Seq2SeqFolder(fixture.path), device) {}

 private:
  Seq2SeqFixtureCase(const models::Seq2SeqFolder& folder, const Device& device)
      : Seq2SeqCase(folder.model().config, device) {
    load_weights(folder.weights(model.config()), *this);
  }
};

/// A BlenderBot and a BART with dropout.
inline std::vector<models::Seq2SeqConfig> tiny_seq2seqs() {
  std::vector<models::Seq2SeqConfig> configs;
  for (const models::Seq2SeqFamily family :
       {models::Seq2SeqFamily::blenderbot, models::Seq2SeqFamily::bart}) {
    models::Seq2SeqConfig config = models::Seq2SeqConfig::of(family);
    config.width = 6;
    config.encoder_layers = config.decoder_layers = 2;
    config.encoder_heads = 2;
    config.decoder_heads = 3;
    config.encoder_hidden = 10;
    config.decoder_hidden = 9;
    config.vocabulary = 11;
    config.positions = 8;
    config.dropout = 0.2f;
    config.attention_dropout = 0.1f;
    config.activation_dropout = 0.15f;
    config.scaled_embedding = family == models::Seq2SeqFamily::blenderbot;
    configs.push_back(config);
  }
  return configs;
}

}  // namespace zg::testing
