#include <nlohmann/json.hpp>

#include "zerograd/models/tokenizer/tokenizer_files.h"
#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::models {
namespace {

using nlohmann::json;

json written_byte_level(const ByteLevelStep& step) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", step.add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", step.use_regex}};
}

json any_byte_level() { return written_byte_level({.add_prefix_space = true}); }

struct WriteStep {
  json operator()(const NFCStep&) const { return {{"type", "NFC"}}; }
  json operator()(const PrependStep& step) const {
    return {{"type", "Prepend"}, {"prepend", step.text}};
  }
  json operator()(const ReplaceStep& step) const {
    return {{"type", "Replace"}, {"pattern", {{"String", step.text}}}, {"content", step.by}};
  }
  json operator()(const SplitStep& step) const {
    constexpr const char* names[] = {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                     "Contiguous"};
    return {{"type", "Split"},
            {"pattern", {{step.is_literal ? "String" : "Regex", step.pattern}}},
            {"behavior", names[static_cast<size_t>(step.behavior)]},
            {"invert", step.invert}};
  }
  json operator()(const DigitsStep& step) const {
    return {{"type", "Digits"}, {"individual_digits", step.individual}};
  }
  json operator()(const ByteLevelStep& step) const { return written_byte_level(step); }
  json operator()(const MetaspaceStep& step) const {
    constexpr const char* names[] = {"first", "never", "always"};
    return {{"type", "Metaspace"},
            {"replacement", step.replacement},
            {"prepend_scheme", names[static_cast<size_t>(step.prepend)]},
            {"split", step.split}};
  }
  json operator()(const ByteFallbackStep&) const { return {{"type", "ByteFallback"}}; }
  json operator()(const FuseStep&) const { return {{"type", "Fuse"}}; }
  json operator()(const StripStep& step) const {
    return {
        {"type", "Strip"}, {"content", step.content}, {"start", step.start}, {"stop", step.stop}};
  }
};

template <class Step>
json written_steps(const std::vector<Step>& steps, const char* key) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::visit(WriteStep(), steps.front());
  json members = json::array();
  for (const Step& step : steps) members.push_back(std::visit(WriteStep(), step));
  return {{"type", "Sequence"}, {key, members}};
}

/// A post_processor that adds `around` to the ids of a text.
json template_processing(const TokenizerParts& parts, const TextTemplate& around) {
  json special = json::object();
  const auto with = [&](const json& texts) {
    json pieces = json::array();
    const auto add = [&](const std::vector<int32_t>& ids) {
      for (const int32_t id : ids) {
        if (static_cast<size_t>(id) >= parts.tokens.size()) continue;
        const std::string& name = parts.tokens[static_cast<size_t>(id)];
        pieces.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
        special[name] = {{"id", name}, {"ids", json::array({id})}, {"tokens", json::array({name})}};
      }
    };
    add(around.before);
    for (const json& text : texts) pieces.push_back({{"Sequence", {{"id", text}, {"type_id", 0}}}});
    add(around.after);
    return pieces;
  };
  const json single = with(json::array({"A"})), pair = with(json::array({"A", "B"}));
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", special}};
}

json written_post_processor(const TokenizerParts& parts,
                            const std::optional<TextTemplate>& requested) {
  const TextTemplate& around = requested ? *requested : parts.around;
  if (around == TextTemplate()) return is_byte_level(parts) ? any_byte_level() : json();
  if (around == parts.around && !parts.post_processor.empty())
    return parse_json_object(parts.post_processor, "post_processor");
  return template_processing(parts, around);
}

json written_added(const TokenizerParts& parts) {
  nlohmann::ordered_json added = nlohmann::ordered_json::array();
  for (const AddedToken& token : parts.added)
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  return added;
}

// Tokens of the vocabulary in the order of ids. Written as text: ordered_json searches all keys at
// each insertion.
std::string written_vocabulary(const TokenizerParts& parts) {
  std::vector<bool> left_out(parts.tokens.size());
  for (const AddedToken& token : parts.added)
    left_out[static_cast<size_t>(token.id)] = !token.in_model;
  // False: no word can be a token that is left out. Then model.vocab may have it, with equal
  // results.
  bool matters = !is_byte_level(parts) || parts.ignore_merges;
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const auto bytes = from_alphabet(parts.tokens[id]);
    matters = matters || (left_out[id] && bytes && bytes->size() == 1);
  }
  if (!matters) left_out.assign(left_out.size(), false);
  std::string text;
  for (size_t id = 0; id < parts.tokens.size(); ++id)
    if (!left_out[id])
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json(parts.tokens[id]).dump(), id);
  return text;
}

std::string written_merges(const TokenizerParts& parts) {
  std::string text;
  for (const Merge& merge : parts.merges) {
    const std::string& left = parts.tokens[static_cast<size_t>(merge.left)];
    const std::string& right = parts.tokens[static_cast<size_t>(merge.right)];
    const bool has_space = (left + right).find(' ') != std::string::npos;
    const json pair =
        has_space ? json::array({left, right}) : json(fmt::format("{} {}", left, right));
    text += (text.empty() ? "" : ",") + pair.dump();
  }
  return text;
}

}  // namespace

std::string tokenizer_json(const Tokenizer& tokenizer, const std::optional<TextTemplate>& around) {
  const TokenizerParts& parts = tokenizer.parts();
  const auto word = [](bool value) { return value ? "true" : "false"; };
  const nlohmann::ordered_json head = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", written_added(parts)},
      {"normalizer", written_steps(parts.normalizers, "normalizers")},
      {"pre_tokenizer", written_steps(parts.pre_tokenizers, "pretokenizers")},
      {"post_processor", written_post_processor(parts, around)},
      {"decoder",
       is_byte_level(parts) ? any_byte_level() : written_steps(parts.decoders, "decoders")}};
  std::string text = head.dump();
  text.pop_back();
  const json unknown =
      parts.unknown ? json(parts.tokens[static_cast<size_t>(*parts.unknown)]) : json();
  return text + R"(,"model":{"type":"BPE","dropout":null,"unk_token":)" + unknown.dump() +
         R"(,"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":)" +
         word(parts.fuse_unknown) + R"(,"byte_fallback":)" + word(parts.byte_fallback) +
         R"(,"ignore_merges":)" + word(parts.ignore_merges) + R"(,"vocab":{)" +
         written_vocabulary(parts) + R"(},"merges":[)" + written_merges(parts) + "]}}\n";
}

}  // namespace zg::models
