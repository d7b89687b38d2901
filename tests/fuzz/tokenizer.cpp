#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tests/fuzz/bounded.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/error.h"

// The input is used as tokenizer.json, as vocab.json followed by an empty line and merges.txt, and
// as the text to encode. The first '*' of a file becomes the 256 bytes, "!":0 and so on, without
// which there is no tokenizer.
namespace zg::testing {
namespace {

using models::Tokenizer;

std::string with_bytes(std::string file) {
  static const std::string entries = [] {
    std::string text;
    int id = 0;
    for (const unsigned char byte : models::bytes_by_character()) {
      text += (id ? "," : "") + nlohmann::json(models::byte_alphabet()[byte]).dump() + ":" +
              std::to_string(id);
      ++id;
    }
    return text;
  }();
  const size_t star = file.find('*');
  return star == std::string::npos ? file : file.replace(star, 1, entries);
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
}

// Whether decode() restores any bytes: every byte has a token, and no step changes the text.
bool restores(const models::TokenizerParts& parts) {
  bool exact = models::is_byte_level(parts) && parts.normalizers.empty();
  for (const models::PreTokenizerStep& step : parts.pre_tokenizers) {
    if (const auto* split = std::get_if<models::SplitStep>(&step))
      exact = exact && split->behavior != models::SplitStep::Behavior::removed;
    if (const auto* bytes = std::get_if<models::ByteLevelStep>(&step))
      exact = exact && !bytes->add_prefix_space;
    exact = exact && !std::holds_alternative<models::MetaspaceStep>(step);
  }
  std::set<std::string> tokens(parts.tokens.begin(), parts.tokens.end());
  for (const models::AddedToken& token : parts.added) {
    if (!token.in_model) tokens.erase(token.content);
    // An added token may have the same text as other tokens.
    exact = exact && is_ascii(token.content) && !token.lstrip && !token.rstrip;
  }
  for (const std::string& byte : models::byte_alphabet()) exact = exact && tokens.contains(byte);
  return exact;
}

void check_round_trip(const Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int32_t> ids = tokenizer.encode_document(text);
  const std::string back = tokenizer.decode(tokenizer.encode(text));
  if (back != text && restores(tokenizer.parts())) report("not the bytes that were encoded", text);
  tokenizer.decode(ids);
  for (const int32_t id : ids)
    for (const bool is_first : {false, true}) tokenizer.decode_one(id, is_first);
}

void check(const Tokenizer& tokenizer, const std::string& text) {
  const std::string json = models::tokenizer_json(tokenizer);
  if (models::tokenizer_json(models::tokenizer_from_json(json, "again")) != json)
    report("not what is written of it", text);
  try {
    check_round_trip(tokenizer, text);
  } catch (const ConfigError& error) {  // a split that takes too many steps
    if (!std::string(error.what()).starts_with("t"))
      report("an error without its file", error.what());
  }
}

template <class Read>
void guarded(const std::string& begin, const std::string& text, const Read& read) {
  const auto check_place = [&](const Error& error) {
    if (!std::string(error.what()).starts_with(begin))
      report("an error without its file", error.what());
  };
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer.emplace(read());
  } catch (const FileError& error) {
    check_place(error);
  } catch (const Unsupported& error) {
    check_place(error);
  }
  if (tokenizer) check(*tokenizer, text);
}

const Tokenizer& trained() {
  static const Tokenizer tokenizer = models::train_tokenizer(
      "the then they \u0442\u043e \u4e2d\u6587 1234 the then they {\"vocab\": {\"merges\"",
      {.vocabulary = 300});
  return tokenizer;
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg;
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  bounded([&] {
    guarded("tokenizer.json:", text,
            [&] { return models::tokenizer_from_json(with_bytes(text), "tokenizer.json"); });
  });
  bounded([&] {
    const size_t end = std::min(text.find("\n\n"), text.size());
    const models::GPT2Files files = {.vocabulary = with_bytes(text.substr(0, end)),
                                     .merges = text.substr(end)};
    guarded("two/", text, [&] { return models::tokenizer_from_gpt2(files, "two"); });
  });
  bounded([&] { check_round_trip(trained(), text); });
  return 0;
}
