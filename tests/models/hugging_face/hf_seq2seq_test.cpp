#include "zerograd/models/hugging_face/hf_seq2seq.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/models/seq2seq/seq2seq_case.h"
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

// tests/reference/make_seq2seq_fixtures.py makes the fixtures with transformers.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

json seq2seq_json(const std::string& name) {
  return json::parse(read_text(std::string(ZG_FIXTURES) + name + "/config.json"));
}

/// The message of the error for a config with another value of one key.
std::string refused_seq2seq(const char* key, const json& value) {
  json config = seq2seq_json("hf_blenderbot");
  config[key] = value;
  return message_of<Error>([&] { hf_seq2seq(config.dump(), "c.json"); });
}

/// Weights with some tensors of a fixture changed, written to a folder with its config.json.
void write_seq2seq(const std::string& folder, const json& config,
                   const std::map<std::string, std::pair<Shape, std::vector<float>>>& tensors) {
  std::vector<SafetensorsWriter::Entry> entries;
  for (const auto& [name, tensor] : tensors) entries.push_back({name, DType::f32, tensor.first});
  std::filesystem::create_directories(folder);
  SafetensorsWriter writer(folder + "/model.safetensors", entries, {{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) writer.write_floats(tensor.second);
  writer.finish();
  write_file(folder + "/config.json", config.dump());
}

}  // namespace

TEST_CASE("folders of BlenderBot and BART that are written are read back unchanged") {
  for (const char* name : seq2seq_fixtures) {
    CAPTURE(std::string(name));
    const TemporaryFolder folder;
    const Seq2SeqFolder theirs(std::string(ZG_FIXTURES) + name);
    const HFSeq2Seq& model = theirs.model();
    std::string note;
    const WeightSource weights = theirs.weights(model.config, &note);
    CHECK(note == "");
    export_hugging_face(weights, model, folder / "written");
    const Seq2SeqFolder written(folder / "written");
    CHECK((written.model().config == model.config));
    CHECK(written.model().generation.beams == 3);
    CHECK(written.model().generation.max_length == 9);
    CHECK(written.model().generation.start == std::vector{model.config.tokens.decoder_start});
    CHECK(written.model().generation.eos == model.config.tokens.eos);
    const WeightSource again = written.weights(model.config);
    REQUIRE(again.shapes == weights.shapes);
    for (const auto& [tensor, shape] : weights.shapes)
      CHECK(again.read(tensor) == weights.read(tensor));
  }
}

TEST_CASE("hf_seq2seq reads the sizes and features of both families") {
  const Seq2SeqConfig blenderbot =
      hf_seq2seq(seq2seq_json("hf_blenderbot").dump(), "config.json").config;
  CHECK(blenderbot.scaled_embedding);
  CHECK(blenderbot.pre_norm);
  CHECK(blenderbot.position_offset == 0);
  CHECK(blenderbot.mlp == nn::MlpKind::gelu_erf);
  CHECK((blenderbot.tokens ==
         Seq2SeqTokens{.pad = 0, .decoder_start = 1, .bos = 1, .eos = {2}, .forced_eos = {2}}));
  const Seq2SeqConfig bart = hf_seq2seq(seq2seq_json("hf_bart").dump(), "config.json").config;
  CHECK_FALSE(bart.scaled_embedding);
  CHECK_FALSE(bart.pre_norm);
  CHECK(bart.embedding_norm);
  CHECK(bart.position_offset == 2);
  CHECK(bart.mlp == nn::MlpKind::gelu_tanh);
  CHECK(bart.decoder_heads == 5);
  CHECK(is_hf_seq2seq(seq2seq_json("hf_bart").dump(), "config.json"));
  CHECK_FALSE(is_hf_seq2seq(R"({"model_type": "gpt2"})", "config.json"));
  // Without sizes a config.json is that of transformers' defaults.
  const Seq2SeqConfig defaults = hf_seq2seq(R"({"model_type": "bart"})", "config.json").config;
  Seq2SeqConfig large = Seq2SeqConfig::preset("bart-large");
  large.attention_dropout = large.activation_dropout = 0.0f;
  CHECK((defaults == large));
  const HFSeq2Seq larger = hf_seq2seq(R"({"model_type": "blenderbot"})", "c");
  CHECK(larger.config.decoder_layers == 24);
  CHECK(larger.generation.encoder_no_repeat_ngram_size == 3);
}

TEST_CASE("presets are written as transformers reads them") {
  for (const std::string& name : Seq2SeqConfig::preset_names()) {
    const Seq2SeqConfig config = Seq2SeqConfig::preset(name);
    CHECK((hf_seq2seq(hf_json(config), "written").config == config));
  }
  Seq2SeqConfig config = Seq2SeqConfig::preset("bart-base");
  config.position_offset = 0;
  CHECK_ERROR(Unsupported,
              "export: position_offset is 0; expected 2: the bart of transformers has no other",
              hf_json(config));
}

TEST_CASE(
    "options of generation are read from generation_config.json, or from an old config.json") {
  json old = seq2seq_json("hf_blenderbot");
  old.update(json{{"num_beams", 10},
                  {"length_penalty", 0.65},
                  {"min_length", 20},
                  {"max_length", 60},
                  {"no_repeat_ngram_size", 3},
                  {"early_stopping", true},
                  {"encoder_no_repeat_ngram_size", 3}});
  HFSeq2Seq model = hf_seq2seq(old.dump(), "config.json");
  CHECK(model.generation.beams == 10);
  CHECK(model.generation.length_penalty == 0.65);
  CHECK(model.generation.min_length == 20);
  CHECK(model.generation.max_length == 60);
  CHECK(model.generation.no_repeat_ngram_size == 3);
  CHECK(model.generation.encoder_no_repeat_ngram_size == 3);
  CHECK(model.generation.early_stopping == EarlyStopping::yes);
  CHECK(model.generation.forced_eos == std::vector<int32_t>{2});
  const std::string written = hf_generation_json(model.config, model.generation);
  HFSeq2Seq again = hf_seq2seq(seq2seq_json("hf_blenderbot").dump(), "config.json");
  read_hf_generation(written, "generation_config.json", again);
  CHECK(hf_generation_json(again.config, again.generation) == written);
  read_hf_generation(R"({"num_beams": 2, "early_stopping": "never"})", "g.json", model);
  CHECK(model.generation.beams == 2);
  CHECK(model.generation.early_stopping == EarlyStopping::never);
  CHECK_FALSE(model.generation.max_length);
  CHECK(model.generation.forced_eos.empty());
  CHECK(model.generation.start == std::vector<int32_t>{1});
  CHECK_ERROR(FileError, "g.json: num_beams: expected a count, got \"two\"",
              read_hf_generation(R"({"num_beams": "two"})", "g.json", model));
}

TEST_CASE("hf_seq2seq refuses other models and features and names the key") {
  CHECK(contains(refused_seq2seq("model_type", "blenderbot-small"),
                 "c.json: model_type is \"blenderbot-small\"; expected blenderbot or bart"));
  CHECK(contains(refused_seq2seq("activation_function", "relu"),
                 "c.json: activation_function is \"relu\"; expected \"gelu\" or \"gelu_new\""));
  CHECK(contains(refused_seq2seq("tie_word_embeddings", false), "c.json: tie_word_embeddings is"));
  CHECK(contains(refused_seq2seq("encoder_layerdrop", 0.1), "c.json: encoder_layerdrop is 0.1"));
  CHECK(contains(refused_seq2seq("is_encoder_decoder", false), "c.json: is_encoder_decoder is"));
  CHECK(contains(refused_seq2seq("d_model", -3), "c.json: d_model: expected a count, got -3"));
  CHECK(contains(refused_seq2seq("encoder_attention_heads", 5),
                 "c.json: seq2seq: encoder_heads: expected a divisor of the width 12, got 5"));
  CHECK(contains(refused_seq2seq("pad_token_id", nullptr),
                 "c.json: pad_token_id: expected the id of a token, got null"));
  CHECK(contains(refused_seq2seq("decoder_start_token_id", 37),
                 "tokens.decoder_start: expected an id from 0 to 36, got 37"));
  CHECK(contains(refused_seq2seq("early_stopping", "sometimes"),
                 "c.json: early_stopping: expected true, false or \"never\", got \"sometimes\""));
}

TEST_CASE("keys of generation without effect are noted, in both files, and written again") {
  json generation = {{"encoder_repetition_penalty", 2},
                     {"num_beam_groups", 2},
                     {"diversity_penalty", 0.5},
                     {"exponential_decay_length_penalty", {5, 1.1}},
                     {"sequence_bias", {{{5}, -2.0}}},
                     {"bad_words_ids", {{3}}},
                     {"stop_strings", "."},
                     {"renormalize_logits", true},
                     {"temperature", 0.7}};
  const std::string note =
      "encoder_repetition_penalty, num_beam_groups, diversity_penalty, renormalize_logits, "
      "exponential_decay_length_penalty, sequence_bias, bad_words_ids, stop_strings, temperature";
  json old = seq2seq_json("hf_blenderbot");
  old.update(generation);
  HFSeq2Seq model = hf_seq2seq(old.dump(), "c.json");
  CHECK(model.generation_note == note);
  read_hf_generation(generation.dump(), "g.json", model);
  CHECK(model.generation_note == note);
  const json written =
      json::parse(hf_generation_json(model.config, model.generation, model.generation_json));
  for (const auto& [key, value] : generation.items()) CHECK(written[key] == value);
  // Values without effect.
  read_hf_generation(R"({"repetition_penalty": 1, "num_beam_groups": 1, "suppress_tokens": [],
                         "bad_words_ids": null, "diversity_penalty": 0.0, "do_sample": true,
                         "temperature": 0.7})",
                     "g.json", model);
  CHECK(model.generation_note == "");
}

TEST_CASE("do_sample, its options and penalties are read from generation_config.json") {
  const auto read = [](const json& generation) {
    return hf_generation(generation.dump(), "g.json", {.start = {7}, .eos = {8}});
  };
  HFGeneration sampled = read({{"do_sample", true},
                               {"temperature", 0.6},
                               {"top_p", 0.9},
                               {"repetition_penalty", 1.1},
                               {"suppress_tokens", {3, 4}},
                               {"begin_suppress_tokens", {5}}});
  REQUIRE(sampled.options.sampling);
  CHECK(sampled.options.sampling->temperature == 0.6);
  CHECK(sampled.options.sampling->top_k == 50);  // the default of transformers
  CHECK(sampled.options.sampling->top_p == 0.9);
  CHECK(sampled.options.repetition_penalty == 1.1);
  CHECK(sampled.options.suppressed == std::vector<int32_t>{3, 4});
  CHECK(sampled.options.begin_suppressed == std::vector<int32_t>{5});
  CHECK(sampled.options.eos == std::vector<int32_t>{8});
  CHECK(sampled.note == "");
  CHECK_FALSE(read({{"do_sample", false}}).options.sampling);
  CHECK(read({{"do_sample", false}}).do_sample == false);
  CHECK_FALSE(read({{"temperature", 0.6}}).do_sample.has_value());
  CHECK(read({{"top_k", 5}}).note == "top_k");  // needs do_sample
  CHECK(read({{"do_sample", true}, {"num_beams", 2}}).note == "do_sample");
  CHECK_ERROR(FileError, "g.json: top_k: expected a", read({{"do_sample", true}, {"top_k", "x"}}));
}

TEST_CASE("missing tensors, wrong shapes, further layers and copies that differ are refused") {
  const TemporaryFolder folder;
  const Seq2SeqFolder theirs(std::string(ZG_FIXTURES) + "hf_bart");
  const WeightSource weights = theirs.weights(theirs.model().config);
  std::map<std::string, std::pair<Shape, std::vector<float>>> tensors;
  for (const auto& [name, shape] : weights.shapes) tensors[name] = {shape, weights.read(name)};
  const json config = seq2seq_json("hf_bart");
  int number = 0;
  const auto read = [&](const auto& change, std::string* note = nullptr) {
    auto changed = tensors;
    change(changed);
    const std::string path = folder / std::to_string(number++);
    write_seq2seq(path, config, changed);
    const Seq2SeqFolder there(path);
    return there.weights(there.model().config, note);
  };
  const auto refused = [&](const auto& change) {
    return message_of<FileError>([&] { read(change); });
  };
  const std::string bias = "model.encoder.layers.1.fc1.bias", shared = "model.shared.weight";
  CHECK(contains(refused([&](auto& t) { t.erase(bias); }), "/0: has no '" + bias + "' [17]"));
  CHECK(contains(refused([&](auto& t) {
                   t[bias] = {Shape{2}, {1.0f, 2.0f}};
                 }),
                 "'" + bias + "' has shape [2]; expected [17]"));
  CHECK(contains(refused([&](auto& t) {
                   t["model.decoder.layers.1.fc1.bias"] = {Shape{1}, {1}};
                 }),
                 "for a bart of 2 encoder and 1 decoder layers (config.json)"));
  CHECK(contains(refused([&](auto& t) {
                   t["lm_head.weight"] = t[shared];
                   t["lm_head.weight"].second[3] += 1.0f;
                 }),
                 "'lm_head.weight' has other values than '" + shared + "'"));
  // Any of the names that are tied has the table: safetensors keeps one of them.
  for (const char* name : {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                           "lm_head.weight"}) {
    CAPTURE(std::string(name));
    const auto rename = [&](auto& t) {
      t[name] = t[shared];
      t.erase(shared);
    };
    CHECK(read(rename).read(shared) == weights.read(shared));
    CHECK(contains(refused([&](auto& t) {
                     rename(t);
                     t["shared.weight"] = t[name];
                     t["shared.weight"].second[3] += 1.0f;
                   }),
                   "' has other values than 'shared.weight'"));
  }
  CHECK(contains(refused([&](auto& t) { t.erase(shared); }), "has no '" + shared + "' [41, "));
  // Copies with equal values, a head without a bias, and names without "model." are as usual.
  std::string note;
  const WeightSource short_names = read(
      [&](auto& t) {
        t["lm_head.weight"] = t["model.encoder.embed_tokens.weight"] = t[shared];
        t.erase("final_logits_bias");
        t["unknown"] = {Shape{1}, {1.0f}};
        for (auto& [name, tensor] : tensors)
          if (name.starts_with("model.")) {
            t[name.substr(6)] = tensor;
            t.erase(name);
          }
      },
      &note);
  CHECK(short_names.read(shared) == weights.read(shared));
  CHECK(short_names.read("final_logits_bias") == std::vector<float>(41));
  CHECK(contains(note, "1 tensors are not used, 'unknown' for one"));
  Seq2SeqConfig longer = theirs.model().config;
  longer.positions = 14;
  CHECK_ERROR(FileError, "has 13 positions", theirs.weights(longer));
  Seq2SeqConfig shorter = theirs.model().config;
  shorter.positions = 4;
  const std::string table = "model.decoder.embed_positions.weight";
  std::vector<float> first_rows = weights.read(table);
  first_rows.resize(6 * 15);
  CHECK(theirs.weights(shorter).read(table) == first_rows);
}
