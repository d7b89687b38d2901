#include "zerograd/models/tokenizer/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/models/tokenizer/tokenizer_text.h"
#include "tests/support/error_message.h"
#include "zerograd/models/data/data.h"
#include "zerograd/models/tokenizer/corpus.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/runtime/storage/checksum.h"
#include "zerograd/runtime/text/json.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

const std::string tokenizer_fixture = std::string(ZG_FIXTURES) + "tokenizer/";

const json& expected_tokens() {
  static const json record = json::parse(read_file(tokenizer_fixture + "expected.json"));
  return record;
}

const MixedText& mixed_text() {
  static const MixedText text(tokenizer_fixture + "seed.txt");
  return text;
}

std::string hash_of(const std::vector<int32_t>& ids) {
  return checksum(std::as_bytes(std::span(ids)));
}
std::string hash_of(const std::string& text) { return checksum(std::as_bytes(std::span(text))); }

// A vocabulary of the 256 bytes and of merges.
TokenizerParts bytes_and(std::vector<Merge> merges) {
  TokenizerParts parts = train_tokenizer("", {.vocabulary = 256, .added = {}}).parts();
  for (Merge& merge : merges) {
    merge.result = static_cast<int32_t>(parts.tokens.size());
    parts.tokens.push_back(parts.tokens[static_cast<size_t>(merge.left)] +
                           parts.tokens[static_cast<size_t>(merge.right)]);
  }
  parts.merges = std::move(merges);
  parts.pre_tokenizers = {ByteLevelStep{.use_regex = false}};
  return parts;
}

// By the definition: applies the first merge by rank that matches, at its leftmost position.
std::vector<int32_t> merged_plainly(std::vector<int32_t> ids, const std::vector<Merge>& merges) {
  for (bool found = true; found;) {
    found = false;
    for (const Merge& merge : merges) {
      const std::array<int32_t, 2> pair = {merge.left, merge.right};
      const auto place = std::search(ids.begin(), ids.end(), pair.begin(), pair.end());
      if (place == ids.end()) continue;
      *place = merge.result;
      ids.erase(place + 1);
      found = true;
      break;
    }
  }
  return ids;
}

}  // namespace

TEST_CASE("the generated mixed text equals the text that the fixture was made from") {
  const std::string text = mixed_text().first(MixedText::blocks);
  CHECK(text.size() == expected_tokens()["bytes"].get<size_t>());
  CHECK(hash_of(text) == expected_tokens()["text"].get<std::string>());
}

TEST_CASE(
    "a megabyte of mixed scripts is encoded to the same ids as by Hugging Face's tokenizers") {
  struct Case {
    const char *path, *record;
  };
  for (const Case& file :
       {Case{"gpt2/tokenizer.json", "gpt2"}, Case{"gpt2", "gpt2"}, Case{"bloom", "bloom"}}) {
    CAPTURE(file.path);
    const Tokenizer tokenizer = load_tokenizer(tokenizer_fixture + file.path);
    const json& rows = expected_tokens()[file.record];
    REQUIRE(rows.size() == MixedText::blocks);
    for (uint64_t number = 0; number < MixedText::blocks; ++number) {
      CAPTURE(number);
      const std::string text = mixed_text().block(number);
      const std::vector<int32_t> ids = tokenizer.encode(text);
      CHECK(ids.size() == rows[number][0].get<size_t>());
      CHECK(hash_of(ids) == rows[number][1].get<std::string>());
      CHECK(tokenizer.decode(ids) == text);
      // Random ids, which need not form valid UTF-8.
      Draws draws(1000 + number);
      std::vector<int32_t> drawn(500);
      for (int32_t& id : drawn)
        id = static_cast<int32_t>(draws.below(static_cast<uint64_t>(tokenizer.vocabulary())));
      CHECK(hash_of(readable_utf8(tokenizer.decode(drawn))) == rows[number][2].get<std::string>());
    }
  }
}

TEST_CASE(
    "vocab.json with merges.txt gives the tokenizer of tokenizer.json and is written back "
    "unchanged") {
  const GPT2Files files = {.vocabulary = read_file(tokenizer_fixture + "gpt2/vocab.json"),
                           .merges = read_file(tokenizer_fixture + "gpt2/merges.txt")};
  const Tokenizer of_both = tokenizer_from_gpt2(files, "gpt2");
  CHECK(tokenizer_json(of_both) == tokenizer_json(load_tokenizer(tokenizer_fixture + "gpt2")));
  CHECK(gpt2_files(of_both).vocabulary == files.vocabulary);
  CHECK(gpt2_files(of_both).merges == files.merges);
}

TEST_CASE("variants of a tokenizer.json give the same ids as Hugging Face's tokenizers") {
  const std::string text = mixed_text().block(0);
  for (const auto& [name, variant] : expected_tokens()["variants"].items()) {
    CAPTURE(name);
    json file = json::parse(read_file(tokenizer_fixture + "gpt2/tokenizer.json"));
    json& merges = file["model"]["merges"];
    merges.erase(merges.begin() + expected_tokens()["merges of variants"].get<int>(), merges.end());
    file.merge_patch(variant["patch"]);
    const Tokenizer tokenizer = tokenizer_from_json(file.dump(), "tokenizer.json");
    const std::vector<int32_t> ids = tokenizer.encode(text);
    CHECK(ids.size() == variant["ids"].get<size_t>());
    CHECK(hash_of(ids) == variant["hash"].get<std::string>());
    // Writing and reading the tokenizer again gives the same one.
    const Tokenizer again = tokenizer_from_json(tokenizer_json(tokenizer), "again");
    CHECK(again.encode(text) == ids);
    CHECK(tokenizer_json(again) == tokenizer_json(tokenizer));
  }
}

TEST_CASE("train_tokenizer gives the vocabulary of Hugging Face's trainer") {
  const std::string text = mixed_text().first(16);
  const Tokenizer gpt2 = train_tokenizer(text, {.vocabulary = 2000});
  CHECK(tokenizer_json(gpt2) == tokenizer_json(load_tokenizer(tokenizer_fixture + "gpt2")));
  const Tokenizer theirs = load_tokenizer(tokenizer_fixture + "bloom");
  const std::string bloom_split = std::get<SplitStep>(theirs.parts().pre_tokenizers[0]).pattern;
  const Tokenizer bloom = train_tokenizer(text, {.vocabulary = 2500,
                                                 .added = {"<unk>", "<s>", "</s>", "<pad>"},
                                                 .split = bloom_split,
                                                 .gpt2_split = false,
                                                 .min_count = 0});
  CHECK(tokenizer_json(bloom) == tokenizer_json(theirs));
}

TEST_CASE("a text with few pairs gives a smaller vocabulary than asked for") {
  const Tokenizer tokenizer = train_tokenizer("ab ab abc", {.vocabulary = 1000});
  // " a" occurs twice in " ab", then " ab"; "ab" without a space occurs once.
  CHECK(tokenizer.vocabulary() == 257 + 2);
  CHECK(tokenizer.encode(" ab ab").size() == 2);
  CHECK(contains(message_of<ConfigError>([] { train_tokenizer("a", {.vocabulary = 256}); }),
                 "at least 257 tokens"));
  CHECK(contains(message_of<ConfigError>([] {
                   train_tokenizer("a", {.added = {"x", "x"}});
                 }),
                 "differ, got 'x'"));
}

TEST_CASE("encode merges words of any length as the plain definition of BPE does") {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    Draws draws(seed);
    const uint64_t letters = 1 + draws.below(3);
    const auto byte_id = [](uint64_t letter) { return static_cast<int32_t>('a' - '!' + letter); };
    std::vector<Merge> merges;
    for (uint64_t count = draws.below(20); count > 0; --count) {
      const auto token = [&] {
        const uint64_t i = draws.below(letters + merges.size());
        return i < letters ? byte_id(i) : static_cast<int32_t>(256 + i - letters);
      };
      const int32_t left = token(), right = token();
      const auto same = [&](const Merge& merge) {
        return merge.left == left && merge.right == right;
      };
      if (std::ranges::none_of(merges, same)) merges.push_back({left, right, 0});
    }
    const TokenizerParts parts = bytes_and(merges);
    std::string word(1 + draws.below(120), 'a');
    for (char& letter : word) letter = static_cast<char>('a' + draws.below(letters));
    std::vector<int32_t> ids;
    for (const char letter : word) ids.push_back(byte_id(static_cast<uint64_t>(letter - 'a')));
    CHECK(Tokenizer(parts, "test").encode(word) == merged_plainly(ids, parts.merges));
  }
}

TEST_CASE("decoding the ids of any bytes gives the bytes back") {
  const Tokenizer tokenizer = load_tokenizer(tokenizer_fixture + "gpt2");
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    Draws draws(seed);
    std::string bytes = mixed_text().block(0).substr(draws.below(16000), draws.below(300));
    for (uint64_t count = draws.below(40); count > 0 && !bytes.empty(); --count)
      bytes[draws.below(bytes.size())] = static_cast<char>(draws.below(256));
    CHECK(tokenizer.decode(tokenizer.encode(bytes)) == bytes);
  }
  CHECK(tokenizer.encode("").empty());
  // Invalid UTF-8 forms its own piece. The text around it is split as if it ended there.
  const auto ids = [&](const std::string& text) { return tokenizer.encode(text); };
  std::vector<int32_t> parts = ids("we're ");
  for (const std::string& rest : {std::string("\xff"), std::string(" here")})
    for (const int32_t id : ids(rest)) parts.push_back(id);
  CHECK(ids("we're \xff here") == parts);
}

TEST_CASE("added tokens are encoded by their content and found by id_of_added") {
  const Tokenizer tokenizer = load_tokenizer(tokenizer_fixture + "bloom");
  CHECK(tokenizer.id_of_added("</s>") == 2);
  CHECK(!tokenizer.id_of_added("</S>"));
  CHECK(tokenizer.encode("</s></s>") == std::vector<int32_t>{2, 2});
  CHECK(tokenizer.decode(std::vector<int32_t>{2, 3}) == "</s><pad>");
  CHECK_ERROR(ConfigError, "expected ids below 2500, got 2500",
              tokenizer.decode(std::vector<int32_t>{2500}));
}

TEST_CASE("tokens beyond a model's table are an error only in a text that needs them") {
  const Tokenizer whole = load_tokenizer(tokenizer_fixture + "bloom"),
                  limited = whole.limited_to(3);
  CHECK(limited.vocabulary() == 3);
  CHECK(whole.limited_to(1 << 20).vocabulary() == whole.vocabulary());
  CHECK(limited.parts().tokens.size() == static_cast<size_t>(whole.vocabulary()));
  CHECK(limited.encode("</s></s>") == std::vector<int32_t>{2, 2});
  CHECK(message_of<ConfigError>([&] { limited.encode("</s><pad>"); }) ==
        "'<pad>' in line 1 of the text is the token 3; expected tokens below 3, the model's "
        "vocabulary");
  const Tokenizer letters = whole.limited_to(whole.vocabulary() - 1);
  const TemporaryFolder folder;
  const std::string last = letters.parts().tokens.back();
  CAPTURE(last);
  write_file(folder / "text",
             "a\nb\n" + whole.decode(std::vector{static_cast<int32_t>(whole.vocabulary() - 1)}));
  CHECK_ERROR(ConfigError, folder / "text" + ": '",
              tokenized_dataset(folder / "text", letters, {}));
  CHECK_ERROR(ConfigError, "' in line 3 of the text is the token ",
              tokenized_dataset(folder / "text", letters, {}));
  write_file(folder / "lines", "{\"a\": 1}\n\n{\"a\": 2}\n");
  CHECK(message_of<ConfigError>([&] {
          for_each_json_line(folder / "lines", [&](const JsonNode& line, const std::string&) {
            if (line.at("a").value == 2) limited.encode("<pad>");
          });
        }).starts_with(folder / "lines" + ":3: '<pad>' in line 1 of the text"));
}

TEST_CASE("a split pattern that takes too many matching steps is an error") {
  TokenizerParts parts = bytes_and({});
  parts.pre_tokenizers = {SplitStep{.pattern = "a*a*a*a*a*[bc]"},
                          ByteLevelStep{.use_regex = false}};
  const Tokenizer tokenizer(parts, "test");
  CHECK(tokenizer.encode("aab").size() == 3);
  CHECK_ERROR(ConfigError, "test: pre_tokenizer: the pattern cannot be matched at byte 0",
              tokenizer.encode(std::string(2000, 'a')));
}
