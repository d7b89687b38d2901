#include "tools/config/load.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tools/config/accelerate.h"
#include "tools/config/hjson.h"
#include "tools/config/yaml.h"
#include "tools/values.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/file_io.h"

namespace zg::tools {
namespace {

constexpr size_t largest_config = 1 << 20;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(largest_config + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    throw FileError("--config: " + path + " cannot be read: " +
                    (is_directory(path)  ? "it is a directory"
                     : path_exists(path) ? "it cannot be opened"
                                         : "there is nothing of that name") +
                    "; expected a DeepSpeed config, JSON");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > largest_config)
    throw ConfigError("--config: " + path + " is larger than 1 MiB; expected a DeepSpeed config, " +
                      "JSON; try the file's right name");
  return text;
}

std::string shown(const Setting& setting) {
  if (setting.automatic) return "auto";
  if (setting.null) return "null";
  switch (setting.row->type) {
    case Type::boolean:
      return setting.boolean ? "true" : "false";
    case Type::integer:
      return std::to_string(setting.integer);
    case Type::number:
    case Type::numbers: {
      std::vector<std::string> words;
      for (double number :
           setting.numbers.empty() ? std::vector{setting.number} : setting.numbers) {
        char word[32];
        std::snprintf(word, sizeof word, "%g", number);
        words.push_back(word);
      }
      return setting.numbers.empty() ? words.front() : "[" + join(words, ", ") + "]";
    }
    default:
      return setting.text;
  }
}

void print_state(const CheckedConfig& config) {
  for (const auto& [name, setting] : config.settings)
    if (setting.row->type != Type::section && setting.row->type != Type::any)
      std::fprintf(stderr, "%s: %s = %s%s\n", config.file.c_str(), path_of(*setting.row).c_str(),
                   shown(setting).c_str(), setting.given ? "" : " (default)");
}

struct Document {
  std::string file;
  Value root;
  bool is_yaml = false;
};

// As launchers pass a config through a command line: base64 with - and _ for + and /. None when it
// is no such text.
std::optional<std::string> base64_decoded(const std::string& word) {
  static const std::string digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
  std::string text;
  uint32_t bits = 0;
  int count = 0;
  const size_t end = word.find_last_not_of('=') + 1;
  for (const char letter : word.substr(0, end)) {
    const size_t digit = digits.find(letter);
    if (digit == std::string::npos) return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    text += static_cast<char>(bits >> count & 0xff);
  }
  const bool whole = word.size() % 4 == 0 && word.size() - end <= 2 && count < 6;
  return whole && text.find('{') != std::string::npos ? std::optional(text) : std::nullopt;
}

// A file, a config itself, or one in base64: as DeepSpeed takes them.
Document document_of(const std::string& path) {
  const size_t first = path.find_first_not_of(" \t\n");
  if (first != std::string::npos && path[first] == '{')
    return {.file = "--config", .root = read_hjson(path, "--config")};
  std::error_code unnameable;  // a long text is no file's name
  if (const auto text = base64_decoded(path); text && !std::filesystem::exists(path, unnameable))
    return {.file = "--config", .root = read_hjson(*text, "--config")};
  const bool is_yaml = path.ends_with(".yaml") || path.ends_with(".yml");
  const std::string text = read_text(path);
  return {.file = path,
          .root = is_yaml ? read_yaml(text, path) : read_hjson(text, path),
          .is_yaml = is_yaml};
}

// Of several processes one speaks.
bool is_first(const TrainOptions& options) {
  return !options.process || options.process->rank == 0;
}

CheckedConfig checked(const Document& document, const TrainOptions& options) {
  const CheckedConfig config =
      check_config(document.root, document.file, options.config.compat, options.config.lenient,
                   document.is_yaml ? "accelerate" : "");
  if (is_first(options))
    for (const std::string& line : config.warnings)
      std::fprintf(stderr, "warning: %s\n", line.c_str());
  if (config.unsupported) throw Unsupported(*config.unsupported);
  return config;
}

void report(const CheckedConfig& config, const std::vector<std::string>& overridden) {
  for (const std::string& line : config.without_effect) std::fprintf(stderr, "%s\n", line.c_str());
  if (!overridden.empty())
    std::fprintf(stderr, "%s: overridden by flags: %s\n", config.file.c_str(),
                 join(overridden, ", ").c_str());
  if (config.is_on("", "dump_state")) print_state(config);
}

/// `yaml`: accelerate's, which names or holds this one; null: there is none.
CheckedConfig load_deepspeed(const Document& document, const CheckedConfig* yaml,
                             TrainOptions& options) {
  CheckedConfig config = checked(document, options);
  if (yaml) fill_defaults(*yaml, options.given, config);
  if (config.unsupported) throw Unsupported(*config.unsupported);
  const std::vector<std::string> overridden = apply_config(config, options);
  if (is_first(options)) report(config, overridden);
  return config;
}

// accelerate refuses them too: the file has the say.
void refuse_beside_file(const CheckedConfig& yaml) {
  for (const char* key :
       {"gradient_accumulation_steps", "gradient_clipping", "zero_stage", "zero3_save_16bit_model",
        "offload_optimizer_device", "offload_optimizer_nvme_path", "offload_param_device",
        "offload_param_nvme_path"})
    if (const Setting* setting = yaml.find("accelerate_deepspeed", key); setting && setting->given)
      throw ConfigError(
          yaml.place_of(*setting) + key +
          " is ignored beside deepspeed_config_file; expected it in that file, got it "
          "here; try moving it there");
}

// The config that accelerate's file names, or its own keys; none: another kind of run.
std::optional<Document> deepspeed_of(const Document& document, const CheckedConfig& yaml) {
  const Setting* type = yaml.find("accelerate", "distributed_type");
  if (!type || type->text != "DEEPSPEED") return std::nullopt;
  const Setting* named = yaml.find("accelerate_deepspeed", "deepspeed_config_file");
  if (!named || named->null) return Document{document.file, deepspeed_config_of(document.root)};
  refuse_beside_file(yaml);
  Document own = document_of(named->text);
  own.is_yaml = false;
  return own;
}

void load_accelerate(const Document& document, TrainOptions& options) {
  const CheckedConfig yaml = checked(document, options);
  const Given flags = options.given;
  const Setting* type = yaml.find("accelerate", "distributed_type");
  const std::string kind = type ? type->text : "";
  if (kind == "FSDP" || kind == "MEGATRON_LM" || kind == "XLA" || kind == "TPU")
    throw Unsupported(yaml.place_of(*type) + kind +
                      ": this version does not do it; expected "
                      "DEEPSPEED, got " +
                      kind + "; try DEEPSPEED with zero_stage: 3");
  std::optional<CheckedConfig> deepspeed;
  if (const std::optional<Document> own = deepspeed_of(document, yaml))
    deepspeed = load_deepspeed(*own, &yaml, options);
  const std::vector<std::string> overridden =
      apply_accelerate(yaml, deepspeed ? &*deepspeed : nullptr, flags, options);
  if (is_first(options)) report(yaml, overridden);
}

}  // namespace

void load_config(TrainOptions& options) {
  const std::string& path = options.config.path;
  if (path.empty()) {
    for (const char* flag : {"--compat", "--lenient"})
      if (options.given.count(flag))
        throw ConfigError(std::string(flag) +
                          ": expected --config F with it, got none; leave the flag out");
    return;
  }
  const Document document = document_of(path);
  if (document.is_yaml)
    load_accelerate(document, options);
  else
    load_deepspeed(document, nullptr, options);
}

Value deepspeed_config(const ConfigOptions& config) {
  const Document document = document_of(config.path);
  if (!document.is_yaml) return document.root;
  const auto own = deepspeed_of(document, check_config(document.root, document.file, config.compat,
                                                       config.lenient, "accelerate"));
  return own ? own->root : Value{.kind = Value::Kind::object};
}

}  // namespace zg::tools
