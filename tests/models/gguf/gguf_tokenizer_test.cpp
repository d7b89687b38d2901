#include <nlohmann/json.hpp>

#include "tests/models/gguf/gguf_reader.h"
#include "tests/support/error_message.h"
#include "zerograd/models/gguf/gguf.h"

// tests/long/gguf compares the ids that llama.cpp gives with those of transformers.
using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

struct TokenizerCase {
  GPTConfig config = GPTConfig::of(Family::llama);
  SpecialTokens tokens = {};
  std::string chat_template = {};
  std::vector<std::string> notes = {};

  explicit TokenizerCase(int64_t vocabulary) {
    config.layers = 1;
    config.heads = 1;
    config.width = config.hidden = 4;
    config.block_size = 8;
    config.vocabulary = vocabulary;
  }
  GGUFContents write(const json& tokenizer) {
    const TemporaryFolder folder;
    WeightSource weights{.path = "weights"};
    for (const HFTensor& tensor : hf_tensors(config))
      weights.shapes.emplace(tensor.name, tensor.shape);
    weights.read = [&](const std::string& name) {
      return std::vector<float>(static_cast<size_t>(weights.shapes.at(name).numel()), 1.0f);
    };
    notes = save_gguf(weights, {.config = config, .tokens = tokens}, folder / "x.gguf",
                      {.tokenizer = {.json = tokenizer.dump(), .chat_template = chat_template}})
                .notes;
    return GGUFContents(folder / "x.gguf");
  }
  template <class Type = Unsupported>
  std::string refusal(const json& tokenizer) {
    return message_of<Type>([&] { write(tokenizer); });
  }
};

json fixture_tokenizer(const std::string& name) {
  return json::parse(read_file(std::string(ZG_FIXTURES) + "tokenizer/" + name + "/tokenizer.json"));
}

json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", use_regex}};
}
json sequence(const json& first, bool use_regex) {
  return {{"type", "Sequence"}, {"pretokenizers", {first, byte_level(use_regex)}}};
}
json split_at(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

/// Letters a, b, c, two merges, and two added tokens behind a gap.
json small_byte_level() {
  return {{"added_tokens",
           {{{"id", 7}, {"content", "<s>"}, {"special", true}},
            {{"id", 8}, {"content", "<tool>"}, {"special", false}},
            {{"id", 9}, {"content", "<|end|>"}, {"special", false}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level(true)},
          {"post_processor", nullptr},
          {"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}}},
            {"merges", {"a b", {"ab", "c"}}}}}};
}

/// As Llama 2's: SentencePiece's BPE with bytes.
json small_sentencepiece() {
  return {{"added_tokens",
           {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
            {{"id", 1}, {"content", "<s>"}, {"special", true}},
            {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "▁"}},
              {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single",
             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}}},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"byte_fallback", true},
            {"vocab",
             {{"<unk>", 0},
              {"<s>", 1},
              {"</s>", 2},
              {"<0x0A>", 3},
              {"▁a", 4},
              {"▁ab", 5},
              {"▁", 6},
              {"a", 7},
              {"b", 8},
              {"ab", 9}}},
            {"merges", {"▁ a", "a b", "▁ ab", "▁a b"}}}}};
}

using Texts = std::vector<std::string>;
using Numbers = std::vector<int32_t>;

}  // namespace

TEST_CASE(
    "a byte-level tokenizer's tokens, kinds and merges are in the GGUF file, gaps as unused") {
  TokenizerCase c(11);
  c.tokens = {.bos = 7, .pad = 8, .eos = {9}};
  c.chat_template = "{{ messages }}";
  const GGUFContents file = c.write(small_byte_level());
  CHECK(file.text_of("tokenizer.ggml.model") == "gpt2");
  CHECK(file.text_of("tokenizer.ggml.pre") == "gpt-2");
  CHECK(file.at<Texts>("tokenizer.ggml.tokens") == Texts{"a", "b", "c", "ab", "abc", "[PAD5]",
                                                         "[PAD6]", "<s>", "<tool>", "<|end|>",
                                                         "[PAD10]"});
  CHECK(file.at<Numbers>("tokenizer.ggml.token_type") == Numbers{1, 1, 1, 1, 1, 5, 5, 3, 4, 3, 5});
  CHECK(file.at<Texts>("tokenizer.ggml.merges") == Texts{"a b", "ab c"});
  CHECK(file.count_of("tokenizer.ggml.bos_token_id") == 7);
  CHECK(file.count_of("tokenizer.ggml.eos_token_id") == 9);
  CHECK(file.count_of("tokenizer.ggml.padding_token_id") == 8);
  CHECK_FALSE(file.at<bool>("tokenizer.ggml.add_bos_token"));
  CHECK_FALSE(file.at<bool>("tokenizer.ggml.add_eos_token"));
  CHECK(file.text_of("tokenizer.chat_template") == "{{ messages }}");
  CHECK(c.notes.empty());

  TokenizerCase real(2000);
  const json gpt2 = fixture_tokenizer("gpt2");
  const GGUFContents written = real.write(gpt2);
  const auto& tokens = written.at<Texts>("tokenizer.ggml.tokens");
  for (const auto& [text, id] : gpt2["model"]["vocab"].items())
    CHECK(tokens[id.get<size_t>()] == text);
  CHECK(written.at<Texts>("tokenizer.ggml.merges").size() == gpt2["model"]["merges"].size());
  CHECK(TokenizerCase(2500).write(fixture_tokenizer("bloom")).text_of("tokenizer.ggml.pre") ==
        "bloom");
}

TEST_CASE("added tokens have the types and texts that convert_hf_to_gguf.py gives them") {
  // does_token_look_special() and _create_vocab_sentencepiece() of llama.cpp's conversion/base.py.
  struct Added {
    const char *content, *text;
    bool special;
    int32_t type;
  };
  const Added all[] = {
      {"<pad>", "<pad>", false, 3},         {"<mask>", "<mask>", false, 3},
      {"<2mass>", "<2mass>", false, 3},     {"[@BOS@]", "[@BOS@]", false, 3},
      {"<|x|>", "<|x|>", false, 3},         {"<\uff5cx\uff5c>", "<\uff5cx\uff5c>", false, 3},
      {"<unused7>", "<unused7>", false, 3}, {"\u2581s\u2581", "\u2581s\u2581", true, 3},
      {"\u2581\u2581", "  ", false, 4},     {"<call>", "<call>", false, 4}};
  for (json tokenizer : {small_byte_level(), small_sentencepiece()}) {
    int32_t id = 20;
    for (const Added& a : all)
      tokenizer["added_tokens"].push_back(
          {{"id", id++}, {"content", a.content}, {"special", a.special}});
    const GGUFContents file = TokenizerCase(30).write(tokenizer);
    for (size_t i = 0; i < std::size(all); ++i) {
      CAPTURE(std::string(all[i].content));
      CHECK(file.at<Numbers>("tokenizer.ggml.token_type")[20 + i] == all[i].type);
      CHECK(file.at<Texts>("tokenizer.ggml.tokens")[20 + i] == all[i].text);
    }
  }
}

TEST_CASE("tokens and merges beyond the model's table are left out, with a note") {
  TokenizerCase c(4);
  json tokenizer = small_byte_level();
  const GGUFContents file = c.write(tokenizer);
  CHECK(file.at<Texts>("tokenizer.ggml.tokens") == Texts{"a", "b", "c", "ab"});
  CHECK(file.at<Texts>("tokenizer.ggml.merges") == Texts{"a b"});
  REQUIRE(c.notes.size() == 2);
  CHECK(contains(c.notes[0], "tokenizer.json: 4 tokens are left out, '"));
  CHECK(contains(c.notes[0], "' for one: the model has ids below 4"));
}

TEST_CASE("tokenizer.ggml.pre names the tokenizer's split, and another split is refused") {
  const std::string letters = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)",
                    rest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
                    llama3 = letters + R"(\p{N}{1,3})" + rest, qwen2 = letters + R"(\p{N})" + rest;
  struct Case {
    json splitter;
    bool ignores_merges;
    std::string expected;
  };
  const Case cases[] = {
      {byte_level(true), false, "gpt-2"},
      {sequence(split_at(llama3), false), true, "llama-bpe"},
      {sequence(split_at(llama3), false), false, "smaug-bpe"},
      {sequence(split_at(qwen2), false), false, "qwen2"},
      {sequence({{"type", "Digits"}, {"individual_digits", true}}, true), false, "smollm"},
      {sequence(split_at(R"(\p{N})"), true), false, "smollm"}};
  json tokenizer = small_byte_level();
  for (const Case& c : cases) {
    CAPTURE(c.expected);
    tokenizer["pre_tokenizer"] = c.splitter;
    tokenizer["model"]["ignore_merges"] = c.ignores_merges;
    CHECK(TokenizerCase(10).write(tokenizer).text_of("tokenizer.ggml.pre") == c.expected);
  }
  TokenizerCase c(10);
  tokenizer = small_byte_level();
  const auto refused = [&](const json& splitter, const std::string& words) {
    tokenizer["pre_tokenizer"] = splitter;
    const std::string message = c.refusal(tokenizer);
    CHECK(contains(message, words));
    CHECK(contains(message, "which llama.cpp has; leave the tokenizer out"));
  };
  refused(sequence(split_at(qwen2 + "|x"), false),
          "tokenizer.json: pre_tokenizer.pretokenizers[0].pattern is ");
  refused(sequence(split_at(qwen2), true), "the splits of GPT-2, Llama 3, Qwen2, SmolLM and BLOOM");
  refused(sequence({{"type", "Digits"}, {"individual_digits", false}}, true),
          "pretokenizers[0] is");
  refused(byte_level(false), "pre_tokenizer is ");
  refused({{"type", "Whitespace"}}, "expected ByteLevel");
  json prefixed = byte_level(true);
  prefixed["add_prefix_space"] = true;
  refused(prefixed, "pre_tokenizer.add_prefix_space is true; expected false");
  tokenizer["model"]["ignore_merges"] = true;
  tokenizer["pre_tokenizer"] = byte_level(true);
  CHECK(contains(c.refusal(tokenizer),
                 "model.ignore_merges is true; expected false with the split gpt-2"));
}

TEST_CASE("SentencePiece's BPE becomes scores for which llama.cpp makes the same merges") {
  TokenizerCase c(12);
  c.tokens = {.bos = 1, .pad = {}, .eos = {2}};
  const GGUFContents file = c.write(small_sentencepiece());
  CHECK(file.text_of("tokenizer.ggml.model") == "llama");
  CHECK(file.text_of("tokenizer.ggml.pre") == "default");
  CHECK(file.at<Numbers>("tokenizer.ggml.token_type") ==
        Numbers{3, 3, 3, 6, 1, 1, 1, 1, 1, 1, 5, 5});
  const auto& scores = file.at<std::vector<float>>("tokenizer.ggml.scores");
  CHECK(scores[4] == 0.0f);  // the first merge
  CHECK(scores[9] == -1.0f);
  CHECK(scores[5] == -2.0f);  // the first of its two merges
  CHECK(scores[7] < -1e6f);
  CHECK(scores.size() == 12);
  CHECK(file.at<bool>("tokenizer.ggml.add_space_prefix"));
  CHECK(file.at<bool>("tokenizer.ggml.add_bos_token"));
  CHECK_FALSE(file.at<bool>("tokenizer.ggml.add_eos_token"));
  CHECK(file.count_of("tokenizer.ggml.bos_token_id") == 1);
  CHECK(file.count_of("tokenizer.ggml.unknown_token_id") == 0);

  json tokenizer = small_sentencepiece();
  tokenizer["added_tokens"].erase(0);  // nothing but model.unk_token says what <unk> is
  CHECK(c.write(tokenizer).at<Numbers>("tokenizer.ggml.token_type")[0] == 2);
  tokenizer["normalizer"] = nullptr;
  tokenizer["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "never"}, {"split", false}};
  CHECK_FALSE(c.write(tokenizer).at<bool>("tokenizer.ggml.add_space_prefix"));
  tokenizer["pre_tokenizer"]["prepend_scheme"] = "first";
  CHECK(c.write(tokenizer).at<bool>("tokenizer.ggml.add_space_prefix"));
  tokenizer["pre_tokenizer"]["split"] = true;
  CHECK(contains(c.refusal(tokenizer), "pre_tokenizer.split is true; expected false"));

  tokenizer = small_sentencepiece();
  tokenizer["model"]["merges"] = {"▁ a", "▁a b", "a b", "▁ ab"};
  CHECK(contains(c.refusal(tokenizer), "model.merges[3] is "));
  CHECK(contains(c.refusal(tokenizer), "expected the merges of a token one after another"));
  tokenizer["model"]["merges"] = {"▁ a", "a b", "▁a b"};
  CHECK(contains(c.refusal(tokenizer), "model.merges has no merge of '▁' and 'ab'"));
  tokenizer = small_sentencepiece();
  tokenizer["model"]["vocab"][std::string(1 << 20, 'a')] = 10;
  CHECK(contains(c.refusal(tokenizer), "the token 10 has 1048576 bytes; expected at most 1024"));
  tokenizer = small_sentencepiece();
  tokenizer["model"]["byte_fallback"] = false;
  CHECK(contains(c.refusal(tokenizer), "model.byte_fallback is false; expected true"));
}

TEST_CASE(
    "the tokens around a text decide what llama.cpp adds, and a template with more is refused") {
  json tokenizer = small_byte_level();
  const auto special = [](const std::string& id) -> json {
    return {{"SpecialToken", {{"id", id}, {"type_id", 0}}}};
  };
  const json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const auto around = [&](const json& pieces) -> json {
    return {
        {"type", "Sequence"},
        {"processors", {byte_level(true), {{"type", "TemplateProcessing"}, {"single", pieces}}}}};
  };
  TokenizerCase c(10);
  c.tokens = {.bos = 2, .pad = {}, .eos = {1, 9}};
  tokenizer["post_processor"] = around({special("<s>"), text, special("<|end|>")});
  const GGUFContents file = c.write(tokenizer);
  CHECK(file.at<bool>("tokenizer.ggml.add_bos_token"));
  CHECK(file.at<bool>("tokenizer.ggml.add_eos_token"));
  CHECK(file.count_of("tokenizer.ggml.bos_token_id") == 7);
  CHECK(file.count_of("tokenizer.ggml.eos_token_id") == 9);
  CHECK(file.count_of("tokenizer.ggml.eot_token_id") == 1);
  CHECK_FALSE(file.metadata.contains("tokenizer.ggml.eom_token_id"));
  tokenizer["post_processor"] = around({special("<s>"), special("<s>"), text});
  CHECK(contains(c.refusal(tokenizer), "expected at most one token before and one after the text"));
  tokenizer["post_processor"] = {{"type", "RobertaProcessing"}};
  CHECK(contains(c.refusal(tokenizer), "post_processor is"));

  c.tokens = {.bos = {}, .pad = {}, .eos = {}};
  tokenizer["post_processor"] = nullptr;
  tokenizer["normalizer"] = {{"type", "NFC"}};
  const GGUFContents none = c.write(tokenizer);
  CHECK_FALSE(none.metadata.contains("tokenizer.ggml.bos_token_id"));
  CHECK_FALSE(none.metadata.contains("tokenizer.ggml.eos_token_id"));
  REQUIRE(c.notes.size() == 2);
  CHECK(contains(c.notes[0], "normalizer is NFC"));
  CHECK(contains(c.notes[1], "no token that ends a text"));
  c.tokens.eos = {1, 2, 3, 4};
  c.write(tokenizer);
  CHECK(contains(c.notes[1], "4 tokens that end a text; the first 3 are written"));
}

TEST_CASE("save_gguf names the key of a tokenizer that is damaged or does not fit the model") {
  TokenizerCase c(10);
  const auto with = [&](const std::string& pointer, const json& value) {
    json tokenizer = small_byte_level();
    tokenizer[json::json_pointer(pointer)] = value;
    return tokenizer;
  };
  CHECK(
      contains(c.refusal<FileError>(with("/model/vocab/b", 0)), "model.vocab.b: expected one id"));
  CHECK(contains(c.refusal<FileError>(with("/model/vocab/b", -1)), "model.vocab.b"));
  CHECK(contains(c.refusal<FileError>(with("/model/merges/0", "a x")), "model.merges[0]"));
  CHECK(contains(c.refusal<FileError>(with("/model/merges/0", "ab")), "model.merges[0]"));
  CHECK(contains(c.refusal(with("/model/vocab/[PAD5]", 6)), "'[PAD5]' is a token"));
  CHECK(contains(c.refusal(with("/model/type", "Unigram")),
                 "model.type is \"Unigram\"; expected BPE"));
  CHECK(contains(c.refusal(with("/model/end_of_word_suffix", "</w>")), "model.end_of_word_suffix"));
  CHECK(
      contains(c.refusal(with("/added_tokens/0/lstrip", true)), "added_tokens[0].lstrip is true"));
  CHECK(contains(c.refusal(with("/normalizer", {{"type", "Lowercase"}})), "normalizer is"));
  const json none = {{"type", "Sequence"}, {"pretokenizers", json::array()}};
  CHECK(contains(c.refusal(with("/pre_tokenizer", none)), "pre_tokenizer is"));
  CHECK(c.refusal(small_byte_level()) == "nothing was thrown");
}

TEST_CASE("gguf_tokenizer reads a folder's tokenizer.json and its chat template") {
  const TemporaryFolder folder;
  CHECK(gguf_tokenizer(folder.path()).json.empty());
  write_file(folder / "tokenizer.json", "{}");
  CHECK(gguf_tokenizer(folder.path()).json == "{}");
  CHECK(gguf_tokenizer(folder.path()).path == folder / "tokenizer.json");
  CHECK(gguf_tokenizer(folder.path()).chat_template.empty());
  write_file(folder / "tokenizer_config.json", R"({"chat_template": "{{ b }}"})");
  CHECK(gguf_tokenizer(folder.path()).chat_template == "{{ b }}");
  write_file(folder / "tokenizer_config.json",
             R"({"chat_template": [{"name": "tools", "template": "x"},
                                   {"name": "default", "template": "{{ c }}"}]})");
  CHECK(gguf_tokenizer(folder.path()).chat_template == "{{ c }}");
  // AutoTokenizer, too, takes it before the config's.
  write_file(folder / "chat_template.jinja", "{{ a }}");
  CHECK(gguf_tokenizer(folder.path()).chat_template == "{{ a }}");
  write_file(folder / "tokenizer_config.json", "[");
  CHECK_ERROR(FileError, "tokenizer_config.json:1:2: is not JSON", gguf_tokenizer(folder.path()));
}
