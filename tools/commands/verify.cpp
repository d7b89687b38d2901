#include <cstdio>
#include <map>

#include "tools/commands/subcommands.h"
#include "tools/run/inputs.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/print.h"

namespace zg::tools {
namespace {

enum class Found { whole, damaged, gone };

/// Prints the damaged items of a step_N folder. A folder that another process removed or replaced
/// during the check counts as gone, not as damaged.
Found report(const std::string& step_folder) {
  std::vector<std::string> damages;
  try {
    const Checkpoint checkpoint = zero::CheckpointReader::open(step_folder);
    if (!checkpoint) {
      print_line(stdout, "{}: removed meanwhile", step_folder);
      return Found::gone;
    }
    damages = checkpoint->damages();
  } catch (const FileError& error) {
    damages = {error.what()};
  }
  print_line(stdout, "{}: {}", step_folder,
             damages.empty()
                 ? "verifies"
                 : fmt::format("{} damage{}", damages.size(), damages.size() == 1 ? "" : "s"));
  for (const std::string& damage : damages) print_line(stdout, "  {}", damage);
  std::fflush(stdout);  // checking one folder may take minutes
  return damages.empty() ? Found::whole : Found::damaged;
}

/// The results for all checkpoints of a directory.
struct Summary {
  std::string newest;  // path of the newest checkpoint that verifies
  size_t damaged = 0, all = 0;
};

/// Reports every step_N once. Lists the directory again when a step_N was removed during the check,
/// because a new one may have replaced it.
Summary report_all(const std::string& directory) {
  constexpr int max_rounds = 100;
  std::map<int64_t, Found> seen;
  Summary summary;
  int64_t newest = -1;
  bool changed = true;
  for (int round = 0; changed && round < max_rounds; ++round) {
    changed = false;
    for (const zero::StepFolder& folder : zero::step_folders(directory)) {
      const auto before = seen.find(folder.steps);
      if (before != seen.end() && before->second != Found::gone) continue;
      const Found found = seen[folder.steps] = report(folder.path);
      changed = changed || found == Found::gone;
      if (found == Found::gone) continue;
      ++summary.all;
      if (found == Found::damaged) ++summary.damaged;
      if (found == Found::damaged || folder.steps < newest) continue;
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
    if (report(zero::find_checkpoint(path)) == Found::damaged)
      raise<FileError>("verify: {} is damaged, as stdout says", path);
    return 0;
  }
  const Summary found = report_all(path);
  const std::string resumable = found.newest.empty() ? "nothing" : found.newest;
  print_line(stdout, "--resume {} takes {}", path, resumable);
  if (found.damaged > 0)
    raise<FileError>("verify: {} of the {} checkpoints in {} {} damaged, as stdout says",
                     found.damaged, found.all, path, found.damaged == 1 ? "is" : "are");
  return 0;
}

}  // namespace zg::tools
