// Tokenizers of Llama, Mistral, Qwen and SmolLM2 against Hugging Face's tokenizers.

#include <nlohmann/json.hpp>

#include "tests/models/tokenizer/tokenizer_text.h"
#include "tests/support/error_message.h"
#include "zerograd/models/tokenizer/corpus.h"
#include "zerograd/models/tokenizer/text_stream.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/checksum.h"

namespace zg::testing {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr const char* family_names[] = {"gpt2", "llama3", "qwen", "smollm2", "llama2", "mistral"};

json family_file(const std::string& name) {
  return json::parse(read_file(ZG_FIXTURES "tokenizer/families/" + name + ".json"));
}

const std::vector<std::string>& odd_texts() {
  static const auto texts = family_file("texts").get<std::vector<std::string>>();
  return texts;
}

models::Tokenizer read_family(const json& file) {
  return models::tokenizer_from_json(file.dump(), "family.json");
}

template <class T>
std::string hash_in_all(const T& values) {
  return checksum(std::as_bytes(std::span(values)));
}

std::string streamed(const models::Tokenizer& tokenizer, const Ids& ids) {
  const auto stream = models::text_stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream->decode(id);
  return text + stream->rest();
}

}  // namespace

TEST_CASE("ids and decoded texts of modern families equal those of Hugging Face's tokenizers") {
  const std::vector<std::string>& texts = odd_texts();
  REQUIRE(texts.size() == 500);
  for (const char* name : family_names) {
    CAPTURE(name);
    const json record = family_file(name);
    const models::Tokenizer tokenizer = read_family(record["tokenizer"]);
    REQUIRE(record["ids"].size() == texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      const Ids expected = record["ids"][i];
      CHECK(json(tokenizer.encode(texts[i])) == json(expected));
      const json& decoded = record["decoded"][i];
      CHECK(readable_utf8(tokenizer.decode(expected)) ==
            (decoded.is_null() ? texts[i] : decoded.get<std::string>()));
    }
    for (const json& row : record["drawn"]) {
      CAPTURE(row.dump());
      CHECK(readable_utf8(tokenizer.decode(row[0].get<Ids>())) == row[1].get<std::string>());
    }
    for (const json& row : record["document"])
      CHECK(json(tokenizer.encode_document(texts[row[0].get<size_t>()])) == row[1]);
  }
}

TEST_CASE("variants of the families' steps give the ids and texts of Hugging Face's tokenizers") {
  for (const char* name : family_names) {
    CAPTURE(name);
    const json record = family_file(name);
    for (const auto& [variant, expected] : record["variants"].items()) {
      CAPTURE(variant);
      const models::Tokenizer tokenizer =
          read_family(patched(record["tokenizer"], expected["patch"]));
      Ids all;
      std::string decoded;
      for (const std::string& text : odd_texts()) {
        const Ids ids = tokenizer.encode(text);
        all.insert(all.end(), ids.begin(), ids.end());
        decoded += readable_utf8(tokenizer.decode(ids));
      }
      CHECK(all.size() == expected["ids"].get<size_t>());
      CHECK(hash_in_all(all) == expected["hash"].get<std::string>());
      CHECK(hash_in_all(decoded) == expected["text"].get<std::string>());
    }
  }
}

TEST_CASE("the spans of tokens are the offsets of Hugging Face's tokenizers") {
  const json hashes = family_file("spans");
  for (const auto& [kind, expected] : hashes.items()) {
    CAPTURE(kind);
    const size_t slash = std::min(kind.find('/'), kind.size());
    const json record = family_file(kind.substr(0, slash));
    json file = record["tokenizer"];
    if (slash < kind.size())
      file = patched(file, record["variants"][kind.substr(slash + 1)]["patch"]);
    const models::Tokenizer tokenizer = read_family(file);
    Ids all;
    for (const std::string& text : odd_texts()) {
      const models::EncodedText encoded = tokenizer.encode_with_spans(text);
      CHECK(encoded.ids == tokenizer.encode(text));
      for (const models::TextSpan& span : encoded.spans)
        all.insert(all.end(), {static_cast<int32_t>(span.begin), static_cast<int32_t>(span.end)});
    }
    CHECK(hash_in_all(all) == expected.get<std::string>());
  }
  // A prefix has the span of what follows, the bytes of a character that of the character, and
  // NFC leaves that of the first part. lstrip and rstrip are part of an added token.
  using Spans = std::vector<std::pair<size_t, size_t>>;
  const auto spans = [](const char* family, const std::string& text) {
    Spans spans;
    for (const auto& [begin, end] :
         read_family(family_file(family)["tokenizer"]).encode_with_spans(text).spans)
      spans.emplace_back(begin, end);
    return spans;
  };
  CHECK(spans("llama2", "Hi\n<s>x") ==
        Spans{{0, 1}, {0, 1}, {1, 2}, {2, 3}, {3, 6}, {6, 7}, {6, 7}});
  CHECK(spans("llama2", "\xf0\x9f\x99\x82") == Spans{{0, 4}, {0, 4}, {0, 4}, {0, 4}, {0, 4}});
  CHECK(spans("qwen", "Xe\u0301 ") == Spans{{0, 1}, {1, 2}, {1, 2}, {4, 5}});
  CHECK(spans("gpt2", "a  <l>b<r>  c") == Spans{{0, 1}, {1, 6}, {6, 7}, {7, 12}, {12, 13}});
}

TEST_CASE("a family's tokenizer.json is written with every field that changes ids or texts") {
  for (const char* name : family_names) {
    CAPTURE(name);
    const json record = family_file(name);
    json variants = {{"", {{"patch", json::object()}}}};
    variants.update(record["variants"]);
    for (const auto& [variant, row] : variants.items()) {
      CAPTURE(variant);
      json expected = patched(record["tokenizer"], row["patch"]);
      const models::Tokenizer tokenizer = read_family(expected);
      const std::string text = models::tokenizer_json(tokenizer);
      CHECK(models::tokenizer_json(models::tokenizer_from_json(text, "again")) == text);
      json written = json::parse(text);
      // Without a template ByteLevel as post_processor changes only offsets, as do these fields.
      if (tokenizer.parts().around == models::TextTemplate())
        for (json* file : {&written, &expected}) file->erase("post_processor");
      if (models::is_byte_level(tokenizer.parts())) {
        for (json* file : {&written, &expected}) file->erase("decoder");
        json* steps[] = {&written["pre_tokenizer"], &expected["pre_tokenizer"]};
        for (json* step : steps) {
          json& last = step->contains("pretokenizers") ? (*step)["pretokenizers"].back() : *step;
          last.erase("trim_offsets");
        }
      }
      // A merge may be written as a text or as a pair, and each token has a place in the
      // vocabulary.
      for (json& merge : written["model"]["merges"])
        if (const auto pair = merge.get<std::string>(); true)
          merge = {pair.substr(0, pair.find(' ')), pair.substr(pair.find(' ') + 1)};
      for (const json& token : expected["added_tokens"])
        if (written["model"]["vocab"].contains(token["content"]))
          expected["model"]["vocab"][token["content"].get<std::string>()] = token["id"];
      CHECK(json::diff(written, expected).dump() == "[]");
    }
  }
}

TEST_CASE("NFC of code points of every plane in several contexts equals that of tokenizers") {
  const json expected = family_file("nfc");
  json file = family_file("gpt2")["tokenizer"];
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"] = json::array();
  const models::Tokenizer tokenizer = read_family(file);
  REQUIRE(expected.size() == 0x110);
  // All code points below U+30000. No later one is changed: one block of eight.
  for (char32_t begin = 0; begin < 0x110000; begin += begin < 0x30000 ? 0x1000 : 0x8000) {
    std::string text;
    for (char32_t code = begin; code < begin + 0x1000; ++code) {
      if (code >= 0xd800 && code < 0xe000) continue;
      const std::string c = utf8(code);
      text +=
          c + "|a" + c + "\u0301|\u0344" + c + "\u0323|\uac00" + c + "\u11a8|" + c + c + "\u0323|";
    }
    CAPTURE(static_cast<uint32_t>(begin));
    // Every byte has a token, so that decode() restores the normalized text.
    CHECK(hash_in_all(tokenizer.decode(tokenizer.encode(text))) ==
          expected[begin / 0x1000].get<std::string>());
  }
  CHECK(tokenizer.decode(tokenizer.encode("e\u0301\xff\u0301"
                                          "e\u0301\xcc")) == "\u00e9\xff\u0301\u00e9\xcc");
}

// Merging that is quadratic in the text would exceed the time that ctest allows.
TEST_CASE("a megabyte without a word split is encoded, and decoded to the same text") {
  json file = family_file("llama2")["tokenizer"];
  file["added_tokens"] = json::array();  // decode() does not restore the spaces beside them
  const models::Tokenizer tokenizer = read_family(file);
  const std::string megabyte = MixedText(ZG_FIXTURES "tokenizer/seed.txt").first(MixedText::blocks);
  const Ids ids = tokenizer.encode(megabyte);
  CHECK(megabyte.size() > 1'000'000);
  CHECK(ids.size() > megabyte.size() / 4);
  CHECK((tokenizer.decode(ids) == megabyte));
}

TEST_CASE("the tokens before a text are in documents and prompts, and not in decoded streams") {
  for (const char* name : {"llama2", "llama3", "mistral"}) {
    CAPTURE(name);
    const json record = family_file(name);
    const models::Tokenizer tokenizer = read_family(record["tokenizer"]);
    const int32_t bos =
        tokenizer.id_of_added(std::string(name) == "llama3" ? "<|begin_of_text|>" : "<s>").value();
    CHECK(tokenizer.parts().around == models::TextTemplate{.before = {bos}, .after = {}});
    CHECK(models::special_tokens_of(tokenizer).bos == bos);
    const Ids prompt = models::text_stream(tokenizer)->encode("the world");
    Ids expected = {bos};
    for (const int32_t id : tokenizer.encode("the world")) expected.push_back(id);
    CHECK(prompt == expected);
    CHECK(streamed(tokenizer, prompt) == "the world");
    CHECK(models::text_stream(tokenizer)->encode("") == Ids{bos});
    for (const std::string& text : odd_texts()) {
      CAPTURE(text);
      const Ids ids = tokenizer.encode(text);
      const std::string whole = tokenizer.decode(ids);
      // Streams restore characters of bytes one by one, and so more than decode() of a run with a
      // wrong byte.
      if (whole.find("\uFFFD") == std::string::npos && !ids.empty() && ids.front() != bos)
        CHECK(streamed(tokenizer, ids) == whole);
    }
  }
}

TEST_CASE("a corpus has the tokens before a text at the begin of each document") {
  struct Written final : models::TokenWriter {
    std::vector<Ids> documents;
    void add_document(std::span<const int32_t> tokens) override {
      documents.emplace_back(tokens.begin(), tokens.end());
    }
    void finish() override {}
  };
  const TemporaryFolder folder;
  write_file(folder / "a.jsonl", "{\"text\": \"the world\"}\n{\"text\": \"\"}\n{\"text\": \"x\"}");
  const models::Tokenizer tokenizer = read_family(family_file("llama2")["tokenizer"]);
  models::TextDocuments documents({folder / "a.jsonl"});
  Written written;
  const models::CorpusCounts counts = models::tokenize_corpus(documents, tokenizer, written);
  CHECK(counts.empty == 1);
  CHECK(written.documents ==
        std::vector<Ids>{tokenizer.encode_document("the world"), tokenizer.encode_document("x")});
  write_file(folder / "a.txt", "the world of words in the world");
  const Ids whole = tokenizer.encode_document("the world of words in the world");
  const auto length = static_cast<int64_t>(whole.size()) - 1;
  const auto data = models::tokenized_dataset(folder / "a.txt", tokenizer,
                                              {.block_size = length, .validation_fraction = 0.0});
  Ids ids(whole.size() - 1), targets(whole.size() - 1);
  data->sample(models::Split::train, 0, ids.data(), targets.data());
  CHECK(ids == Ids(whole.begin(), whole.end() - 1));
  CHECK(targets == Ids(whole.begin() + 1, whole.end()));
}

TEST_CASE("a tokenizer of characters is saved without vocab.json and merges.txt") {
  const TemporaryFolder folder;
  const models::Tokenizer tokenizer = read_family(family_file("mistral")["tokenizer"]);
  models::save_tokenizer(tokenizer, folder / "t");
  CHECK(!std::filesystem::exists(folder / "t/vocab.json"));
  const models::Tokenizer again = models::load_tokenizer(folder / "t");
  CHECK(models::tokenizer_json(again) == models::tokenizer_json(tokenizer));
  // Another template replaces that of the file.
  const models::TextTemplate ends = {.before = {}, .after = {2, 1}};
  CHECK(models::tokenizer_from_json(models::tokenizer_json(tokenizer, ends), "t").parts().around ==
        ends);
  CHECK(models::tokenizer_from_json(models::tokenizer_json(tokenizer, models::TextTemplate()), "t")
            .parts()
            .around == models::TextTemplate());
}

TEST_CASE("steps that no family here has are refused with file, key and the known types") {
  const auto refused = [](const char* name, const char* pointer, const json& value,
                          const std::string& expected) {
    CAPTURE(pointer);
    json file = family_file(name)["tokenizer"];
    file[json::json_pointer(pointer)] = value;
    std::string message = "nothing was thrown";
    try {
      read_family(file);
    } catch (const FileError& error) {
      message = std::string("FileError ") + error.what();
    } catch (const Unsupported& error) {
      message = std::string("Unsupported ") + error.what();
    }
    CAPTURE(message);
    CHECK(contains(message, expected));
  };
  const std::string place = "Unsupported family.json: ", wrong = "FileError family.json: ";
  for (const char* type : {"Lowercase", "NFKC", "StripAccents", "Precompiled", "BertNormalizer"})
    refused("qwen", "/normalizer/type", type,
            place + "normalizer.type is \"" + type + "\"; expected \"NFC\", \"Prepend\"");
  refused("llama2", "/normalizer/normalizers/1/pattern", {{"Regex", " +"}},
          place + "normalizer.normalizers[1].pattern is");
  refused("llama2", "/normalizer/normalizers/1/pattern", {{"String", ""}},
          wrong + "normalizer.normalizers[1].pattern.String: expected a text");
  const json longer = {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}};
  refused("qwen", "/normalizer",
          {{"type", "Sequence"}, {"normalizers", std::vector<json>(13, longer)}},
          place + "normalizer: steps that may make a text 512 times longer");
  refused("llama2", "/decoder", {{"type", "Sequence"}, {"decoders", std::vector<json>(13, longer)}},
          place + "decoder: steps that may make a text 512 times longer");
  refused("mistral", "/normalizer", {{"type", "Prepend"}, {"prepend", std::string(256, 'a')}},
          place + "normalizer: steps that may make a text 257 times longer");
  refused("llama2", "/post_processor/special_tokens/<s>/ids", std::vector<int>(4097, 1),
          place + "post_processor.single is");
  for (const char* type : {"Whitespace", "BertPreTokenizer", "Punctuation", "UnicodeScripts"})
    refused("llama3", "/pre_tokenizer/pretokenizers/0/type", type,
            place + "pre_tokenizer.pretokenizers[0].type is \"" + type + "\"; expected \"Split\"");
  refused("llama3", "/pre_tokenizer/pretokenizers/0/behavior", "Dropped",
          place + "pre_tokenizer.pretokenizers[0].behavior is \"Dropped\"; expected \"Isolated\"");
  refused("smollm2", "/pre_tokenizer/pretokenizers/0",
          {{"type", "ByteLevel"}, {"add_prefix_space", false}},
          place + "pre_tokenizer: ByteLevel before another step");
  refused("mistral", "/pre_tokenizer/replacement", "ab",
          wrong + "pre_tokenizer.replacement: expected one character");
  refused("mistral", "/pre_tokenizer/prepend_scheme", "last",
          wrong + "pre_tokenizer.prepend_scheme: expected \"first\"");
  refused("mistral", "/pre_tokenizer/add_prefix_space", false,
          wrong + "pre_tokenizer.add_prefix_space: expected what prepend_scheme says");
  for (const char* type : {"WordPiece", "CTC", "BPEDecoder", "ByteLevel"})
    refused("llama2", "/decoder/decoders/0/type", type,
            place + "decoder.decoders[0].type is \"" + type + "\"; expected \"Replace\"");
  refused("llama2", "/decoder", nullptr, place + "decoder is null; expected Metaspace");
  refused("llama3", "/decoder/type", "Metaspace", place + "decoder.type is \"Metaspace\"");
  refused("llama2", "/post_processor/type", "BertProcessing", place + "post_processor.type is");
  refused("llama2", "/post_processor/special_tokens", json::object(),
          wrong + "post_processor.special_tokens.<s>: expected an object, got null");
  refused("llama2", "/post_processor/special_tokens/<s>/ids/0", 1 << 20,
          wrong + "post_processor: token 1048576; expected ids below");
  refused("llama2", "/post_processor/single/1/Sequence/id", "B",
          place + "post_processor.single[1].Sequence.id is \"B\"; expected one \"A\"");
  refused("llama2", "/model/unk_token", "nothing",
          wrong + "model.unk_token: expected a token of model.vocab, got \"nothing\"");
  refused("llama3", "/model/vocab/x<|eot|>x", 1000000,
          wrong + "added_tokens[0].id: expected 421, the next id after those of model.vocab");
  const json last = family_file("gpt2")["tokenizer"]["added_tokens"].back();
  refused("gpt2", "/added_tokens/0/id", last["id"], wrong + "added_tokens[0].id: expected ");
}

}  // namespace zg::testing
