#include "tools/options/flags.h"

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

constexpr const char* lora_flags[] = {"--lora", "--lora-alpha", "--lora-targets", "--rslora"};

// The folder's adapters. A flag may repeat what the folder says; --lora-dropout may differ.
void adopt_adapter(TrainOptions& options, LoraOptions theirs) {
  const std::string& folder = options.initial_adapter;
  if (!options.resume.empty())
    throw ConfigError("--init-adapter: expected one of --init-adapter and --resume, got both");
  const LoraOptions& now = options.lora;
  const bool same[] = {now.rank == theirs.rank, now.alpha == theirs.alpha,
                       now.targets == theirs.targets,
                       now.rank_stabilised == theirs.rank_stabilised};
  for (size_t i = 0; i < std::size(lora_flags); ++i)
    if (options.given.count(lora_flags[i]) && !same[i])
      raise<ConfigError>(
          "{}: {} says another value; expected rank {}, alpha {:.6g}, targets {} and rslora {}; "
          "leave the flag out",
          lora_flags[i], folder, theirs.rank, theirs.alpha, theirs.targets,
          theirs.rank_stabilised ? "on" : "off");
  if (options.given.count("--lora-dropout")) theirs.dropout = now.dropout;
  options.lora = theirs;
}

}  // namespace

void resolve_lora(TrainOptions& options, const std::optional<LoraOptions>& adapter) {
  if (!options.moved_base.empty() && options.resume.empty())
    throw ConfigError(
        "--base: expected --resume with it, got none; a new run names its base with --from-hf or "
        "--init");
  if (!options.initial_adapter.empty()) adopt_adapter(options, adapter.value_or(LoraOptions()));
  if (options.lora.rank == 0)
    return refuse_flags(options.given,
                        {"--lora-alpha", "--lora-dropout", "--lora-targets", "--rslora"},
                        "expected --lora RANK with it, got none");
  if (is_seq2seq(options))
    throw Unsupported("--lora: an encoder-decoder has no adapters here; expected a decoder");
  if (options.lora.targets.empty() && options.given.count("--lora-targets"))
    throw ConfigError("--lora-targets: expected names of layers, or all-linear, got nothing");
  const bool has_base = !options.from_hf.empty() || !options.initial_weights.empty();
  if (!has_base && options.resume.empty() && !options.only_planned)
    throw ConfigError(
        "--lora: adapters are trained for a model that has weights; expected --from-hf DIR or "
        "--init F with it, got neither");
}

Flag adapter_flag(AdapterPaths& paths) {
  return path_flag({"--adapter"}, "DIR", paths.adapter, PathUse::reads,
                   "adapters of the model, in a folder of Hugging Face's PEFT");
}

Flag base_flag(AdapterPaths& paths) {
  return checkpoint_flag({"--base"}, "PATH", paths.base,
                         "where the weights are now that the checkpoint's adapters are for");
}

}  // namespace zg::tools
