#include "tools/config/load.h"

#include <cstdio>
#include <fstream>

#include "runtime/error.h"
#include "tools/config/hjson.h"
#include "tools/values.h"

namespace zg::tools {
namespace {

constexpr size_t largest_config = 1 << 20;

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(largest_config + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    throw FileError("--config: " + path + " cannot be read; expected a DeepSpeed config, JSON");
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
  const size_t first = path.find_first_not_of(" \t\n");
  const bool is_inline = first != std::string::npos && path[first] == '{';
  const std::string file = is_inline ? "--config" : path;
  const std::string text = is_inline ? path : read_text(path);
  const CheckedConfig config =
      check_config(read_hjson(text, file), file, options.config.compat, options.config.lenient);
  for (const std::string& line : config.warnings)
    std::fprintf(stderr, "warning: %s\n", line.c_str());
  if (config.unsupported) throw Unsupported(*config.unsupported);
  const std::vector<std::string> overridden = apply_config(config, options);
  for (const std::string& line : config.without_effect) std::fprintf(stderr, "%s\n", line.c_str());
  if (!overridden.empty())
    std::fprintf(stderr, "%s: overridden by flags: %s\n", file.c_str(),
                 join(overridden, ", ").c_str());
  if (config.is_on("", "dump_state")) print_state(config);
}

}  // namespace zg::tools
