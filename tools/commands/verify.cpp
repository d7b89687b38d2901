#include <cstdio>
#include <map>

#include "tools/commands/subcommands.h"
#include "tools/run/inputs.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"

namespace zg::tools {
namespace {

enum class CheckResult { intact, damaged, removed };

/// Checks a step_N folder and prints its damaged items. A folder that another process removed or
/// replaced during the check counts as removed, not as damaged.
CheckResult check_folder(const std::string& step_folder) {
  std::vector<std::string> damages;
  try {
    const Checkpoint checkpoint = zero::CheckpointReader::open(step_folder);
    if (!checkpoint) {
      print_line(stdout, "{}: was removed during the check", step_folder);
      return CheckResult::removed;
    }
    damages = checkpoint->damages();
  } catch (const FileError& error) {
    damages = {error.what()};
  }
  print_line(stdout, "{}: {}", step_folder,
             damages.empty() ? "verifies"
                             : fmt::format("{} damaged item{}", damages.size(),
                                           damages.size() == 1 ? "" : "s"));
  for (const std::string& damage : damages) print_line(stdout, "  {}", damage);
  std::fflush(stdout);  // checking one folder may take minutes
  return damages.empty() ? CheckResult::intact : CheckResult::damaged;
}

/// The results for all checkpoints of a directory.
struct Summary {
  std::string newest;  // path of the newest checkpoint that verifies
  size_t damaged = 0, all = 0;
};

/// Checks every step_N once. Lists the directory again when a step_N was removed during the check,
/// because a new one may have replaced it.
Summary check_all(const std::string& directory) {
  constexpr int max_rounds = 100;
  std::map<int64_t, CheckResult> seen;
  Summary summary;
  int64_t newest = -1;
  bool changed = true;
  for (int round = 0; changed && round < max_rounds; ++round) {
    changed = false;
    for (const zero::StepFolder& folder : zero::step_folders(directory)) {
      const auto before = seen.find(folder.steps);
      if (before != seen.end() && before->second != CheckResult::removed) continue;
      const CheckResult found = seen[folder.steps] = check_folder(folder.path);
      changed = changed || found == CheckResult::removed;
      if (found == CheckResult::removed) continue;
      ++summary.all;
      if (found == CheckResult::damaged) ++summary.damaged;
      if (found == CheckResult::damaged || folder.steps < newest) continue;
      newest = folder.steps;
      summary.newest = folder.path;
    }
  }
  return summary;
}

}  // namespace

int verify(const std::vector<std::string>& arguments) {
  std::string path;
  const CommandLine line = {
      .usage = "zerograd verify DIR",
      .summary =
          "Reads every byte of every checkpoint in DIR, or of one step_N, and names each damage "
          "by\n"
          "file, tensor and place. Exit status 5 when there is any.",
      .positionals = {positional("DIR", "a checkpoints' DIR or one step_N", path, PathUse::reads)},
      .notes =
          "For a DIR the last line says which step --resume, eval and generate would take: the\n"
          "newest without damage.\n\n"
          "  zerograd verify checkpoints\n"
          "  zerograd verify checkpoints/step_300"};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  if (zero::step_folders(path).empty()) {
    const CheckResult found = check_folder(zero::find_checkpoint(path));
    if (found == CheckResult::damaged)
      raise<FileError>("verify: {} is damaged; stdout lists the damage", path);
    if (found == CheckResult::intact) return 0;
  }
  const Summary found = check_all(path);
  if (found.all == 0)
    raise<FileError>("verify: {}: every checkpoint was removed during the check", path);
  const std::string resumable = found.newest.empty() ? "nothing" : found.newest;
  print_line(stdout, "--resume {} takes {}", path, resumable);
  if (found.damaged > 0)
    raise<FileError>("verify: {} of the {} checkpoints in {} {} damaged; stdout lists the damage",
                     found.damaged, found.all, path, found.damaged == 1 ? "is" : "are");
  return 0;
}

}  // namespace zg::tools
