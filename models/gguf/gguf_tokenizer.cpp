#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "zerograd/models/data/chat_template.h"
#include "zerograd/models/gguf/gguf_file.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

// Converts a tokenizer.json to keys of GGUF. llama.cpp has a fixed list of named ways to split a
// text. A tokenizer that splits in another way is refused: llama.cpp would give other ids.
namespace zg::models {
namespace {

using nlohmann::json;

constexpr const char* space = "\u2581";  // SentencePiece's character for a space

// Kinds of tokens, as SentencePiece numbers them.
constexpr int32_t normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6;

constexpr const char* llama3_split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* qwen2_split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* bloom_split = R"( ?[^(\s|[.,!?…。，、।۔،])]+)";
constexpr const char* digit_split = R"(\p{N})";

[[noreturn]] void refuse(const JsonNode& node, const std::string& expected) {
  raise<Unsupported>("{} is {}; expected {}, which llama.cpp has; leave the tokenizer out",
                     node.name, brief(node.value), expected);
}

bool is_null(const JsonNode& node) { return node.value.is_null(); }

/// True for an added token that convert_hf_to_gguf.py treats as a control token, although its file
/// does not mark it as special.
bool looks_special(std::string_view text) {
  for (const char* known : {"<pad>", "<mask>", "<2mass>", "[@BOS@]"})
    if (text == known) return true;
  for (const auto& [begin, end] :
       {std::pair("<|", "|>"), std::pair("<\uff5c", "\uff5c>"), std::pair("<unused", ">")})
    if (text.starts_with(begin) && text.ends_with(end)) return true;
  return false;
}

/// The tokens of a tokenizer.json by id, with the types of convert_hf_to_gguf.py. An id of the
/// model that the file lacks becomes an unused token. Tokens with larger ids are left out.
class GGUFVocabulary {
 public:
  GGUFVocabulary(const JsonNode& file, int64_t model_vocabulary) {
    texts.resize(static_cast<size_t>(model_vocabulary));
    kinds.assign(texts.size(), unused);
    const JsonNode tokens = file.at("model").at("vocab");
    if (!tokens.value.is_object()) tokens.fail("an object");
    for (const auto& [text, id] : tokens.value.items())
      add(text, normal, {id, tokens.name + "." + text});
    if (const JsonNode added = file.at("added_tokens"); !is_null(added))
      for (const JsonNode& token : added.members()) add_added(token);
    for (size_t id = 0; id < texts.size(); ++id)
      if (kinds[id] == unused) add_unused(id, file.name);
  }

  std::optional<int32_t> find(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  int32_t id_of(const JsonNode& node, const std::string& text) const {
    const std::optional<int32_t> id = find(text);
    if (!id) node.fail("tokens of the vocabulary");
    return *id;
  }

  std::vector<std::string> texts;
  std::vector<int32_t> kinds;
  std::unordered_set<std::string> beyond;  ///< texts that are left out

 private:
  void add(const std::string& text, int32_t kind, const JsonNode& id) {
    const int32_t number = id.id();
    if (number >= std::ssize(texts)) {
      beyond.insert(text);
      return;
    }
    const auto slot = static_cast<size_t>(number);
    const bool is_new = ids_.emplace(text, number).second;
    if (is_new ? kinds[slot] != unused : ids_.at(text) != number)
      id.fail(fmt::format("one id for each token; '{}' is another token or has another id", text));
    texts[slot] = text;
    kinds[slot] = kind;
  }
  void add_added(const JsonNode& token) {
    for (const char* key : {"single_word", "lstrip", "rstrip"})
      if (const JsonNode flag = token.at(key); !is_null(flag) && flag.flag()) refuse(flag, "false");
    const std::string& text = token.at("content").text();
    const JsonNode id = token.at("id");
    const bool is_special = token.at("special").flag(false) || looks_special(text);
    add(text, is_special ? control : user_defined, id);
    if (is_special || beyond.contains(text)) return;
    std::string& written = texts[static_cast<size_t>(id.id())];  // llama.cpp has plain spaces
    for (size_t at = 0; (at = written.find(space, at)) != std::string::npos;)
      written.replace(at, std::string_view(space).size(), " ");
  }
  void add_unused(size_t id, const std::string& where) {
    texts[id] = fmt::format("[PAD{}]", id);
    if (!ids_.emplace(texts[id], static_cast<int32_t>(id)).second)
      raise<Unsupported>(
          "{}'{}' is a token; expected no token of this name, which id {} without a token has",
          where, texts[id], id);
  }

  std::unordered_map<std::string, int32_t> ids_;
};

/// The two tokens of a merge: "a b" in older files, ["a", "b"] in newer ones.
std::pair<std::string, std::string> merge_of(const JsonNode& node) {
  if (node.value.is_array()) {
    const std::vector<JsonNode> pair = node.members();
    if (pair.size() != 2) node.fail("two tokens");
    return {pair[0].text(), pair[1].text()};
  }
  const std::string& text = node.text();
  const size_t at = text.find(' ');
  if (at == std::string::npos) node.fail("two tokens with a space between");
  return {text.substr(0, at), text.substr(at + 1)};
}

// --- byte-level BPE ---

/// llama.cpp's name for the way in which a pre_tokenizer splits a text into words.
std::string splitter_name(const JsonNode& node, bool ignores_merges) {
  std::vector<JsonNode> members;
  if (node.has_type("Sequence"))
    members = node.at("pretokenizers").members();
  else
    members.push_back(node);
  if (members.empty()) refuse(node, "ByteLevel");
  const JsonNode& last = members.back();
  if (!last.has_type("ByteLevel")) refuse(last, "ByteLevel");
  if (const JsonNode prefix = last.at("add_prefix_space"); prefix.flag(false))
    refuse(prefix, "false");
  const bool has_gpt2_split = last.at("use_regex").flag(true);
  const auto named = [&](const char* name) -> std::string {
    if (ignores_merges)
      raise<Unsupported>(
          "{}: model.ignore_merges is true; expected false with the split {}, as llama.cpp has it; "
          "leave the tokenizer out",
          node.name, name);
    return name;
  };
  if (members.size() == 1 && has_gpt2_split) return named("gpt-2");
  const char* known = "the splits of GPT-2, Llama 3, Qwen2, SmolLM and BLOOM";
  if (members.size() != 2) refuse(node, known);
  const JsonNode& first = members[0];
  if (has_gpt2_split && first.has_type("Digits") && first.at("individual_digits").flag(false))
    return named("smollm");
  if (!first.has_type("Split")) refuse(first, known);
  if (first.at("behavior").text() != "Isolated") refuse(first.at("behavior"), "Isolated");
  if (first.at("invert").flag(false)) refuse(first.at("invert"), "false");
  const JsonNode pattern = first.at("pattern").at("Regex");
  const std::string split = is_null(pattern) ? std::string() : pattern.text();
  if (has_gpt2_split && split == digit_split) return named("smollm");
  if (!has_gpt2_split && split == llama3_split) return ignores_merges ? "llama-bpe" : "smaug-bpe";
  if (!has_gpt2_split && split == qwen2_split) return named("qwen2");
  if (!has_gpt2_split && split == bloom_split) return named("bloom");
  refuse(first.at("pattern"), known);
}

/// Accepts no normalizer, and NFC, which llama.cpp does not apply.
void check_byte_level_normalizer(const JsonNode& node, std::vector<std::string>& notes) {
  if (is_null(node)) return;
  if (node.has_type("Sequence")) {
    for (const JsonNode& member : node.at("normalizers").members())
      check_byte_level_normalizer(member, notes);
    return;
  }
  if (!node.has_type("NFC")) refuse(node, "none or NFC");
  notes.push_back(node.name + " is NFC: llama.cpp tokenizes a text as it is given");
}

void add_byte_level(const JsonNode& file, const GGUFVocabulary& vocabulary, GGUFMetadata& metadata,
                    std::vector<std::string>& notes) {
  check_byte_level_normalizer(file.at("normalizer"), notes);
  const JsonNode model = file.at("model");
  metadata.add("tokenizer.ggml.model", std::string("gpt2"));
  metadata.add("tokenizer.ggml.pre",
               splitter_name(file.at("pre_tokenizer"), model.at("ignore_merges").flag(false)));
  metadata.add("tokenizer.ggml.tokens", vocabulary.texts);
  metadata.add("tokenizer.ggml.token_type", vocabulary.kinds);
  std::vector<std::string> merges;
  for (const JsonNode& node : model.at("merges").members()) {
    const auto [left, right] = merge_of(node);
    if (vocabulary.beyond.contains(left + right)) continue;
    for (const std::string& text : {left, right, left + right}) vocabulary.id_of(node, text);
    merges.push_back(fmt::format("{} {}", left, right));
    if (std::ranges::count(merges.back(), ' ') != 1) refuse(node, "tokens without a space");
  }
  metadata.add("tokenizer.ggml.merges", merges);
}

// --- SentencePiece's BPE ---

/// Requires that spaces become SentencePiece's character. True if one is also put before the text.
bool prepends_space(const JsonNode& file) {
  const JsonNode normalizer = file.at("normalizer"), splitter = file.at("pre_tokenizer");
  std::vector<JsonNode> steps;
  if (!is_null(normalizer)) {
    if (normalizer.has_type("Sequence"))
      steps = normalizer.at("normalizers").members();
    else
      steps.push_back(normalizer);
  }
  bool replaces = false, prepends = false;
  for (const JsonNode& step : steps) {
    if (step.has_type("Prepend") && step.at("prepend").text() == space)
      prepends = true;
    else if (step.has_type("Replace") && step.at("pattern").at("String").value == " " &&
             step.at("content").text() == space)
      replaces = true;
    else
      refuse(step, "Prepend and Replace of a space, as SentencePiece");
  }
  if (is_null(splitter)) {
    if (!replaces) refuse(normalizer, "Replace of a space, as SentencePiece");
    return prepends;
  }
  if (!splitter.has_type("Metaspace") || splitter.at("replacement").text() != space || replaces ||
      prepends)
    refuse(splitter, "Metaspace, or none with a normalizer");
  if (const JsonNode split = splitter.at("split"); split.flag(true)) refuse(split, "false");
  return splitter.at("prepend_scheme").text() != "never";
}

constexpr size_t max_token_bytes = 1024;  // scores_of() splits a token at each of its characters

/// llama.cpp joins the two neighbours whose joined token has the highest score. With the scores
/// returned here it applies the merges in their order; SentencePiece's own scores have that order
/// too. Throws Unsupported if no such scores exist.
std::vector<float> scores_of(const JsonNode& merges, const GGUFVocabulary& vocabulary) {
  const size_t count = vocabulary.texts.size();
  std::vector<float> scores(count, -1e9f);
  std::vector<bool> has_merge(count);
  std::unordered_set<uint64_t> pairs;
  std::optional<int32_t> previous;
  const std::vector<JsonNode> nodes = merges.members();
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto [left, right] = merge_of(nodes[i]);
    if (vocabulary.beyond.contains(left + right)) continue;
    const int32_t a = vocabulary.id_of(nodes[i], left), b = vocabulary.id_of(nodes[i], right),
                  joined = vocabulary.id_of(nodes[i], left + right);
    pairs.insert(static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b));
    const auto slot = static_cast<size_t>(joined);
    if (has_merge[slot] && previous != joined)
      refuse(nodes[i], "the merges of a token one after another");
    if (!has_merge[slot]) scores[slot] = -static_cast<float>(i);
    has_merge[slot] = true;
    previous = joined;
  }
  for (size_t id = 0; id < count; ++id) {
    const std::string& text = vocabulary.texts[id];
    if (vocabulary.kinds[id] != normal) continue;
    if (text.size() > max_token_bytes)
      raise<Unsupported>(
          "{}: the token {} has {} bytes; expected at most {} (max_token_bytes); leave the "
          "tokenizer out",
          merges.name, id, text.size(), max_token_bytes);
    for (size_t at = 1; at < text.size(); ++at) {
      if ((static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) continue;  // within a character
      const auto left = vocabulary.find(text.substr(0, at)),
                 right = vocabulary.find(text.substr(at));
      if (!left || !right || vocabulary.kinds[static_cast<size_t>(*left)] != normal ||
          vocabulary.kinds[static_cast<size_t>(*right)] != normal)
        continue;
      if (!pairs.contains(static_cast<uint64_t>(*left) << 32 | static_cast<uint32_t>(*right)))
        raise<Unsupported>(
            "{} has no merge of '{}' and '{}'; expected one, because llama.cpp joins any two "
            "tokens whose text is a token; leave the tokenizer out",
            merges.name, vocabulary.texts[static_cast<size_t>(*left)],
            vocabulary.texts[static_cast<size_t>(*right)]);
    }
  }
  return scores;
}

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">") &&
         text.find_first_not_of("0123456789ABCDEFabcdef", 3) == 5;
}

void add_sentencepiece(const JsonNode& file, GGUFVocabulary& vocabulary, GGUFMetadata& metadata) {
  const JsonNode model = file.at("model");
  const bool adds_space = prepends_space(file);
  if (const JsonNode fallback = model.at("byte_fallback"); !fallback.flag(false))
    refuse(fallback, "true without ByteLevel");
  if (const JsonNode ignores = model.at("ignore_merges"); ignores.flag(false))
    refuse(ignores, "false with byte_fallback");
  for (size_t id = 0; id < vocabulary.texts.size(); ++id)
    if (vocabulary.kinds[id] == normal && is_byte_token(vocabulary.texts[id]))
      vocabulary.kinds[id] = byte;
  // An added token keeps its type, as in convert_hf_to_gguf.py.
  if (const JsonNode token = model.at("unk_token"); !is_null(token))
    if (int32_t& kind =
            vocabulary.kinds[static_cast<size_t>(vocabulary.id_of(token, token.text()))];
        kind == normal)
      kind = unknown;
  metadata.add("tokenizer.ggml.model", std::string("llama"));
  metadata.add("tokenizer.ggml.pre", std::string("default"));
  metadata.add("tokenizer.ggml.tokens", vocabulary.texts);
  metadata.add("tokenizer.ggml.scores", scores_of(model.at("merges"), vocabulary));
  metadata.add("tokenizer.ggml.token_type", vocabulary.kinds);
  metadata.add_flag("tokenizer.ggml.add_space_prefix", adds_space);
}

// --- special tokens ---

/// The tokens that the post_processor adds around a text.
struct Around {
  std::optional<int32_t> first, last;
};

void read_around(const JsonNode& node, const GGUFVocabulary& vocabulary, Around& around) {
  if (is_null(node) || node.has_type("ByteLevel")) return;
  if (node.has_type("Sequence")) {
    for (const JsonNode& member : node.at("processors").members())
      read_around(member, vocabulary, around);
    return;
  }
  if (!node.has_type("TemplateProcessing")) refuse(node, "ByteLevel or TemplateProcessing");
  bool after_text = false;
  for (const JsonNode& piece : node.at("single").members()) {
    const JsonNode special = piece.at("SpecialToken");
    if (is_null(special)) {
      after_text = true;
      continue;
    }
    std::optional<int32_t>& token = after_text ? around.last : around.first;
    if (token) refuse(node.at("single"), "at most one token before and one after the text");
    token = vocabulary.id_of(special, special.at("id").text());
  }
}

void add_special_tokens(const JsonNode& file, const GGUFVocabulary& vocabulary,
                        const SpecialTokens& tokens, GGUFMetadata& metadata,
                        std::vector<std::string>& notes) {
  Around around;
  read_around(file.at("post_processor"), vocabulary, around);
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    if (id)
      metadata.add(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(*id));
  };
  add("bos", around.first ? around.first : tokens.bos);
  // llama.cpp ends a text at the tokens of these three keys, and at tokens whose text it knows.
  std::vector<int32_t> ends = tokens.eos;
  if (around.last) {
    std::erase(ends, *around.last);
    ends.insert(ends.begin(), *around.last);
  }
  const char* names[] = {"eos", "eot", "eom"};
  for (size_t i = 0; i < std::min(ends.size(), std::size(names)); ++i) add(names[i], ends[i]);
  if (ends.empty())
    notes.emplace_back("the model has no token that ends a text; llama.cpp takes its default");
  if (ends.size() > std::size(names))
    notes.push_back(fmt::format("the model has {} tokens that end a text; the first {} are written",
                                ends.size(), std::size(names)));
  add("padding", tokens.pad);
  if (const JsonNode token = file.at("model").at("unk_token"); token.value.is_string())
    add("unknown", vocabulary.find(token.text()));
  metadata.add_flag("tokenizer.ggml.add_bos_token", around.first.has_value());
  metadata.add_flag("tokenizer.ggml.add_eos_token", around.last.has_value());
}

}  // namespace

GGUFTokenizer gguf_tokenizer(const std::string& folder) {
  constexpr int64_t json_bytes = int64_t{1} << 28;
  GGUFTokenizer result{.path = folder + "/tokenizer.json"};
  if (!path_exists(result.path)) return result;
  result.json = read_text(result.path, json_bytes);
  result.chat_template = folder_chat_template(folder).text;
  return result;
}

void add_gguf_tokenizer(const GGUFTokenizer& tokenizer, const HFModel& model,
                        GGUFMetadata& metadata, std::vector<std::string>& notes) {
  if (tokenizer.json.empty()) {
    metadata.add("tokenizer.ggml.model", std::string("none"));
    notes.emplace_back("the file has no tokenizer: llama.cpp takes and gives ids of tokens");
    return;
  }
  const json root = parse_json_object(tokenizer.json, tokenizer.path);
  const JsonNode file{root, tokenizer.path + ": "};
  const JsonNode bpe = file.at("model");
  if (const JsonNode type = bpe.at("type"); !is_null(type) && type.text() != "BPE")
    refuse(type, "BPE");
  if (!bpe.at("dropout").value.is_null() && bpe.at("dropout").value != 0.0)
    refuse(bpe.at("dropout"), "none");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const JsonNode text = bpe.at(key); !is_null(text) && !text.text().empty())
      refuse(text, "none");
  GGUFVocabulary vocabulary(file, model.config.vocabulary);
  if (!vocabulary.beyond.empty())
    notes.push_back(
        fmt::format("{}{} tokens are left out, '{}' for one: the model has ids below {}", file.name,
                    vocabulary.beyond.size(), *vocabulary.beyond.begin(), model.config.vocabulary));
  const JsonNode splitter = file.at("pre_tokenizer");
  if (is_null(splitter) || splitter.has_type("Metaspace"))
    add_sentencepiece(file, vocabulary, metadata);
  else
    add_byte_level(file, vocabulary, metadata, notes);
  add_special_tokens(file, vocabulary, model.tokens, metadata, notes);
  if (!tokenizer.chat_template.empty())
    metadata.add("tokenizer.chat_template", tokenizer.chat_template);
}

}  // namespace zg::models
