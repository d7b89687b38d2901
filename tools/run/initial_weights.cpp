#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/runtime/storage/safetensors.h"
#include "zerograd/runtime/text/format.h"

// The check of --init: the weights are of the run's model, and their tokens mean the same.
namespace zg::tools {
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
