#include <nlohmann/json.hpp>

#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/utf8.h"

namespace zg::models {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_type(const JsonNode& node, const char* expected) {
  node.at("type").refuse(expected);
}

// The members of {"type": "Sequence", <key>: [...]}, or the node alone; none for null.
std::vector<JsonNode> steps_in(const JsonNode& node, const char* key) {
  if (node.value.is_null()) return {};
  if (!node.has_type("Sequence")) return {node};
  std::vector<JsonNode> steps;
  for (const JsonNode& member : node.at(key).members())
    for (const JsonNode& step : steps_in(member, key)) steps.push_back(step);
  return steps;
}

std::string filled_text(const JsonNode& node, const char* expected) {
  if (node.text().empty()) node.fail(expected);
  return node.text();
}

std::string one_character(const JsonNode& node) {
  const std::string& text = node.text();
  size_t end = 0;
  if (valid_utf8(text) == text.size() && !text.empty()) next_code_point(text, end, node.name);
  if (end == 0 || end < text.size()) node.fail("one character");
  return text;
}

ReplaceStep read_replace(const JsonNode& node) {
  const JsonNode pattern = node.at("pattern");
  if (!pattern.at("Regex").value.is_null()) pattern.refuse("a pattern with String");
  return {.text = filled_text(pattern.at("String"), "a text"), .by = node.at("content").text()};
}

MetaspaceStep read_metaspace(const JsonNode& node) {
  MetaspaceStep step;
  step.replacement = one_character(node.at("replacement"));
  using Prepend = MetaspaceStep::Prepend;
  const JsonNode scheme = node.at("prepend_scheme");
  if (!scheme.value.is_null()) {
    if (scheme.text() == "first")
      step.prepend = Prepend::first;
    else if (scheme.text() == "never")
      step.prepend = Prepend::never;
    else if (scheme.text() != "always")
      scheme.fail("\"first\", \"never\" or \"always\"");
  }
  // Older files have add_prefix_space instead.
  if (!node.at("add_prefix_space").flag(true)) {
    if (!scheme.value.is_null() && step.prepend != Prepend::never)
      node.at("add_prefix_space").fail("what prepend_scheme says");
    step.prepend = Prepend::never;
  }
  step.split = node.at("split").flag(true);
  return step;
}

std::vector<NormalizerStep> read_normalizer(const JsonNode& node) {
  std::vector<NormalizerStep> steps;
  for (const JsonNode& step : steps_in(node, "normalizers")) {
    if (step.has_type("NFC"))
      steps.emplace_back(NFCStep());
    else if (step.has_type("Prepend"))
      steps.emplace_back(PrependStep{.text = step.at("prepend").text()});
    else if (step.has_type("Replace"))
      steps.emplace_back(read_replace(step));
    else
      refuse_type(step, "\"NFC\", \"Prepend\", \"Replace\" or \"Sequence\"");
  }
  return steps;
}

SplitStep read_split(const JsonNode& node) {
  const JsonNode behavior = node.at("behavior"), pattern = node.at("pattern");
  SplitStep step = {.pattern = {}, .invert = node.at("invert").flag(false)};
  using Behavior = SplitStep::Behavior;
  bool found = false;
  for (const auto& [name, value] : {std::pair("Isolated", Behavior::isolated),
                                    {"Removed", Behavior::removed},
                                    {"MergedWithPrevious", Behavior::merged_with_previous},
                                    {"MergedWithNext", Behavior::merged_with_next},
                                    {"Contiguous", Behavior::contiguous}}) {
    if (behavior.text() != name) continue;
    step.behavior = value;
    found = true;
  }
  if (!found)
    behavior.refuse(
        "\"Isolated\", \"Removed\", \"MergedWithPrevious\", \"MergedWithNext\" or \"Contiguous\"");
  step.is_literal = !pattern.at("String").value.is_null();
  step.pattern = step.is_literal ? filled_text(pattern.at("String"), "a text")
                                 : filled_text(pattern.at("Regex"), "a regular expression");
  return step;
}

std::vector<PreTokenizerStep> read_pre_tokenizer(const JsonNode& node) {
  std::vector<PreTokenizerStep> steps;
  for (const JsonNode& step : steps_in(node, "pretokenizers")) {
    if (step.has_type("Split"))
      steps.emplace_back(read_split(step));
    else if (step.has_type("Digits"))
      steps.emplace_back(DigitsStep{.individual = step.at("individual_digits").flag()});
    else if (step.has_type("ByteLevel"))
      steps.emplace_back(ByteLevelStep{.add_prefix_space = step.at("add_prefix_space").flag(),
                                       .use_regex = step.at("use_regex").flag(true)});
    else if (step.has_type("Metaspace"))
      steps.emplace_back(read_metaspace(step));
    else
      refuse_type(step, "\"Split\", \"Digits\", \"ByteLevel\", \"Metaspace\" or \"Sequence\"");
  }
  return steps;
}

// Reads the decoders of tokens of characters. Tokens of bytes have one decoder, ByteLevel.
std::vector<DecoderStep> read_decoder(const JsonNode& node, bool byte_level) {
  std::vector<DecoderStep> steps;
  // Null is valid only for tokens of bytes, which become their bytes.
  if (node.value.is_null() && !byte_level)
    node.refuse("Metaspace, or a Sequence of Replace, ByteFallback, Fuse and Strip");
  for (const JsonNode& step : steps_in(node, "decoders")) {
    if (byte_level) {
      if (!step.has_type("Fuse") && !step.has_type("ByteLevel"))
        refuse_type(step, "\"ByteLevel\", as the pre_tokenizer");
      step.at("add_prefix_space").flag(true);  // has no effect
    } else if (step.has_type("Replace")) {
      steps.emplace_back(read_replace(step));
    } else if (step.has_type("ByteFallback")) {
      steps.emplace_back(ByteFallbackStep());
    } else if (step.has_type("Fuse")) {
      steps.emplace_back(FuseStep());
    } else if (step.has_type("Strip")) {
      const auto times = [&](const char* key) {
        const JsonNode count = step.at(key);
        return count.value == 0 ? int64_t{0} : count.count(0);
      };
      steps.emplace_back(StripStep{.content = one_character(step.at("content")),
                                   .start = times("start"),
                                   .stop = times("stop")});
    } else if (step.has_type("Metaspace")) {
      steps.emplace_back(read_metaspace(step));
    } else {
      refuse_type(step,
                  "\"Replace\", \"ByteFallback\", \"Fuse\", \"Strip\", \"Metaspace\" or "
                  "\"Sequence\", as the pre_tokenizer is not ByteLevel");
    }
  }
  return steps;
}

constexpr size_t max_template_tokens = 4096;  // they are added to each text

void read_template(const JsonNode& node, TextTemplate& around) {
  int texts = 0;
  const JsonNode tokens = node.at("special_tokens");
  if (!tokens.value.is_null() && !tokens.value.is_object()) tokens.fail("an object");
  for (const JsonNode& piece : node.at("single").members()) {
    const JsonNode special = piece.at("SpecialToken");
    if (special.value.is_null()) {
      const JsonNode text = piece.at("Sequence").at("id");
      if (text.text() != "A" || ++texts > 1) text.refuse("one \"A\"");
      continue;
    }
    std::vector<int32_t>& ids = texts == 0 ? around.before : around.after;
    const std::string& name = special.at("id").text();
    for (const JsonNode& id : tokens.at(name).at("ids").members()) ids.push_back(id.id());
    if (ids.size() > max_template_tokens)
      node.at("single").refuse(
          fmt::format("at most {} tokens before a text and behind it "
                      "(max_template_tokens)",
                      max_template_tokens));
  }
  if (texts == 0) node.at("single").refuse("a Sequence \"A\"");
}

void read_post_processor(const JsonNode& node, TextTemplate& around) {
  for (const JsonNode& step : steps_in(node, "processors")) {
    if (step.has_type("ByteLevel")) continue;  // it changes only offsets
    if (around != TextTemplate()) step.refuse("one processor that adds tokens");
    if (step.has_type("TemplateProcessing")) {
      read_template(step, around);
    } else if (step.has_type("RobertaProcessing")) {
      const auto id_of = [&](const char* key) {
        const std::vector<JsonNode> pair = step.at(key).members();
        if (pair.size() != 2) step.at(key).fail("a token and its id");
        return pair[1].id();
      };
      around = {.before = {id_of("cls")}, .after = {id_of("sep")}};
    } else {
      refuse_type(step,
                  "\"TemplateProcessing\", \"RobertaProcessing\", \"ByteLevel\" or \"Sequence\"");
    }
  }
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

// Adds the added tokens to the vocabulary. If model.vocab lacks a token, Hugging Face's tokenizers
// ignore its id in the file and give it the next one. So another id in the file is refused.
void read_added_tokens(const JsonNode& node, TokenizerParts& parts, const json& model_vocabulary,
                       VocabularyMap& vocabulary) {
  if (node.value.is_null()) return;
  auto next = static_cast<int32_t>(model_vocabulary.size());
  for (const JsonNode& member : node.members()) {
    AddedToken& token = parts.added.emplace_back(added_token_of(member, false));
    token.id = member.at("id").id();
    token.in_model = model_vocabulary.contains(token.content);
    const bool is_new = vocabulary.add(token.content, token.id);
    if (is_new && token.id != next++)
      member.at("id").fail(fmt::format("{}, the next id after those of model.vocab", next - 1));
  }
}

// Older files have no type, but only BPE has merges.
void require_bpe(const JsonNode& node) {
  if (!node.at("type").value.is_null()) return node.require_type("BPE");
  if (node.at("merges").value.is_null()) node.refuse("BPE, with merges");
}

// Reads how characters or bytes without a token are encoded. If byte-level BPE has a token for each
// byte, the keys are not used.
void read_unknown(const JsonNode& node, TokenizerParts& parts, const VocabularyMap& vocabulary) {
  const bool byte_level = is_byte_level(parts);
  bool all_bytes = byte_level;
  for (const std::string& character : byte_alphabet())
    all_bytes = all_bytes && vocabulary.find(character);
  const bool fallback = node.at("byte_fallback").flag(false);
  if (all_bytes) return;
  if (const JsonNode token = node.at("unk_token"); !token.value.is_null()) {
    parts.unknown = vocabulary.find(token.text());
    if (!parts.unknown) token.fail("a token of model.vocab");
  }
  parts.fuse_unknown = node.at("fuse_unk").flag(false);
  parts.byte_fallback = fallback;
  if (byte_level && parts.byte_fallback)
    node.at("byte_fallback").refuse("false, as the pre_tokenizer is ByteLevel");
}

void read_model(const JsonNode& node, const JsonNode& added, TokenizerParts& parts) {
  if (node.at("dropout").value != 0.0) node.at("dropout").require(nullptr);
  node.at("continuing_subword_prefix").require_empty();
  node.at("end_of_word_suffix").require_empty();
  parts.ignore_merges = node.at("ignore_merges").flag(false);
  const JsonNode tokens = node.at("vocab");
  VocabularyMap vocabulary(tokens.value, tokens.name);
  for (const JsonNode& merge : node.at("merges").members())
    parts.merges.push_back(read_merge(merge, vocabulary));
  read_unknown(node, parts, vocabulary);
  read_added_tokens(added, parts, tokens.value, vocabulary);
  parts.tokens = vocabulary.tokens();
}

}  // namespace

AddedToken added_token_of(const JsonNode& node, bool absent) {
  const bool special = node.at("special").flag(absent);
  return {.content = filled_text(node.at("content"), "a text"),
          .special = special,
          .normalized = node.at("normalized").flag(!special),
          .single_word = node.at("single_word").flag(false),
          .lstrip = node.at("lstrip").flag(false),
          .rstrip = node.at("rstrip").flag(false)};
}

TokenizerParts tokenizer_parts(const std::string& text, const std::string& path) {
  const json root = parse_json_object(text, path);
  const JsonNode file{root, path + ": "};
  require_bpe(file.at("model"));  // checked first: the other checks assume it
  // truncation and padding are ignored: transformers sets both in each call, and the file contains
  // those of the last call.
  TokenizerParts parts;
  parts.normalizers = read_normalizer(file.at("normalizer"));
  parts.pre_tokenizers = read_pre_tokenizer(file.at("pre_tokenizer"));
  const JsonNode post_processor = file.at("post_processor");
  read_post_processor(post_processor, parts.around);
  if (parts.around != TextTemplate()) parts.post_processor = post_processor.value.dump();
  parts.decoders = read_decoder(file.at("decoder"), is_byte_level(parts));
  read_model(file.at("model"), file.at("added_tokens"), parts);
  return parts;
}

Tokenizer tokenizer_from_json(const std::string& text, const std::string& path,
                              const std::string& config) {
  TokenizerParts parts = tokenizer_parts(text, path);
  parts.config = config;
  return Tokenizer(std::move(parts), path);
}

}  // namespace zg::models
