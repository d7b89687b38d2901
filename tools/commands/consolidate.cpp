#include "zerograd/zero/checkpoint/consolidate.h"

#include <cstdio>
#include <filesystem>
#include <limits>

#include "tools/commands/checkpoint_options.h"
#include "tools/commands/subcommands.h"
#include "tools/options/run_checks.h"
#include "tools/run/checkpoints.h"
#include "tools/run/setup.h"
#include "tools/run/tokenizers.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"

namespace zg::tools {
namespace {

void check_without_checkpoints(const std::string& directory) {
  const std::vector<zero::StepFolder> folders = zero::step_folders(directory);
  if (!folders.empty())
    throw ConfigError(
        fmt::format("consolidate: {} holds checkpoints, up to step_{}; expected a directory "
                    "without any; try another one",
                    directory, folders.front().steps));
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
        throw ConfigError(fmt::format(
            "consolidate: {0} has adapters alone, of {1}; expected a whole model; try zerograd "
            "export {0} --peft DIR, or --merge --hf DIR",
            checkpoint->path(), base.path));
      from = checkpoint->path();
      hash = zero::consolidate(*checkpoint, options.to, options.dtype);
    }
    print_line(stdout, "saved {} of {}", options.to, from);
  }
  print_line(stdout, "param_hash {}", hash);
  return 0;
}

}  // namespace zg::tools
