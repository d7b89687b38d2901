#include <filesystem>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/models/hugging_face/peft.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"

// The weights of a saved model: of a checkpoint, a file, a folder, or of adapters and their base.
// The check of --init: the weights are of the run's model, and their tokens mean the same.
namespace zg::tools {

bool reads_weights(const std::string& path, bool is_planned) {
  const auto has = [&](const char* name) { return is_regular_file(path + "/" + name); };
  return !path.empty() && (!is_planned || !has("config.json") || has("model.safetensors") ||
                           has("model.safetensors.index.json"));
}

WeightSource hf_weights(const std::string& path, const RunSpec& settings, std::string* note) {
  if (settings.seq2seq.config.empty()) return open_hf_folder(path).weights(settings.model, note);
  return models::Seq2SeqFolder(path).weights(seq2seq_model(settings.seq2seq).config, note);
}

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
          "for: {}; restore that folder",
          path, differing_keys(models::hf_json(there), models::hf_json(settings.model)));
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

namespace {

std::string sizes(const models::GPTConfig& model) {
  return fmt::format("{} blocks of width {}, {} tokens and block size {}{}{}{}", model.layers,
                     model.width, model.vocabulary, model.block_size, model.tied ? ", tied" : "",
                     model.position == models::Position::alibi ? ", ALiBi" : "",
                     model.family == models::Family::gpt
                         ? ""
                         : fmt::format(", with {}'s tensor names", models::hf_title(model.family)));
}

}  // namespace

std::string check_initial_weights(const std::string& path, const Checkpoint& checkpoint,
                                  const RunSpec& run) {
  const std::optional<RunSpec> settings =
      checkpoint ? std::optional(settings_of(*checkpoint)) : settings_in(path);
  const bool is_seq2seq = !run.seq2seq.config.empty();
  // Names and shapes of tensors without settings are compared when they are loaded.
  if (!settings && (is_seq2seq || !family_of(SafetensorsReader(path)))) return "";
  if (settings && (is_seq2seq || !settings->seq2seq.config.empty()))
    check_initial_seq2seq(path, settings->seq2seq, run.seq2seq);
  const std::string found = checkpoint ? checkpoint->path() : path;
  if (settings && settings->lora.rank > 0)
    raise<ConfigError>(
        "--init: {0} has adapters alone, of {1}; expected a whole model; try zerograd export {0} "
        "--merge --hf DIR, and --from-hf DIR",
        found, settings->base.path);
  const std::string note = settings ? check_initial_tokens({*settings, found}, run) : "";
  if (is_seq2seq) return note;
  const models::GPTConfig there = settings ? settings->model : sizes_from_shapes(path);
  const models::GPTConfig& model = run.model;
  const bool learned = there.position == models::Position::learned;
  std::string flags;
  const auto compare = [&](const char* flag, int64_t size, int64_t own) {
    if (size != own) flags += std::string(" ") + flag + " " + std::to_string(size);
  };
  if (there.layers != model.layers || there.width != model.width || there.family != model.family ||
      (settings && there.heads != model.heads))
    flags = fmt::format("{} --n-layer {} --n-head {} --n-embd {}",
                        there.family == models::Family::gpt
                            ? ""
                            : fmt::format(" --model-type {}", name_of(there.family)),
                        there.layers, settings ? std::to_string(there.heads) : "N", there.width);
  if (there.position != model.position)
    flags += std::string(" --position-embedding ") + name_of(there.position);
  compare("--vocab-size", there.vocabulary, model.vocabulary);
  if (learned) compare("--block-size", there.block_size, model.block_size);
  if (there.tied != model.tied) flags += there.tied ? " --tied" : " --untied";
  if (settings && flags.empty()) {
    const auto compare_numbers = [&](const char* flag, double number, double own) {
      if (number != own) flags += fmt::format(" {} {:.6g}", flag, number);
    };
    compare_numbers("--norm-epsilon", there.norm_epsilon, model.norm_epsilon);
    if (model.position == models::Position::rope && there.position == model.position)
      compare_numbers("--rotary-base", there.rope.theta, model.rope.theta);
    compare("--sliding-window", there.window, model.window);
    compare("--num-query-groups", kv_heads_of(there), kv_heads_of(model));
    compare("--kv-channels", head_size_of(there), head_size_of(model));
    compare("--ffn-hidden-size", hidden_of(there), hidden_of(model));
  }
  if (!flags.empty())
    raise<FileError>("--init: {} has a model of {}; expected this run's model of {}; try{}", path,
                     sizes(there), sizes(model), flags);
  return note;
}

}  // namespace zg::tools
