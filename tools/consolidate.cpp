#include "zero/consolidate.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include "runtime/error.h"
#include "tools/checkpoint_options.h"
#include "tools/checkpoints.h"
#include "tools/effects.h"
#include "tools/setup.h"
#include "tools/subcommands.h"

namespace zg::tools {
namespace {

std::string split(const ConsolidateOptions& options) {
  const std::vector<zero::StepFolder> folders = zero::step_folders(options.to);
  if (!folders.empty())
    throw ConfigError("consolidate: " + options.to + " holds checkpoints, up to step_" +
                      std::to_string(folders.front().steps) +
                      "; expected a directory without any; try another one");
  check_model_flags(options.given, options.from);
  Settings settings = settings_of(options.from, options.model);
  settings.samples = settings.skipped_samples = 0;  // a run of its own begins at step 0
  settings.loss = std::numeric_limits<double>::quiet_NaN();
  std::optional<DirectoryLock> lock;  // a run may be about to save there
  if (std::error_code none; std::filesystem::is_directory(options.to, none))
    lock.emplace(options.to);
  const std::string hash =
      zero::split(options.from, options.to, to_json(settings), static_cast<int>(options.ranks));
  std::printf("saved %s/step_0\n", options.to.c_str());
  return hash;
}

}  // namespace

int consolidate(const std::vector<std::string>& arguments) {
  ConsolidateOptions options;
  if (!parse(arguments, options)) return 0;
  std::string hash;
  if (options.split) {
    hash = split(options);
  } else {
    check_outside(options.to, "consolidate");
    const Checkpoint checkpoint = usable_checkpoint(options.from);
    hash = zero::consolidate(*checkpoint, options.to, options.dtype);
    std::printf("saved %s of %s\n", options.to.c_str(), checkpoint->path().c_str());
  }
  std::printf("param_hash %s\n", hash.c_str());
  return 0;
}

}  // namespace zg::tools
