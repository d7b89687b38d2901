#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "tools/commands/subcommands.h"
#include "tools/output/memory_json.h"
#include "tools/run/audited_run.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/audit.h"

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
  std::string path, checkpoint, json;
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
                             "begin with the newest step_N in DIR of at most A steps, or with\n"
                             "step 0; without the flag: DIR of the run's --save"),
                   path_flag({"--json"}, "F", command.json, PathUse::writes,
                             "the result of a comparison as JSON, too")}}},
      .notes =
          "A replay repeats the command line in the record; flags of train after -- are added.\n\n"
          "  zerograd audit a.audit b.audit\n"
          "  zerograd audit run.audit --replay 20..24 --checkpoint runs/a -- --ranks 2\n"
          "  zerograd audit run.audit --replay 0..4"};
  Given given;
  if (!parse(line, {arguments.begin(), own}, given)) return false;
  const bool replays = command.replay.has_value();
  if (command.others.size() > (replays ? 0 : 1))
    raise<ConfigError>("audit: expected {}, got {}; compare two at a time",
                       replays ? "one file with --replay" : "one or two files",
                       command.others.size() + 1);
  if (given.contains("--json") && !replays && command.others.empty())
    throw ConfigError("--json: expected two files or --replay A..B, got one file");
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
int report(const AuditCommand& command, const AuditTrail& a, const AuditTrail& b,
           const zero::AuditComparison& found) {
  const int status = found.differs_at || found.equal.empty() ? is_different : 0;
  if (!command.json.empty()) {
    nlohmann::ordered_json json = {{"schema", "zerograd.audit-comparison/1"},
                                   {"equal", found.equal},
                                   {"fields", json_of(found.step)},
                                   {"settings", json_of(found.settings)},
                                   {"layout", json_of(found.layout)}};
    if (found.differs_at) json["step"] = *found.differs_at;
    write_json("--json", command.json, json.dump());
  }
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
  return status;
}

int replay(const AuditCommand& command) {
  const zero::AuditedRun run = audited_run({"", command.path, command.checkpoint, command.train});
  const auto& [first, last] = *command.replay;
  if (!run.trail.step(first) || !run.trail.step(last))
    raise<ConfigError>("--replay: {} does not have the steps {} to {}", command.path, first, last);
  const AuditTrail again = zero::replayed(run, first, last);
  return report(command, run.trail, again, compare(run.trail, again, first, last));
}

}  // namespace

int audit(const std::vector<std::string>& arguments) {
  AuditCommand command;
  if (!parse(arguments, command)) return 0;
  try {
    if (command.replay) return replay(command);
  } catch (const ReplayFailed& failed) {
    return failed.status;
  }
  const AuditTrail trail = AuditTrail::read(command.path);
  if (!command.others.empty()) {
    const AuditTrail other = AuditTrail::read(command.others.front());
    return report(command, trail, other, compare(trail, other));
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
