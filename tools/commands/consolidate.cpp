#include "zerograd/zero/checkpoint/consolidate.h"

#include <cstdio>
#include <filesystem>
#include <limits>

#include "tools/commands/subcommands.h"
#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "tools/run/inputs.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"

namespace zg::tools {
namespace {

/// Options to turn a checkpoint into one file or, with --split, a file into a checkpoint.
struct ConsolidateOptions {
  std::string from, to;
  bool split = false;
  DType dtype = DType::f32;
  int64_t ranks = 1;
  TrainOptions train;  ///< flags of train: the model
};

bool parse(const std::vector<std::string>& arguments, ConsolidateOptions& options) {
  const CommandLine line = {
      .usage =
          "zerograd consolidate CHECKPOINT F [--dtype f32|bf16]\n"
          "       zerograd consolidate --split F DIR [--ranks N]",
      .summary =
          "Writes a checkpoint's master parameters as one safetensors file, or such a file as a\n"
          "checkpoint, a few MiB at a time.",
      .positionals = {checkpoint_flag({}, "FROM", options.from,
                                      "a checkpoint's DIR or one step_N; to split: a file"),
                      positional("TO", "the file to write; to split: a DIR without checkpoints",
                                 options.to, PathUse::writes)},
      .groups = {{"to a file",
                  {{{"--dtype"},
                    "f32|bf16",
                    "dtype of the file: the masters in f32, or rounded to bf16 [f32]",
                    [&options](const std::string& name, const std::string& value) {
                      const size_t choice = parse_choice(name, value, {"f32", "bf16"});
                      options.dtype = choice == 0 ? DType::f32 : DType::bf16;
                    }}}},
                 {"to a checkpoint",
                  {switch_flag({"--split"}, options.split, "write DIR/step_0 from a file"),
                   integer_flag({"--ranks"}, options.ranks, "number of shards", {1, nullptr}),
                   flag_named("--model-type", options.train),
                   flag_named("--n-head", options.train)}}},
      .notes =
          "A file holds each parameter once, by name, and the settings of its run, so that eval,\n"
          "generate and --split need no flags for it. step_0 has these parameters, and AdamW's\n"
          "moments are zero. --resume trains it from step 0 with adamw or adam, --init with any\n"
          "optimizer; eval and generate read it.\n"
          "A file of another program does not store the number of heads: give --n-head or "
          "--model-type.\n\n"
          "  zerograd consolidate checkpoints weights.safetensors --dtype bf16\n"
          "  zerograd consolidate --split weights.safetensors eight --ranks 8"};
  if (!parse(line, arguments, options.train.given)) return false;
  check_model(options.train);
  for (const char* flag : {"--ranks", "--n-head", "--model-type"})
    if (!options.split && options.train.has(flag))
      raise<ConfigError>("{}: expected --split with it, got none", flag);
  if (options.split && options.train.has("--dtype"))
    throw ConfigError("--dtype: a checkpoint's masters are f32; leave the flag out of --split");
  return true;
}

void check_without_checkpoints(const std::string& directory) {
  const std::vector<zero::StepFolder> folders = zero::step_folders(directory);
  if (!folders.empty())
    raise<ConfigError>(
        "consolidate: {} holds checkpoints, up to step_{}; expected a directory without any; try "
        "another one",
        directory, folders.front().steps);
}

std::string split(const ConsolidateOptions& options) {
  check_without_checkpoints(options.to);
  check_model_flags(options.train.given, options.from);
  RunSpec settings = open_saved_model(options.from, options.train).settings;
  // A run that starts from this file begins at step 0.
  settings.samples = settings.skipped_samples = 0;
  settings.loss = std::numeric_limits<double>::quiet_NaN();
  const bool is_new = !path_exists(options.to);
  make_directories(options.to);
  const auto lock = lock_directory(options.to);  // another run may be about to save there
  std::string hash;
  try {
    check_without_checkpoints(options.to);  // a run that has just ended may have saved there
    hash = zero::split(options.from, options.to, checkpoint_info(settings),
                       static_cast<int>(options.ranks));
  } catch (...) {
    std::error_code ignored;  // removes the folder only if it is empty
    if (is_new) std::filesystem::remove(options.to, ignored);
    throw;
  }
  print_line(stdout, "saved {}/step_0", options.to);
  return hash;
}

// Writes the weights of a Hugging Face folder to one file, with its tokenizer if this version can
// read that.
std::string consolidate_hf_folder(const ConsolidateOptions& options) {
  const SavedModel saved_model = open_saved_model(options.from, options.train);
  RunSpec settings = saved_model.settings;
  std::vector<std::string> notes;
  if (const auto tokenizer = folder_tokenizer(settings.data, saved_model, notes))
    keep_tokenizer(*tokenizer, settings);
  for (const std::string& note : notes) print_line(stderr, "note: {}", note);
  return zero::consolidate(weights_of(saved_model), checkpoint_info(settings), options.to,
                           options.dtype);
}

}  // namespace

int consolidate(const std::vector<std::string>& arguments) {
  ConsolidateOptions options;
  if (!parse(arguments, options)) return 0;
  std::string hash;
  if (options.split) {
    hash = split(options);
  } else {
    check_not_in_checkpoint(options.to, "consolidate");
    std::string from = options.from;
    if (is_hf_folder(from)) {
      hash = consolidate_hf_folder(options);
    } else {
      const Checkpoint checkpoint = usable_checkpoint(from);
      if (const auto& base = checkpoint->manifest().info.base; !base.path.empty())
        raise<ConfigError>(
            "consolidate: {0} has adapters alone, of {1}; expected a whole model; try zerograd "
            "export {0} --peft DIR, or --merge --hf DIR",
            checkpoint->path(), base.path);
      from = checkpoint->path();
      hash = zero::consolidate(*checkpoint, options.to, options.dtype);
    }
    print_line(stdout, "saved {} of {}", options.to, from);
  }
  print_line(stdout, "param_hash {}", hash);
  return 0;
}

}  // namespace zg::tools
