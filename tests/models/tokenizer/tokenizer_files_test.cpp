#include "zerograd/models/tokenizer/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"

using namespace zg;
using namespace zg::testing;
using namespace zg::models;
using nlohmann::json;

namespace {

json small_file() {
  return json::parse(
      tokenizer_json(train_tokenizer("the then they the then they", {.vocabulary = 260})));
}

std::string refusal(const json& file) {
  try {
    tokenizer_from_json(file.dump(), "t.json");
  } catch (const FileError& error) {
    return std::string("FileError ") + error.what();
  } catch (const Unsupported& error) {
    return std::string("Unsupported ") + error.what();
  }
  return "nothing was thrown";
}

std::string refusal(const char* pointer, const json& value) {
  json file = small_file();
  file[json::json_pointer(pointer)] = value;
  return refusal(file);
}

std::string refused_split(const std::string& pattern) {
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  const json last = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  return refusal("/pre_tokenizer",
                 {{"type", "Sequence"}, {"pretokenizers", json::array({split, last})}});
}

}  // namespace

TEST_CASE(
    "a saved tokenizer is loaded unchanged, and added_tokens.json adds tokens or is refused") {
  const TemporaryFolder folder;
  const Tokenizer tokenizer = train_tokenizer("the then they the then they", {.vocabulary = 260});
  save_tokenizer(tokenizer, folder / "a/b");
  CHECK(tokenizer_json(load_tokenizer(folder / "a/b")) == tokenizer_json(tokenizer));
  CHECK(tokenizer_json(load_tokenizer(folder / "a/b/tokenizer.json")) == tokenizer_json(tokenizer));
  std::filesystem::remove(folder / "a/b/tokenizer.json");
  CHECK(tokenizer_json(load_tokenizer(folder / "a/b")) == tokenizer_json(tokenizer));
  // Older folders have the tokens that were added after training in added_tokens.json.
  write_file(folder / "a/b/added_tokens.json", R"({"<|pad|>": 260, "<|user|>": 261})");
  const Tokenizer more = load_tokenizer(folder / "a/b");
  CHECK(more.vocabulary() == 262);
  CHECK(more.encode("the<|user|>") == std::vector<int32_t>{tokenizer.encode("the")[0], 261});
  CHECK(more.id_of_added("<|pad|>") == 260);
  CHECK(tokenizer_json(tokenizer_from_gpt2(gpt2_files(more), "again")) == tokenizer_json(more));
  for (const auto& [added, expected] :
       {std::pair{R"({"<|pad|>": 262})", "vocab.json: expected the ids 0 to 260, each once"},
        {R"({"<|pad|>": 5})", "vocab.json: expected the ids 0 to 260, each once"},
        {R"({"<|endoftext|>": 9})", "token \"<|endoftext|>\" is 0 there and 9 among the added"},
        {R"({"<|pad|>": "x"})", "added_tokens.json.\"<|pad|>\": expected an id, got \"x\""},
        {"[]", "added_tokens.json:1:1: expected a JSON object"}}) {
    write_file(folder / "a/b/added_tokens.json", added);
    CHECK_ERROR(FileError, expected, load_tokenizer(folder / "a/b"));
  }
  std::filesystem::remove(folder / "a/b/added_tokens.json");
  std::filesystem::remove(folder / "a/b/merges.txt");
  CHECK_ERROR(FileError, "merges.txt", load_tokenizer(folder / "a/b"));
  CHECK_ERROR(FileError, "has neither tokenizer.json nor vocab.json",
              load_tokenizer(folder.path()));
}

TEST_CASE("unsupported settings of a tokenizer.json are refused with an error that names the key") {
  CHECK(refusal(small_file()) == "nothing was thrown");
  const auto refused = [](const char* pointer, const json& value, const std::string& expected) {
    CAPTURE(pointer);
    CHECK(contains(refusal(pointer, value), "Unsupported t.json: " + expected));
  };
  refused("/normalizer", {{"type", "NFKC"}}, "normalizer.type is \"NFKC\"; expected \"NFC\"");
  refused("/post_processor", {{"type", "BertProcessing"}}, "post_processor.type is");
  refused("/post_processor", {{"type", "TemplateProcessing"}, {"single", json::array()}},
          "post_processor.single is []; expected a Sequence");
  refused("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}},
          "normalizer.normalizers[0].type is \"Lowercase\"; expected \"NFC\"");
  refused("/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Metaspace"}}}}},
          "decoder.decoders[0].type is");
  refused("/decoder", {{"type", "WordPiece"}}, "decoder.type is");
  refused("/pre_tokenizer", nullptr, "decoder.type is \"ByteLevel\"; expected \"Replace\"");
  refused("/pre_tokenizer", {{"type", "Whitespace"}}, "pre_tokenizer.type is \"Whitespace\"");
  refused("/pre_tokenizer",
          {{"type", "Sequence"}, {"pretokenizers", {{{"type", "BertPreTokenizer"}}}}},
          "pre_tokenizer.pretokenizers[0].type is \"BertPreTokenizer\"; expected \"Split\"");
  refused("/model/type", "Unigram", "model.type is \"Unigram\"; expected \"BPE\"");
  refused("/model/dropout", 0.1, "model.dropout is 0.1; expected null");
  refused("/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix is");
  refused("/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix is");
}

TEST_CASE(
    "a tokenizer.json of another model than BPE is refused by model type, whatever else it holds") {
  json file = small_file();
  file["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}};
  file["normalizer"] = {{"type", "BertNormalizer"}};
  file["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  file["post_processor"] = {{"type", "TemplateProcessing"}};
  file["model"] = {{"type", "WordPiece"}, {"unk_token", "[UNK]"}, {"vocab", {{"[UNK]", 0}}}};
  CHECK(
      contains(refusal(file), "Unsupported t.json: model.type is \"WordPiece\"; expected \"BPE\""));
  file["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", {{"<unk>", 0.0}}}};
  CHECK(contains(refusal(file), "Unsupported t.json: model.type is \"Unigram\""));
  file["model"].erase("type");  // older files have no type
  CHECK(contains(refusal(file), "Unsupported t.json: model is "));
}

TEST_CASE("settings of a tokenizer.json without effect on ids and bytes are accepted") {
  const auto passes = [](const char* pointer, const json& value) {
    CAPTURE(pointer);
    CHECK(refusal(pointer, value) == "nothing was thrown");
  };
  passes("/truncation", {{"direction", "Right"}, {"max_length", 512}, {"stride", 0}});
  passes("/padding", {{"strategy", "BatchLongest"}, {"direction", "Left"}, {"pad_id", 3}});
  passes("/decoder", nullptr);
  passes("/decoder",
         {{"type", "Sequence"}, {"decoders", {{{"type", "ByteLevel"}}, {{"type", "Fuse"}}}}});
  passes("/normalizer", {{"type", "Sequence"}, {"normalizers", json::array()}});
  passes("/post_processor", nullptr);
  passes("/post_processor", {{"type", "TemplateProcessing"},
                             {"single", {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}});
  passes("/post_processor", {{"type", "Sequence"}, {"processors", {{{"type", "ByteLevel"}}}}});
  passes("/model/dropout", 0.0);
  passes("/model/byte_fallback", true);  // every byte has a token
  passes("/model/unk_token", "<|endoftext|>");
  passes("/model/fuse_unk", true);
  passes("/pre_tokenizer/trim_offsets", false);
  json file = small_file();
  file.erase("decoder");
  file.erase("version");
  CHECK(refusal(file) == "nothing was thrown");
}

TEST_CASE("special_tokens_of finds the tokens that begin, end and pad a text") {
  const auto tokens_of = [](std::vector<std::string> added) {
    return special_tokens_of(train_tokenizer("", {.vocabulary = 270, .added = std::move(added)}));
  };
  CHECK(tokens_of({"<|endoftext|>"}) == SpecialTokens{.bos = 0, .pad = {}, .eos = {0}});
  CHECK(tokens_of({"<unk>", "<s>", "</s>", "<pad>"}) ==
        SpecialTokens{.bos = 1, .pad = 3, .eos = {2}});
  CHECK(tokens_of({"<pad>", "<|endoftext|>"}) == SpecialTokens{.bos = 1, .pad = 0, .eos = {1}});
  CHECK(tokens_of({}) == SpecialTokens());
  const Tokenizer tokenizer =
      train_tokenizer("", {.vocabulary = 270, .added = {"<unk>", "<s>", "</s>", "<pad>"}});
  const json written =
      json::parse(hf_tokenizer_config_json(tokenizer, special_tokens_of(tokenizer), 128));
  CHECK(written.at("bos_token") == "<s>");
  CHECK(written.at("eos_token") == "</s>");
  CHECK(written.at("pad_token") == "<pad>");
  CHECK(written.at("model_max_length") == 128);
  CHECK(!json::parse(hf_tokenizer_config_json(tokenizer, {}, 128)).contains("eos_token"));
}

TEST_CASE("a malformed tokenizer.json is refused with an error that names the key") {
  const auto refused = [](const char* pointer, const json& value, const std::string& expected) {
    CAPTURE(pointer);
    CHECK(contains(refusal(pointer, value), "FileError t.json: " + expected));
  };
  refused("/pre_tokenizer", 3, "pre_tokenizer: expected an object, got 3");
  refused("/pre_tokenizer/add_prefix_space", "no", "pre_tokenizer.add_prefix_space: expected true");
  refused("/added_tokens/0/id", -1, "added_tokens[0].id: expected an id, got -1");
  refused("/added_tokens/0/id", 5, "model.vocab: token \"<|endoftext|>\" is 0 there and 5 among");
  refused("/added_tokens/0/content", "", "added_tokens[0].content: expected a text");
  refused("/model/vocab", json::array(), "model.vocab: expected an object of tokens");
  refused("/model/vocab/!", 1.5, "model.vocab.\"!\": expected an id, got 1.5");
  refused("/model/vocab/!", 2, "model.vocab: expected the ids 0 to 259, each once");
  refused("/model/vocab/!", 4000000000u, "model.vocab.\"!\": expected an id");
  refused("/model/merges", 1, "model.merges: expected an array");
  refused("/model/merges/0", "t", "model.merges[0]: expected two tokens with a space between");
  refused("/model/merges/0", "t h e", "model.merges[0]: expected two tokens with a space between");
  refused("/model/merges/0", {"t", "h", "e"}, "model.merges[0]: expected two tokens, got");
  refused("/model/merges/0", {"t", "z"}, "model.merges[0]: \"tz\" is not in the vocabulary");
  CHECK(contains(message_of<FileError>([] { tokenizer_from_json("{\"a\": ", "t.json"); }),
                 "t.json:1:7: is not JSON: "));
  CHECK(contains(message_of<FileError>([] { tokenizer_from_json("[]", "t.json"); }),
                 "t.json:1:1: expected a JSON object"));
}

TEST_CASE("a byte without a token is left out, or becomes the unknown token") {
  json file = small_file();
  json& vocabulary = file["model"]["vocab"];
  vocabulary["xyz"] = vocabulary["Q"];
  vocabulary.erase("Q");
  const auto encoded = [&](const char* text) {
    return tokenizer_from_json(file.dump(), "t.json").encode(text);
  };
  CHECK(encoded("aQQQb") == encoded("ab"));
  const int32_t unknown = vocabulary["!"];
  file["model"]["unk_token"] = "!";
  CHECK(encoded("QQQ") == std::vector<int32_t>{unknown, unknown, unknown});
  file["model"]["fuse_unk"] = true;
  CHECK(encoded("QQQ") == std::vector<int32_t>{unknown});
  file["model"]["byte_fallback"] = true;
  CHECK(contains(refusal(file), "Unsupported t.json: model.byte_fallback is true; expected false"));
  file["model"]["unk_token"] = "nothing";
  CHECK(
      contains(refusal(file), "FileError t.json: model.unk_token: expected a token of model.voc"));
}

TEST_CASE("split patterns that PCRE2 could read differently are refused with the reason") {
  for (const char* pattern :
       {"a|b c", "[a-z]+", "[^\\s[.,]x]+", "(?i:'s)|x{2,3}", "\\d\\D\\S\\P{Lu}", "(?:a|(b))?c(?=d)",
        "[-a\\-\\]]", "a.", "\\(\\)\\n"})
    CHECK_MESSAGE(refused_split(pattern) == "nothing was thrown", pattern);
  const auto refused = [](const char* pattern, const std::string& expected) {
    CAPTURE(pattern);
    CHECK(contains(refused_split(pattern), expected));
  };
  const std::string place = "Unsupported t.json: pre_tokenizer: ";
  refused("(a|b)*", place + "a group that repeats at byte 5");
  refused("(ab", place + "'(' without its ')'");
  refused("ab)", place + "')' without its '('");
  refused("(?<=a)b", place + "an unsupported kind of group");
  refused("(?<n>a)", place + "an unsupported kind of group");
  refused("a+?", place + "a quantifier of a quantifier");
  refused("a++", place + "a quantifier of a quantifier");
  refused("a{2,1}", place + "a range of counts downwards");
  refused("a{1001}", place + "a count beyond 1000");
  refused("a{2,600}b{401}",
          place + "counts that add up to more than 1000 (max_repeats) at byte 13");
  refused(std::string(17, '(').c_str(), place + "groups nested deeper than 16 (max_depth)");
  refused(std::string(100000, '(').c_str(), place + "a pattern of 100000 bytes; expected at most");
  refused("a{,2}", place + "a count without a number");
  refused("a{2", place + "a count without its '}'");
  refused("^a", place + "'^'");
  refused("*a", place + "'*'");
  refused("\\w+", place + "an unsupported escape");
  refused("(a)\\1", place + "an unsupported escape");
  refused("\\p{Han}", place + "\\p without a general category");
  refused("[[:alpha:]]", place + "'[:' in a class");
  refused("[a&&b]", place + "'&&' in a class");
  refused("[a[^b]]", place + "'[^' in a class");
  refused("[]a]", place + "an empty class");
  refused("[a", place + "an end too soon");
  refused("[z-a]", place + "a range that ends before it begins");
  refused("[\\s-a]", place + "a range from many characters");
  refused("a*", place + "the pattern may match an empty text");
  refused("", "FileError t.json: pre_tokenizer.pretokenizers[0].pattern.Regex: expected a regular");
}
