#include "zerograd/models/tokenizer/tokenizer_files.h"

#include <nlohmann/json.hpp>

#include "zerograd/models/tokenizer/vocabulary.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

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

}  // namespace zg::models
