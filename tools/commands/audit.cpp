#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>

#include "tools/commands/subcommands.h"
#include "tools/options/options.h"
#include "tools/run/child.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/audit.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"

namespace zg::tools {
namespace {

using zero::AuditTrail;

constexpr int is_different = 1;

struct Steps {
  int64_t first, last;
};
Steps parse_steps(const std::string& flag, const std::string& text) {
  const size_t dots = text.find("..");
  if (dots == std::string::npos)
    raise<ConfigError>("{}: expected A..B, such as 20..24, got '{}'", flag, printable(text));
  const int64_t first = parse_integer(flag, text.substr(0, dots), 0, largest_count - 1);
  return {first, parse_integer(flag, text.substr(dots + 2), first, largest_count - 1)};
}

struct AuditCommand {
  std::string path, checkpoint;
  std::vector<std::string> others;
  std::optional<Steps> replay;
  std::vector<std::string> train;  ///< flags of train, after "--"
};

bool parse(const std::vector<std::string>& arguments, AuditCommand& command) {
  const auto own = std::ranges::find(arguments, "--");
  if (own != arguments.end()) command.train.assign(own + 1, arguments.end());
  const CommandLine line = {
      .usage = "zerograd audit FILE [FILE] [flags] [-- flags of train]",
      .summary =
          "Checks the chain of an audit that train --audit wrote. With two files, or with "
          "--replay,\n"
          "compares the steps. Exit status 1: they differ; it names the first step and the "
          "fields,\n"
          "with both values, and the settings that differ. 5: a chain does not hold.",
      .positionals = {positional("FILE", "an audit", command.path, PathUse::reads)},
      .rest = Flag{.value = "FILE",
                   .help = "another audit, which is compared with the first",
                   .set = [&](const std::string&,
                              const std::string& path) { command.others.push_back(path); },
                   .use = PathUse::reads,
                   .paths = [&] { return used(PathUse::reads, command.others); }},
      .groups = {{"replay",
                  {{.names = {"--replay"},
                    .value = "A..B",
                    .help = "compute the steps A to B again and compare them with the audit",
                    .set =
                        [&](const std::string& flag, const std::string& steps) {
                          command.replay = parse_steps(flag, steps);
                        }},
                   path_flag({"--checkpoint"}, "DIR", command.checkpoint, PathUse::reads,
                             "begin with the newest step_N in DIR of at most A steps; else with\n"
                             "step 0")}}},
      .notes =
          "Flags after -- are those of train: of the run, or of another layout for a "
          "checkpoint.\n\n"
          "  zerograd audit a.audit b.audit\n"
          "  zerograd audit run.audit --replay 20..24 --checkpoint runs/a -- --ranks 2\n"
          "  zerograd audit run.audit --replay 0..4 -- --data sort --seed 1"};
  Given given;
  if (!parse(line, {arguments.begin(), own}, given)) return false;
  const bool replays = command.replay.has_value();
  if (command.others.size() > (replays ? 0 : 1))
    raise<ConfigError>("audit: expected {}, got {}; compare two at a time",
                       replays ? "one file with --replay" : "one or two files",
                       command.others.size() + 1);
  if (!replays && (given.contains("--checkpoint") || !command.train.empty()))
    throw ConfigError(
        "audit: expected --replay A..B with --checkpoint and flags of train, got none");
  return true;
}

std::string range_of(const std::vector<int64_t>& steps) {
  return steps.empty()
             ? "no step"
             : fmt::format("{} steps, {} to {}", steps.size(), steps.front(), steps.back());
}

// Prints the result of a comparison. Returns the exit status.
int report(const AuditTrail& a, const AuditTrail& b, const zero::AuditComparison& found) {
  const auto print_all = [](std::span<const zero::AuditDifference> all) {
    constexpr size_t width = 100;
    for (const auto& [field, first, second] : all)
      print_line(stdout, "  {}: {}, {}", field, printable(first, width), printable(second, width));
  };
  if (found.differs_at) {
    const auto& [field, first, second] = found.step.front();
    print_line(stdout, "step {} differs: {}: {} in {}, {} in {}", *found.differs_at, field, first,
               a.path, second, b.path);
    print_all(std::span(found.step).subspan(1));
    print_line(stdout, "  equal before: {}", range_of(found.equal));
  } else {
    print_line(stdout, "equal: {} of {} and {}", range_of(found.equal), a.path, b.path);
  }
  print_all(found.settings);
  print_all(found.layout);
  if (found.differs_at && found.settings.empty())
    print_line(stdout, "  no recorded setting differs: a fault, or other code, data or libraries");
  return found.differs_at || found.equal.empty() ? is_different : 0;
}

/// RAII: a file without a name that a child opens by this path, too.
struct UnnamedFile {
  const int descriptor = memfd_create("audit", 0);
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  UnnamedFile() {
    if (descriptor < 0) raise<FileError>("--replay: memfd_create: {}", std::strerror(errno));
  }
  ~UnnamedFile() { close(descriptor); }
  UnnamedFile(const UnnamedFile&) = delete;
};

// The newest checkpoint with at most so many steps.
std::string checkpoint_before(const std::string& path, int64_t steps) {
  const std::vector<zero::StepFolder> folders = zero::step_folders(path);
  for (const zero::StepFolder& folder : folders)
    if (folder.steps <= steps) return folder.path;
  if (folders.empty()) return path;  // one step_N
  raise<ConfigError>("--checkpoint: {} has no checkpoint of at most {} steps, the oldest has {}",
                     path, steps, folders.back().steps);
}

int replay(const AuditCommand& command, const AuditTrail& trail) {
  const Steps steps = *command.replay;
  if (!trail.step(steps.first) || !trail.step(steps.last))
    raise<ConfigError>("--replay: {} does not have the steps {} to {}", command.path, steps.first,
                       steps.last);
  const UnnamedFile file;
  std::vector<std::string> words = {this_program, "train"};
  if (!command.checkpoint.empty())
    words.insert(words.end(), {"--resume", checkpoint_before(command.checkpoint, steps.first)});
  words.insert(words.end(), command.train.begin(), command.train.end());
  // The length of the run stays as it was, because a schedule may depend on it.
  words.insert(words.end(), {"--exit-interval", std::to_string(steps.last + 1), "--audit",
                             file.path, "--audit-interval", "1"});
  const CapturedEnd end = capture_child(words, "try again", /*seconds=*/1e9);
  if (end.end.status != 0) {
    print_line(stderr, "{}", end.output);
    return end.end.status;
  }
  AuditTrail again = AuditTrail::read(file.path);
  again.path = "the replay";
  const zero::AuditComparison found = compare(trail, again, steps.first, steps.last);
  if (!found.differs_at && static_cast<int64_t>(found.equal.size()) != steps.last - steps.first + 1)
    raise<ConfigError>("--replay: the run ended before step {}", steps.last);
  return report(trail, again, found);
}

}  // namespace

int audit(const std::vector<std::string>& arguments) {
  AuditCommand command;
  if (!parse(arguments, command)) return 0;
  const AuditTrail trail = AuditTrail::read(command.path);
  if (command.replay) return replay(command, trail);
  if (!command.others.empty()) {
    const AuditTrail other = AuditTrail::read(command.others.front());
    return report(trail, other, compare(trail, other));
  }
  std::vector<int64_t> steps;
  for (const AuditTrail::Record& record : trail.records)
    if (record.is_step) steps.push_back(record.step);
  print_line(stdout, "{}: the chain of {} records holds: {}{}", command.path, trail.records.size(),
             range_of(steps), trail.is_cut ? "; a last record is not whole" : "");
  for (size_t i = 1; i < trail.records.size(); ++i)
    if (const AuditTrail::Record& record = trail.records[i]; !record.is_step)
      print_line(stdout, "  line {}: resumed before step {}{}", record.line, record.step,
                 trail.step(record.step - 1) ? "" : ", steps before it are missing");
  return 0;
}

}  // namespace zg::tools
