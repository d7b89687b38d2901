#include "tools/deepspeed/load.h"

#include <cstdio>
#include <optional>

#include "tools/options/fields.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using zero::deepspeed::CheckedConfig;
using zero::deepspeed::Setting;
using zero::deepspeed::Value;

struct Document {
  std::string file;
  Value root;
  bool is_yaml = false;
};

Document document_of(const std::string& path) {
  const auto [file, text] = zero::deepspeed::read_source(path, "--config");
  const bool is_yaml = file.ends_with(".yaml") || file.ends_with(".yml");
  return {.file = file,
          .root = is_yaml ? read_yaml(text, file) : zero::deepspeed::read_hjson(text, file),
          .is_yaml = is_yaml};
}

CheckedConfig checked(const Document& document, const TrainOptions& options) {
  const CheckedConfig config =
      check_config(document.root, document.file, options.config.compat, options.config.lenient,
                   document.is_yaml ? "accelerate" : "");
  if (options.is_first_process())
    for (const std::string& line : config.warnings) print_line(stderr, "warning: {}", line);
  if (config.unsupported) throw Unsupported(*config.unsupported);
  return config;
}

void report(const CheckedConfig& config, const std::vector<std::string>& overridden) {
  for (const std::string& line : config.without_effect) print_line(stderr, "{}", line);
  if (!overridden.empty())
    print_line(stderr, "{}: overridden by flags: {}", config.file, join(overridden, ", "));
  if (!config.is_on("", "dump_state")) return;
  for (const std::string& line : config.state()) print_line(stderr, "{}: {}", config.file, line);
}

/// `yaml`: the accelerate file that names or contains this config; null: there is none.
CheckedConfig load_deepspeed(const Document& document, const CheckedConfig* yaml,
                             TrainOptions& options) {
  CheckedConfig config = checked(document, options);
  if (yaml) fill_defaults(*yaml, options.given, config);
  if (config.unsupported) throw Unsupported(*config.unsupported);
  const std::vector<std::string> overridden = apply_config(config, options);
  if (options.is_first_process()) report(config, overridden);
  return config;
}

// Throws if accelerate's file has keys that belong in the DeepSpeed config; accelerate throws
// too.
void refuse_beside_file(const CheckedConfig& yaml) {
  for (const char* key :
       {"gradient_accumulation_steps", "gradient_clipping", "zero_stage", "zero3_save_16bit_model",
        "offload_optimizer_device", "offload_optimizer_nvme_path", "offload_param_device",
        "offload_param_nvme_path"})
    if (const Setting* setting = yaml.find("accelerate_deepspeed", key); setting && setting->given)
      raise<ConfigError>(
          "{}{} is ignored beside deepspeed_config_file; expected it in that file, got it here; "
          "try moving it there",
          yaml.place_of(*setting), key);
}

// The DeepSpeed config that accelerate's file names or contains; absent: the file does not use
// DeepSpeed.
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
  std::optional<CheckedConfig> deepspeed;
  if (const std::optional<Document> own = deepspeed_of(document, yaml)) {
    deepspeed = load_deepspeed(*own, &yaml, options);
    std::vector<NamedPath> paths = paths_of(train_groups(options));
    paths.push_back({"deepspeed_config_file", PathUse::reads, own->file});
    check_paths(paths);
  }
  const std::vector<std::string> overridden =
      apply_accelerate(yaml, deepspeed ? &*deepspeed : nullptr, flags, options);
  if (options.is_first_process()) report(yaml, overridden);
}

}  // namespace

void load_config(TrainOptions& options) {
  const std::string& path = options.config.path;
  if (path.empty())
    return refuse_flags(options.given, {"--compat", "--lenient"},
                        "expected --config F with it, got none; leave the flag out");
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
