#include <cstdio>

#include "runtime/error.h"
#include "tools/checkpoint_options.h"
#include "tools/subcommands.h"
#include "tools/text.h"
#include "zero/checkpoint_file.h"

namespace zg::tools {
namespace {

/// Prints what is wrong with a step_N; returns how much.
size_t report(const std::string& step_folder) {
  const std::vector<std::string> damages = zero::damages_of(step_folder);
  std::printf("%s: %s\n", step_folder.c_str(),
              damages.empty()
                  ? "verifies"
                  : text("%zu damage%s", damages.size(), damages.size() == 1 ? "" : "s").c_str());
  for (const std::string& damage : damages) std::printf("  %s\n", harmless(damage).c_str());
  std::fflush(stdout);  // each may take minutes
  return damages.size();
}

}  // namespace

int verify(const std::vector<std::string>& arguments) {
  VerifyOptions options;
  if (!parse(arguments, options)) return 0;
  const std::string& path = options.checkpoint;
  const std::vector<zero::StepFolder> folders = zero::step_folders(path);
  if (folders.empty()) {
    if (report(zero::find_checkpoint(path)) > 0)
      throw FileError("verify: " + path + " is damaged, as stdout says");
    return 0;
  }
  std::string newest;  // that verifies
  size_t damaged = 0;
  for (const zero::StepFolder& folder : folders) {
    if (report(folder.path) > 0)
      ++damaged;
    else if (newest.empty())
      newest = folder.path;
  }
  const std::string taken = newest.empty() ? "nothing" : newest;
  std::printf("--resume %s takes %s\n", path.c_str(), taken.c_str());
  if (damaged > 0)
    throw FileError(text("verify: %zu of the %zu checkpoints in %s %s damaged, as stdout says",
                         damaged, folders.size(), path.c_str(), damaged == 1 ? "is" : "are"));
  return 0;
}

}  // namespace zg::tools
