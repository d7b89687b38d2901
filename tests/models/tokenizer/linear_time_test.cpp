// Inputs for which simpler algorithms take quadratic time, which are hours for these sizes.

#include <algorithm>
#include <utility>

#include "tests/models/tokenizer/tokenizer_text.h"
#include "tests/support/error_message.h"
#include "zerograd/models/tokenizer/question_file.h"
#include "zerograd/models/tokenizer/text_pipeline.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"

namespace zg::testing {
namespace {

using namespace zg::models;
using Pieces = std::vector<std::string>;

constexpr size_t megabyte = 1 << 20;

std::string copies(size_t count, const std::string& text) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += text;
  return all;
}

Pieces pieces_of(const std::string& pattern, const std::string& text) {
  const Splitter splitter(pattern, "t.json");
  Pieces all;
  Splitter::Pieces pieces(splitter, text);
  for (std::string_view piece; pieces.next(piece);) all.emplace_back(piece);
  return all;
}

// The texts between tokens, and "<id>" for each token.
Pieces found_in(const std::vector<AddedToken>& tokens, const std::string& text) {
  Pieces all;
  AddedTokens(tokens, false, {})
      .split(
          text, [&](std::string_view between) { all.emplace_back(between); },
          [&](int32_t id, std::string_view) { all.push_back("<" + std::to_string(id) + ">"); });
  return all;
}

// By the definition: the longest token at the leftmost place.
Pieces split_plainly(const std::vector<AddedToken>& tokens, const std::string& text) {
  Pieces all;
  std::string between;
  const auto end_text = [&] {
    if (!between.empty()) all.push_back(std::exchange(between, ""));
  };
  for (size_t at = 0; at < text.size();) {
    const AddedToken* longest = nullptr;
    for (const AddedToken& token : tokens)
      if (text.substr(at).starts_with(token.content) &&
          (!longest || token.content.size() > longest->content.size()))
        longest = &token;
    if (!longest) {
      between += text[at++];
      continue;
    }
    end_text();
    all.push_back("<" + std::to_string(longest->id) + ">");
    at += longest->content.size();
  }
  end_text();
  return all;
}

}  // namespace

TEST_CASE("words and spaces of any length are split as short ones are") {
  for (const size_t n : {1, 2, 63, 64, 126, 127, 128, 129, 255, 256, 257, 1000, 70000}) {
    CAPTURE(n);
    const std::string word = copies(n, "\u4e2d"), spaces(n, ' ');
    CHECK(pieces_of(gpt2_split_pattern, word + spaces + " b") == Pieces{word, spaces, " b"});
    CHECK(pieces_of("\\p{N}", word + "1" + word) == Pieces{word, "1", word});
    CHECK(pieces_of("\\s*[\\r\\n]+|\\s+(?!\\S)|x", spaces + "\n" + spaces + "\nx") ==
          Pieces{spaces + "\n" + spaces + "\n", "x"});
  }
}

TEST_CASE("a pattern that sees a text again from each place is an error after a limit of steps") {
  const std::string many(megabyte / 64, 'a');
  for (const char* pattern :
       {"a+(?=b)|c", "(?!a+)b|a", "(?=.+)a", "a+b", "a*a*a*b", "a{1,1000}b"}) {
    CAPTURE(pattern);
    const std::string message = message_of<ConfigError>([&] { pieces_of(pattern, many); });
    CHECK_MESSAGE(contains(message, "t.json: the pattern cannot be matched at byte "), message);
    CHECK_MESSAGE(contains(message, "(max_match_steps); try a pattern"), message);
  }
}

TEST_CASE("of many added tokens the longest at the leftmost place is found") {
  Draws draws(5);
  std::vector<AddedToken> tokens;
  for (int32_t id = 0; id < 40; ++id) {
    std::string content;
    for (uint64_t size = 1 + draws.below(5); size > 0; --size) content += "abc\xe4"[draws.below(4)];
    tokens.push_back({.content = content, .id = id});
    const auto same = [&](const AddedToken& other) { return other.content == content; };
    if (std::ranges::count_if(tokens, same) > 1) tokens.pop_back();
  }
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (uint64_t size = draws.below(20); size > 0; --size) text += "abcd\xe4"[draws.below(5)];
    CAPTURE(text);
    CHECK(found_in(tokens, text) == split_plainly(tokens, text));
  }
}

TEST_CASE("white space between tokens that strip it is looked at once") {
  const std::string tabs(megabyte / 4, '\t');
  for (const bool left : {false, true}) {
    const AddedToken tab = {.content = "\t", .id = 7, .lstrip = left, .rstrip = !left};
    CHECK(found_in({tab}, tabs).size() == tabs.size());
    const Pieces around = left ? Pieces{"a", "<7>", " b"} : Pieces{"a ", "<7>", "b"};
    CHECK(found_in({tab}, "a \t b") == around);
  }
  // The first one takes all, also the token itself.
  const AddedToken both = {.content = "\t", .id = 7, .lstrip = true, .rstrip = true};
  CHECK(found_in({both}, "a\t \t\tb") == Pieces{"a", "<7>", "b"});
}

TEST_CASE("a tokenizer has at most 16 steps of a kind") {
  const auto refusal = [](const auto& change) {
    TokenizerParts parts = train_tokenizer("", {.vocabulary = 256, .added = {}}).parts();
    change(parts);
    return message_of<Unsupported>([&] { Tokenizer(parts, "t.json"); });
  };
  CHECK(refusal([](TokenizerParts& p) { p.normalizers.assign(17, NFCStep()); }) ==
        "t.json: normalizer: 17 steps; expected at most 16 (max_steps)");
  CHECK(refusal([](TokenizerParts& p) { p.pre_tokenizers.assign(100000, DigitsStep()); }) ==
        "t.json: pre_tokenizer: 100000 steps; expected at most 16 (max_steps)");
  CHECK(refusal([](TokenizerParts& p) { p.decoders.assign(17, FuseStep()); }) ==
        "t.json: decoder: 17 steps; expected at most 16 (max_steps)");
}

TEST_CASE("an added token has at most 256 bytes") {
  TokenizerParts parts = train_tokenizer("", {.vocabulary = 256, .added = {}}).parts();
  parts.tokens.emplace_back(257, 'a');
  parts.added = {{.content = parts.tokens.back(), .id = 256}};
  CHECK(message_of<Unsupported>([&] { Tokenizer(parts, "t.json"); }) ==
        "t.json: added_tokens: the token 256 has 257 bytes; expected at most 256 "
        "(max_added_token_bytes)");
}

TEST_CASE("marks are sorted and long texts replaced in linear time") {
  const size_t n = megabyte / 4;
  const std::vector<NormalizerStep> nfc = {NFCStep()};
  CHECK(normalized("a" + copies(n, "\u0301\u0323"), nfc) ==
        "\u1ea1" + copies(n - 1, "\u0323") + copies(n, "\u0301"));
  CHECK(normalized(copies(n, "\u0f73"), nfc) == copies(n, "\u0f71") + copies(n, "\u0f72"));
  TokenizerParts parts = train_tokenizer("", {.vocabulary = 256, .added = {}}).parts();
  parts.normalizers = nfc;
  const std::string marks = "a" + copies(n / 16, "\u0301\u0323");
  CHECK(Tokenizer(parts, "t").encode_with_spans(marks).ids == Tokenizer(parts, "t").encode(marks));
  const std::string half(n, 'a');
  CHECK(replaced(half + half + "b" + half, {.text = half + "b", .by = "c"}) == half + "c" + half);
}

TEST_CASE("brackets that do not close are kept, however many a question has") {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = train_tokenizer("", {.vocabulary = 256, .added = {}});
  const auto tokens = [&](const std::string& begin, const std::string& endings) {
    write_file(folder / "q.jsonl", R"({"activity_label": "L", "ctx_a": ")" + begin +
                                       R"(", "endings": [)" + endings + R"("b"], "label": 0})");
    return read_questions(folder / "q.jsonl", tokenizer, {}).at(0).choices.at(0).tokens.size();
  };
  CHECK(tokens(std::string(megabyte / 4, '['), R"("a", )") == megabyte / 4 + 5);
  CHECK(tokens("[]x[y]", R"("a", )") == 6);
  CHECK_ERROR(FileError, "q.jsonl:1: endings: expected at most 256 endings (max_endings), got",
              tokens("x", copies(256, R"("a", )")));
}

}  // namespace zg::testing
