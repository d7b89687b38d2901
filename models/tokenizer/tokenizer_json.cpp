#include <nlohmann/json.hpp>

#include "zerograd/models/json_text.h"
#include "zerograd/models/tokenizer/split_pattern.h"
#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

using nlohmann::json;

void read_byte_level(const JsonNode& node, TokenizerParts& parts) {
  node.require_type("ByteLevel");
  parts.add_prefix_space = node.at("add_prefix_space").flag();
  parts.gpt2_split = node.at("use_regex").flag(true);
}

void read_split(const JsonNode& node, TokenizerParts& parts) {
  if (node.at("behavior").text() != "Isolated") node.at("behavior").refuse("\"Isolated\"");
  node.at("invert").require_false();
  const JsonNode pattern = node.at("pattern");
  if (!pattern.at("String").value.is_null()) pattern.refuse("a pattern with Regex");
  parts.split = pattern.at("Regex").text();
  if (parts.split.empty()) pattern.at("Regex").fail("a regular expression");
}

void read_pre_tokenizer(const JsonNode& node, TokenizerParts& parts) {
  if (node.value.is_null()) node.refuse("ByteLevel");
  if (!node.has_type("Sequence")) return read_byte_level(node, parts);
  const std::vector<JsonNode> members = node.at("pretokenizers").members();
  if (members.empty() || members.size() > 2) node.refuse("a Sequence of Split and ByteLevel");
  if (members.size() == 2) {
    members[0].require_type("Split");
    read_split(members[0], parts);
  }
  read_byte_level(members.back(), parts);
}

void read_post_processor(const JsonNode& node, AroundText around) {
  if (node.value.is_null()) return;
  if (node.has_type("Sequence")) {
    for (const JsonNode& member : node.at("processors").members())
      read_post_processor(member, around);
  } else if (around == AroundText::left_out &&
             (node.has_type("TemplateProcessing") || node.has_type("RobertaProcessing"))) {
    return;
  } else if (node.has_type("TemplateProcessing")) {
    for (const JsonNode& piece : node.at("single").members())
      if (!piece.at("SpecialToken").value.is_null()) piece.refuse("no special token");
  } else {
    node.require_type("ByteLevel");
  }
}

// Accepts null, which does not define how tokens become text: here they become their bytes.
void read_decoder(const JsonNode& node) {
  if (node.value.is_null()) return;
  if (!node.has_type("Sequence")) return node.require_type("ByteLevel");
  for (const JsonNode& member : node.at("decoders").members())
    if (!member.has_type("Fuse")) member.require_type("ByteLevel");
}

// Accepts no normalizer, or an empty sequence of normalizers.
void read_normalizer(const JsonNode& node) {
  if (node.value.is_null()) return;
  if (!node.value.is_object() || !node.has_type("Sequence")) node.require(nullptr);
  for (const JsonNode& member : node.at("normalizers").members()) read_normalizer(member);
}

// "a b" in older files, ["a", "b"] in newer ones.
Merge read_merge(const JsonNode& node, const VocabularyMap& vocabulary) {
  if (node.value.is_array()) {
    const std::vector<JsonNode> pair = node.members();
    if (pair.size() != 2) node.fail("two tokens");
    return vocabulary.merge(pair[0].text(), pair[1].text(), node.name);
  }
  const std::string& pair = node.text();
  const size_t space = pair.find(' ');
  if (space == std::string::npos || pair.find(' ', space + 1) != std::string::npos)
    node.fail("two tokens with a space between");
  const std::string_view both = pair;
  return vocabulary.merge(both.substr(0, space), both.substr(space + 1), node.name);
}

void read_added_token(const JsonNode& node, TokenizerParts& parts) {
  for (const char* key : {"single_word", "lstrip", "rstrip"}) node.at(key).require_false();
  const bool special = node.at("special").flag(false);
  if (node.at("content").text().empty()) node.at("content").fail("a text");
  parts.added.push_back({.content = node.at("content").text(),
                         .id = node.at("id").id(),
                         .special = special,
                         .normalized = node.at("normalized").flag(!special)});
}

// Older files have no type, but only BPE has merges.
void require_bpe(const JsonNode& node) {
  if (!node.at("type").value.is_null()) return node.require_type("BPE");
  if (node.at("merges").value.is_null()) node.refuse("BPE, with merges");
}

void read_model(const JsonNode& node, TokenizerParts& parts) {
  if (node.at("dropout").value != 0.0) node.at("dropout").require(nullptr);
  node.at("continuing_subword_prefix").require_empty();
  node.at("end_of_word_suffix").require_empty();
  // byte_fallback, unk_token and fuse_unk are ignored: they are for bytes without a token, and
  // every byte has a token.
  parts.ignore_merges = node.at("ignore_merges").flag(false);
  const JsonNode tokens = node.at("vocab");
  VocabularyMap vocabulary(tokens.value, tokens.name);
  for (const JsonNode& merge : node.at("merges").members())
    parts.merges.push_back(read_merge(merge, vocabulary));
  for (const AddedToken& token : parts.added) vocabulary.add(token.content, token.id);
  parts.tokens = vocabulary.tokens();
}

json byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

/// A post_processor that adds `around` to the ids of a text.
json template_processing(const Tokenizer& tokenizer, const TextTemplate& around) {
  json special = json::object();
  const auto with = [&](const json& texts) {
    json pieces = json::array();
    const auto add = [&](std::optional<int32_t> id) {
      if (!id || *id >= tokenizer.vocabulary()) return;
      const std::string& name = tokenizer.parts().tokens[static_cast<size_t>(*id)];
      pieces.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
      special[name] = {{"id", name}, {"ids", json::array({*id})}, {"tokens", json::array({name})}};
    };
    add(around.first);
    for (const json& text : texts) pieces.push_back({{"Sequence", {{"id", text}, {"type_id", 0}}}});
    add(around.last);
    return pieces;
  };
  const json single = with(json::array({"A"})), pair = with(json::array({"A", "B"}));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

json pre_tokenizer(const TokenizerParts& parts) {
  const json last = byte_level(parts.add_prefix_space, parts.gpt2_split);
  if (parts.split.empty()) return last;
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", parts.split}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", json::array({split, last})}};
}

}  // namespace

Tokenizer tokenizer_from_json(const std::string& text, const std::string& path, AroundText around) {
  const json root = parse_json_object(text, path);
  const JsonNode file{root, path + ": "};
  require_bpe(file.at("model"));  // checked first: the other checks assume it
  // truncation and padding are ignored: transformers sets both in each call, and the file contains
  // those of the last call.
  read_normalizer(file.at("normalizer"));
  read_post_processor(file.at("post_processor"), around);
  read_decoder(file.at("decoder"));
  TokenizerParts parts;
  read_pre_tokenizer(file.at("pre_tokenizer"), parts);
  if (const JsonNode added = file.at("added_tokens"); !added.value.is_null())
    for (const JsonNode& token : added.members()) read_added_token(token, parts);
  read_model(file.at("model"), parts);
  return Tokenizer(std::move(parts), path);
}

std::string tokenizer_json(const Tokenizer& tokenizer, const TextTemplate& around) {
  using nlohmann::ordered_json;
  const TokenizerParts& parts = tokenizer.parts();
  ordered_json added = ordered_json::array();
  for (const AddedToken& token : parts.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  // In the order of ids. Written as text: ordered_json searches all keys at each insertion.
  std::string vocabulary, merges;
  for (size_t id = 0; id < parts.tokens.size(); ++id)
    vocabulary += fmt::format("{}{}:{}", id ? "," : "", json(parts.tokens[id]).dump(), id);
  for (const Merge& merge : parts.merges)
    merges +=
        (merges.empty() ? "" : ",") + json(parts.tokens[static_cast<size_t>(merge.left)] + " " +
                                           parts.tokens[static_cast<size_t>(merge.right)])
                                          .dump();
  const bool has_template = around.first || around.last;
  const ordered_json head = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added},
      {"normalizer", nullptr},
      {"pre_tokenizer", pre_tokenizer(parts)},
      {"post_processor",
       has_template ? template_processing(tokenizer, around) : byte_level(true, true)},
      {"decoder", byte_level(true, true)}};
  std::string text = head.dump();
  text.pop_back();
  return text + R"(,"model":{"type":"BPE","dropout":null,"unk_token":null,)" +
         R"("continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,)" +
         R"("byte_fallback":false,"ignore_merges":)" + (parts.ignore_merges ? "true" : "false") +
         R"(,"vocab":{)" + vocabulary + R"(},"merges":[)" + merges + "]}}\n";
}

}  // namespace zg::models
