#include <nlohmann/json.hpp>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/print.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

// The weights of a saved model: of a checkpoint, a file, a folder, or of adapters and their base.
namespace zg::tools {

WeightSource hf_weights(const std::string& path, const RunSpec& settings, std::string* note) {
  if (settings.seq2seq.config.empty()) return open_hf_folder(path).weights(settings.model, note);
  return models::Seq2SeqFolder(path).weights(seq2seq_model(settings.seq2seq).config, note);
}

namespace {

/// ": rope_theta is 2.0, expected 1.0": the keys of a config.json in which two models differ.
std::string differing_keys(const models::GPTConfig& there, const models::GPTConfig& expected) {
  const auto own = parse_json_object(models::hf_json(there), "config.json");
  const auto wanted = parse_json_object(models::hf_json(expected), "config.json");
  std::string keys;
  for (const auto& [key, value] : wanted.items())
    if (own.value(key, nlohmann::json()) != value)
      keys += fmt::format("{}{} is {}, expected {}", keys.empty() ? ": " : "; ", key,
                          own.value(key, nlohmann::json()).dump(), value.dump());
  return keys;
}

}  // namespace

void check_output(const RunSpec& saved, const std::string& flag, const std::string& path) {
  TrainOptions run;
  run.data = saved.data;
  std::vector<NamedPath> paths = paths_of(
      {{"data", flags_named({"--data", "--val-data", "--chat-format", "--tokenizer"}, run)}});
  paths.push_back({"the adapters' base", PathUse::reads, saved.base.path});
  std::erase_if(paths, [](const NamedPath& input) { return !path_exists(input.path); });
  paths.push_back({flag, PathUse::writes, path});
  check_paths(paths);
}

void move_base(RunSpec& settings, const std::string& path, const std::string& checkpoint) {
  if (settings.lora.rank == 0)
    raise<ConfigError>("--base: {} has a whole model, not adapters; leave the flag out",
                       checkpoint);
  // A folder of checkpoints may have later steps than that of the base.
  const std::filesystem::path step = std::filesystem::path(settings.base.path).filename();
  settings.base.path = absolute_path(path);
  if (is_directory(path + "/" + step.string()) && !is_hf_folder(path))
    settings.base.path += "/" + step.string();
}

WeightSource base_weights(const RunSpec& settings) {
  const std::string& path = settings.base.path;
  if (!path_exists(path))
    raise<FileError>(
        "base: {}, the weights that the adapters are trained for, does not exist; expected them at "
        "this path; try --base PATH with the path where they are now",
        path);
  if (is_hf_folder(path) && settings.seq2seq.config.empty()) {
    // weights() compares the models, too, but can only guess why they differ.
    models::GPTConfig there = open_hf_folder(path).model().config;
    there.block_size = settings.model.block_size;
    there.dropout = settings.model.dropout;
    if (there != settings.model)
      raise<FileError>(
          "base: {}/config.json describes another model than the one that the adapters are trained "
          "for{}; restore that folder",
          path, differing_keys(there, settings.model));
  }
  return is_hf_folder(path) ? hf_weights(path, settings) : zero::weights_of(path);
}

WeightSource checked_base(const RunSpec& settings) {
  WeightSource base = base_weights(settings);
  if (!settings.base.hash.empty()) zero::check_base(settings.base, base);
  return base;
}

WeightSource adapter_weights(const SavedModel& saved_model) {
  const RunSpec& settings = saved_model.settings;
  if (!saved_model.adapter.empty())
    return models::peft_weights(saved_model.adapter, settings.model, lora_of(settings.lora));
  return zero::weights_of(saved_model.checkpoint);
}

WeightSource weights_of(const SavedModel& saved_model, bool check) {
  const RunSpec& settings = saved_model.settings;
  if (settings.lora.rank > 0)
    return models::joined(check ? checked_base(settings) : base_weights(settings),
                          adapter_weights(saved_model));
  if (saved_model.checkpoint) return zero::weights_of(saved_model.checkpoint);
  if (!is_directory(saved_model.path)) return zero::weights_of(saved_model.path);
  std::string note;
  WeightSource weights = hf_weights(saved_model.path, saved_model.settings, &note);
  if (!note.empty()) print_line(stderr, "note: {}", note);
  return weights;
}

}  // namespace zg::tools
