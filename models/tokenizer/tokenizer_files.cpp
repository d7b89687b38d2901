#include "zerograd/models/tokenizer/tokenizer_files.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::models {
namespace {

constexpr int64_t max_bytes = int64_t{1} << 30;  // BLOOM's 250680 tokens take 14 MB
constexpr const char *tokenizer_name = "tokenizer.json", *vocabulary_name = "vocab.json",
                     *merges_name = "merges.txt", *added_name = "added_tokens.json";

// All lines except "#version: 0.2" and empty ones.
std::vector<Merge> read_merges(const std::string& text, const VocabularyMap& vocabulary,
                               const std::string& path) {
  std::vector<Merge> merges;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line(text.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    begin = end + 1;
    ++number;
    if (line.empty() || line.starts_with("#version")) continue;
    const std::string where = fmt::format("{}: line {}", path, number);
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
      throw FileError(where + ": expected two tokens with a space between");
    merges.push_back(vocabulary.merge(line.substr(0, space), line.substr(space + 1), where));
  }
  return merges;
}

std::vector<AddedToken> tokens_that_no_merge_makes(const TokenizerParts& parts) {
  std::vector<bool> made(parts.tokens.size());
  for (const Merge& merge : parts.merges) made[static_cast<size_t>(merge.result)] = true;
  std::vector<AddedToken> added;
  for (size_t id = 0; id < parts.tokens.size(); ++id) {
    const auto bytes = from_alphabet(parts.tokens[id]);
    if (!made[id] && !(bytes && bytes->size() == 1))
      added.push_back({.content = parts.tokens[id], .id = static_cast<int32_t>(id)});
  }
  return added;
}

TokenizerParts gpt2_parts(const GPT2Files& files, const std::string& directory) {
  const std::string path = directory + "/" + vocabulary_name;
  VocabularyMap vocabulary(parse_json_object(files.vocabulary, path), path);
  if (!files.added.empty()) {
    const std::string added = directory + "/" + added_name;
    vocabulary.add(parse_json_object(files.added, added), added);
  }
  TokenizerParts parts;
  parts.merges = read_merges(files.merges, vocabulary, directory + "/" + merges_name);
  parts.tokens = vocabulary.tokens();
  parts.added = tokens_that_no_merge_makes(parts);
  return parts;
}

}  // namespace

Tokenizer tokenizer_from_gpt2(const GPT2Files& files, const std::string& directory) {
  return Tokenizer(gpt2_parts(files, directory), directory + "/" + vocabulary_name);
}

GPT2Files gpt2_files(const Tokenizer& tokenizer) {
  const TokenizerParts& parts = tokenizer.parts();
  GPT2Files files{.vocabulary = "{", .merges = "#version: 0.2\n"};
  for (size_t id = 0; id < parts.tokens.size(); ++id)
    files.vocabulary +=
        fmt::format("{}{}:{}", id ? "," : "", nlohmann::json(parts.tokens[id]).dump(), id);
  files.vocabulary += "}";
  for (const Merge& merge : parts.merges)
    files.merges += fmt::format("{} {}\n", parts.tokens[static_cast<size_t>(merge.left)],
                                parts.tokens[static_cast<size_t>(merge.right)]);
  return files;
}

bool has_tokenizer(const std::string& folder) {
  return path_exists(folder + "/" + tokenizer_name) ||
         (path_exists(folder + "/" + vocabulary_name) && path_exists(folder + "/" + merges_name));
}

Tokenizer load_tokenizer(const std::string& path) {
  if (!is_directory(path)) return tokenizer_from_json(read_text(path, max_bytes), path);
  std::string whole = path + "/" + tokenizer_name;
  TokenizerParts parts;
  if (path_exists(whole)) {
    parts = tokenizer_parts(read_text(whole, max_bytes), whole);
    add_tokenizer_config(path, parts);
    return Tokenizer(std::move(parts), whole);
  }
  whole = path + "/" + vocabulary_name;
  if (!path_exists(whole))
    raise<FileError>(
        "{}: has neither tokenizer.json nor vocab.json and merges.txt; expected a "
        "folder as Hugging Face's libraries write one",
        path);
  const std::string added = path + "/" + added_name;
  parts = gpt2_parts({.vocabulary = read_text(whole, max_bytes),
                      .merges = read_text(path + "/" + merges_name, max_bytes),
                      .added = path_exists(added) ? read_text(added, max_bytes) : ""},
                     path);
  add_tokenizer_config(path, parts);
  return Tokenizer(std::move(parts), whole);
}

void save_tokenizer(const Tokenizer& tokenizer, const std::string& directory) {
  make_directories(directory);
  FileSet files(directory);
  add_tokenizer(tokenizer, files, "");
  files.finish();
}

void add_tokenizer(const Tokenizer& tokenizer, FileSet& files, const std::string& folder,
                   const std::optional<TextTemplate>& around) {
  const std::string begin = folder.empty() ? "" : folder + "/";
  if (is_byte_level(tokenizer.parts())) {
    const GPT2Files two = gpt2_files(tokenizer);
    write_text(files.add(begin + vocabulary_name), two.vocabulary);
    write_text(files.add(begin + merges_name), two.merges);
  }
  write_text(files.add(begin + tokenizer_name), tokenizer_json(tokenizer, around));
}

std::string hf_tokenizer_config_json(const Tokenizer& tokenizer, const SpecialTokens& tokens,
                                     int64_t positions) {
  // Without model_input_names transformers 4 returns token types, and its GPT-2 adds their
  // embeddings.
  nlohmann::json written = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                            {"model_input_names", {"input_ids", "attention_mask"}},
                            {"model_max_length", positions},
                            {"clean_up_tokenization_spaces", false}};
  bool has_defaults = true;  // the class may have special tokens that the config lacks
  if (const std::string& own = tokenizer.parts().config; !own.empty()) {
    nlohmann::json read = parse_json_object(own, "tokenizer_config.json");
    if (read["chat_template"].is_string() || read["chat_template"].is_null())
      read.erase("chat_template");
    const nlohmann::json& kind = read["tokenizer_class"];
    has_defaults = kind != "TokenizersBackend" && kind != "PreTrainedTokenizerFast";
    read["tokenizer_class"] = written["tokenizer_class"];
    read.erase("auto_map");
    written.update(read);
  }
  const auto name = [&](const char* key, std::optional<int32_t> id) {
    if (has_defaults && id && *id < tokenizer.vocabulary() && !written.contains(key))
      written[key] = tokenizer.parts().tokens[static_cast<size_t>(*id)];
  };
  name("bos_token", tokens.bos);
  name("eos_token", tokens.eos.empty() ? std::nullopt : std::optional(tokens.eos.front()));
  name("pad_token", tokens.pad);
  return written.dump(2) + "\n";
}

SpecialTokens special_tokens_of(const Tokenizer& tokenizer) {
  const auto id = [&](const char* content) { return tokenizer.id_of_added(content); };
  const auto first_of = [&](const std::vector<const char*>& names) {
    std::optional<int32_t> found;
    for (const char* name : names)
      if (!found) found = id(name);
    return found;
  };
  const auto token = [&](const char* key, const std::vector<const char*>& names) {
    const std::optional<int32_t> named = named_token(tokenizer, key);
    return named ? named : first_of(names);
  };
  SpecialTokens tokens = {.bos = token("bos_token", {"<s>", "<|begin_of_text|>", "<|endoftext|>"}),
                          .pad = token("pad_token", {"<pad>"}),
                          .eos = {}};
  if (const auto end = token("eos_token", {"</s>", "<|end_of_text|>", "<|endoftext|>"}))
    tokens.eos = {*end};
  return tokens;
}

// The files beside tokenizer.json, as AutoTokenizer of transformers 5 reads them.

namespace {

using nlohmann::json;

constexpr std::array special_keys = {"bos_token", "eos_token", "unk_token", "sep_token",
                                     "pad_token", "cls_token", "mask_token"};

json object_in(const std::string& path) {
  return path_exists(path) ? parse_json_object(read_text(path), path) : json::object();
}

/// The content of a token, which is a text or an object; empty: there is none.
std::string content_of(const JsonNode& token) {
  if (token.value.is_null()) return "";
  return token.value.is_object() ? token.at("content").text() : token.text();
}

/// The special tokens that a config names, in the order in which transformers adds them; the first
/// `named` have keys of their own.
std::vector<AddedToken> special_tokens_in(const JsonNode& config, size_t& named) {
  std::vector<AddedToken> tokens;
  const auto add = [&](const JsonNode& node) {
    const std::string content = content_of(node);
    if (content.empty()) return;
    AddedToken token = {.content = content};
    if (node.value.is_object()) token = added_token_of(node, /*special=*/true);
    token.special = true;
    tokens.push_back(std::move(token));
  };
  for (const char* key : special_keys) add(config.at(key));
  for (const auto& [key, value] : config.value.items())
    if (key.ends_with("_token") && value.is_string() &&
        std::ranges::find(special_keys, key) == special_keys.end())
      add(config.at(key));
  named = tokens.size();
  const JsonNode more =
      config.at(config.at("extra_special_tokens").value.empty() ? "additional_special_tokens"
                                                                : "extra_special_tokens");
  if (!more.value.is_null() && !more.value.is_structured()) more.fail("a list or an object");
  for (const auto& [key, value] : more.value.items()) add({value, more.name + "." + key + ": "});
  return tokens;
}

/// Tokens by the ids that files give them. transformers adds them in this order, with the next ids.
using ById = std::map<int64_t, AddedToken>;

ById tokens_in_decoder(const JsonNode& decoder) {
  ById tokens;
  if (!decoder.value.is_object()) decoder.fail("an object of ids and tokens");
  for (const auto& [key, value] : decoder.value.items()) {
    const JsonNode node = decoder.at(key);
    if (key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos || key.empty())
      node.fail("an id as its key");
    tokens[std::stoll(key)] = added_token_of(node, false);
  }
  return tokens;
}

ById tokens_in_file(const std::string& path, const TokenizerParts& parts) {
  const json object = object_in(path);
  const JsonNode root{object, path + ": "};
  ById tokens;
  for (const auto& [content, id] : object.items())
    tokens[root.at(content).id()] = {.content = content, .special = false, .normalized = true};
  for (const AddedToken& token : parts.added) tokens.erase(token.id);
  return tokens;
}

/// The class that AutoTokenizer of transformers 5 makes, without "Fast".
std::string class_of(const JsonNode& config, const JsonNode& model) {
  std::string name, type;
  for (const JsonNode& node : {config, model})
    if (const JsonNode own = node.at("tokenizer_class"); name.empty() && own.value.is_string())
      name = own.text();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (const JsonNode node = model.at("model_type"); node.value.is_string()) type = node.text();
  if (type == "mistral") return "";
  if (type == "qwen2" || (type == "qwen3" && name.empty())) return "Qwen2Tokenizer";
  return type == "gpt2" && name.empty() ? "GPT2Tokenizer" : name;
}

/// Replaces the steps of tokenizer.json for those classes that always use their own.
void use_steps_of_class(const std::string& name, const JsonNode& config, TokenizerParts& parts) {
  const bool is_llama = name == "LlamaTokenizer", is_qwen = name == "Qwen2Tokenizer";
  if (is_byte_level(parts) == is_llama || !(is_llama || is_qwen || name == "GPT2Tokenizer")) return;
  const bool adds_space = config.at("add_prefix_space").flag(is_llama);
  parts.normalizers.clear();
  if (is_llama) {
    using enum MetaspaceStep::Prepend;
    const MetaspaceStep spaces = {.prepend = !adds_space                       ? never
                                             : config.at("legacy").flag(false) ? always
                                                                               : first,
                                  .split = false};
    parts.pre_tokenizers = {spaces};
    parts.decoders = {ReplaceStep{spaces.replacement, " "}, ByteFallbackStep(), FuseStep()};
    if (adds_space) parts.decoders.emplace_back(StripStep{" ", 1, 0});
  } else {
    parts.pre_tokenizers = {ByteLevelStep{.add_prefix_space = adds_space, .use_regex = !is_qwen}};
    if (is_qwen) {
      parts.normalizers = {NFCStep()};
      const SplitStep words = {
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+)"
          R"([\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
      parts.pre_tokenizers.insert(parts.pre_tokenizers.begin(), words);
    }
  }
  parts.unknown.reset();
  parts.fuse_unknown = parts.byte_fallback = is_llama;
  parts.ignore_merges = false;
}

}  // namespace

void add_tokenizer_config(const std::string& folder, TokenizerParts& parts) {
  const std::string path = folder + "/tokenizer_config.json";
  json config = object_in(path);
  const bool has_decoder = config.contains("added_tokens_decoder");
  if (!has_decoder) config.update(object_in(folder + "/special_tokens_map.json"));
  if (const std::string separate = folder + "/chat_template.jinja"; path_exists(separate))
    config["chat_template"] = read_text(separate);
  const JsonNode root{config, path + ": "};
  root.at("split_special_tokens").require_false();
  const std::string model_path = folder + "/config.json";
  const json model = object_in(model_path);
  use_steps_of_class(class_of(root, {model, model_path + ": "}), root, parts);
  std::unordered_map<std::string, size_t> added, known;  // places in parts.added and parts.tokens
  for (size_t i = 0; i < parts.added.size(); ++i) added.emplace(parts.added[i].content, i);
  const auto add = [&](AddedToken token) {
    const auto [place, is_new] = added.emplace(token.content, parts.added.size());
    if (!is_new) {
      AddedToken& old = parts.added[place->second];
      token.id = old.id;
      token.in_model = old.in_model;
      old = std::move(token);
      return;
    }
    if (known.empty())
      for (size_t id = 0; id < parts.tokens.size(); ++id) known.emplace(parts.tokens[id], id);
    const auto found = known.find(token.content);
    token.in_model = found != known.end();
    token.id = static_cast<int32_t>(token.in_model ? found->second : parts.tokens.size());
    if (!token.in_model) parts.tokens.push_back(token.content);
    parts.added.push_back(std::move(token));
  };
  size_t named = 0;
  const std::vector<AddedToken> special = special_tokens_in(root, named);
  const auto is_special = [&](const AddedToken& token, size_t count) {
    const auto end = special.begin() + static_cast<ptrdiff_t>(count);
    return std::ranges::find(special.begin(), end, token.content, &AddedToken::content) != end;
  };
  for (auto [id, token] : has_decoder ? tokens_in_decoder(root.at("added_tokens_decoder"))
                                      : tokens_in_file(folder + "/added_tokens.json", parts)) {
    token.special = token.special || is_special(token, has_decoder ? named : special.size());
    if (!has_decoder) token.normalized = !token.special;
    add(std::move(token));
  }
  if (!has_decoder)
    for (AddedToken& token : parts.added) token.special = token.special || is_special(token, named);
  // If special tokens have the same content, the last one is kept.
  const size_t listed = parts.added.size();
  for (const AddedToken& token : special)
    if (const auto found = added.find(token.content);
        found == added.end() || found->second >= listed)
      add(token);
  if (!config.empty()) parts.config = config.dump();
}

namespace {

json config_of(const Tokenizer& tokenizer) {
  const std::string& config = tokenizer.parts().config;
  return config.empty() ? json::object() : parse_json_object(config, "tokenizer_config.json");
}

}  // namespace

std::optional<int32_t> named_token(const Tokenizer& tokenizer, const char* key) {
  const json config = config_of(tokenizer);
  return tokenizer.id_of_added(content_of(JsonNode{config, "tokenizer_config.json: "}.at(key)));
}

std::string chat_template_of(const Tokenizer& tokenizer) {
  const json config = config_of(tokenizer);
  const JsonNode templates = JsonNode{config, "tokenizer_config.json: "}.at("chat_template");
  if (!templates.value.is_array()) return templates.value.is_null() ? "" : templates.text();
  for (const JsonNode& named : templates.members())
    if (named.at("name").text() == "default") return named.at("template").text();
  return "";
}

}  // namespace zg::models
