#include "zerograd/zero/deepspeed/check.h"

#include <filesystem>
#include <fstream>
#include <optional>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/deepspeed/hjson.h"

namespace zg::zero {
namespace deepspeed {
namespace {

constexpr size_t largest_config = 1 << 20;

std::string read_text(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  std::string text(largest_config + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad() || (file.fail() && !file.eof()))
    raise<FileError>("{}: {} cannot be read: {}; expected a DeepSpeed config, JSON", name, path,
                     is_directory(path)  ? "it is a directory"
                     : path_exists(path) ? "it cannot be opened"
                                         : "there is nothing of that name");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > largest_config)
    raise<ConfigError>(
        "{}: {} is larger than 1 MiB; expected a DeepSpeed config, JSON; try the file's right name",
        name, path);
  return text;
}

// Decodes the URL-safe base64 by which launchers pass a config in a command line. Absent if the
// word is not such text.
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

bool uses_nvme(const OffloadOptions& offload) {
  for (const Space space :
       {offload.parameter, offload.gradient, offload.optimizer, offload.activation})
    if (space == Space::file) return true;
  return false;
}

// Completes the engine's config. The `zerograd` command does this later, because a checkpoint may
// set more fields.
void settle(const std::string& file, const DeepSpeedOptions& options, DeepSpeedConfig& config) {
  Config& engine = config.engine;
  if (!config.preset.empty()) {
    const DType gradients = engine.grad_accum;
    engine = with_precision(engine, precision_of(precision_preset(config.preset)));
    const DeepSpeedField field = DeepSpeedField::grad_accum_dtype;
    if (config.taken.count(field) || options.decided.count(field)) engine.grad_accum = gradients;
  }
  const DeepSpeedField activations = DeepSpeedField::offload_activations;
  if (config.cpu_checkpointing && config.activation_checkpoint &&
      !config.taken.count(activations) && !options.decided.count(activations))
    engine.offload.activation = Space::host;
  if (uses_nvme(engine.offload) && config.swap.directory.empty())
    throw ConfigError(file +
                      ": nvme without a path; expected nvme_path in "
                      "zero_optimization.offload_optimizer or offload_param, got none; try "
                      "\"nvme_path\": \"/local_nvme\"");
  validate(engine);
}

}  // namespace

Source read_source(const std::string& path_or_text, const std::string& name) {
  const size_t first = path_or_text.find_first_not_of(" \t\n");
  if (first != std::string::npos && path_or_text[first] == '{')
    return {.file = name, .text = path_or_text};
  std::error_code unnameable;  // set if the text is too long to be a file name
  if (const auto text = base64_decoded(path_or_text);
      text && !std::filesystem::exists(path_or_text, unnameable))
    return {.file = name, .text = *text};
  return {.file = path_or_text, .text = read_text(path_or_text, name)};
}

}  // namespace deepspeed

void fill_buckets(const BucketsByWidth& buckets, int64_t width, Config& engine) {
  const double W = static_cast<double>(width);
  const auto fill = [](double size, int64_t& target) {
    if (size > 0.0) target = static_cast<int64_t>(size);
  };
  fill(buckets.reduce_per_square * W * W, engine.reduce_bucket_size);
  fill(buckets.prefetch_per_square * W * W, engine.prefetch_bucket_size);
  fill(buckets.persistence_per_width * W, engine.param_persistence_threshold);
}

DeepSpeedConfig read_deepspeed_config(const std::string& path_or_text,
                                      const DeepSpeedOptions& options) {
  const auto [file, text] = deepspeed::read_source(path_or_text, "read_deepspeed_config");
  const deepspeed::CheckedConfig checked = deepspeed::check_config(
      deepspeed::read_hjson(text, file), file, options.version, options.lenient);
  if (checked.unsupported) throw Unsupported(*checked.unsupported);
  DeepSpeedConfig config = deepspeed::apply_config(checked, options);
  deepspeed::settle(file, options, config);
  return config;
}

}  // namespace zg::zero
