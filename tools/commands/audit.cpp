#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "tools/commands/subcommands.h"
#include "tools/output/memory_json.h"
#include "tools/run/audited_run.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

// The subcommands audit and diverge.
namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;
using Differences = std::vector<zero::AuditDifference>;
using zero::AuditTrail;
using zero::Divergence;

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

/// The arguments of both.
struct Arguments {
  RunSource a{.title = "A"}, b{.title = "B"};
  std::string json;
  std::optional<Steps> replay;
  Given given;
};

// Takes the flags of train after "--" away from the arguments.
std::vector<std::string> own_words(std::vector<std::string> words, Arguments& arguments) {
  const auto end = std::ranges::find(words, "--");
  if (end != words.end()) arguments.a.flags.assign(end + 1, words.end());
  arguments.b.flags = arguments.a.flags;
  words.erase(end, words.end());
  return words;
}

std::vector<Flag> source_flags(const std::string& suffix, const std::string& run,
                               RunSource& source) {
  return {path_flag({"--checkpoint" + suffix}, "DIR", source.checkpoints, PathUse::reads,
                    "folder of step_N, or one, where a replay of " + run +
                        " begins [--save and\n--resume in its record]"),
          path_flag({"--program" + suffix}, "F", source.program, PathUse::reads,
                    "the zerograd that replays " + run + " [this one]")};
}

bool parse_audit(const std::vector<std::string>& words, Arguments& arguments) {
  std::vector<std::string> others;
  FlagGroup replay{"replay", source_flags("", "the run", arguments.a)};
  replay.flags.push_back({.names = {"--replay"},
                          .value = "A..B",
                          .help = "compute the steps A to B again and compare them with the audit",
                          .set = [&](const std::string& flag, const std::string& steps) {
                            arguments.replay = parse_steps(flag, steps);
                          }});
  replay.flags.push_back(path_flag({"--json"}, "F", arguments.json, PathUse::writes,
                                   "the result of a comparison as JSON, too"));
  const CommandLine line = {
      .usage = "zerograd audit FILE [FILE] [flags] [-- flags of train]",
      .summary =
          "Checks the chain of an audit that train --audit wrote. With two files, or with\n"
          "--replay, compares the steps. Exit status 1: they differ; it names the first step\n"
          "and the fields, with both values, and the settings that differ. 5: a chain does not\n"
          "hold. A replay that fails gives its status, or 7 for 1.",
      .positionals = {positional("FILE", "an audit", arguments.a.name, PathUse::reads)},
      .rest =
          Flag{.value = "FILE",
               .help = "another audit, which is compared with the first",
               .set = [&](const std::string&, const std::string& path) { others.push_back(path); },
               .use = PathUse::reads,
               .paths = [&] { return used(PathUse::reads, others); }},
      .groups = {std::move(replay)},
      .notes =
          "A replay repeats the command line in the record; flags of train after -- are added.\n\n"
          "  zerograd audit a.audit b.audit\n"
          "  zerograd audit run.audit --replay 20..24 --checkpoint runs/a -- --threads 1\n"
          "  zerograd audit run.audit --replay 0..4"};
  if (!parse(line, own_words(words, arguments), arguments.given)) return false;
  const bool replays = arguments.replay.has_value();
  if (others.size() > (replays ? 0 : 1))
    raise<ConfigError>("audit: expected {}, got {}; compare two at a time",
                       replays ? "one file with --replay" : "one or two files", others.size() + 1);
  if (!others.empty()) arguments.b.name = others.front();
  if (replays) return true;
  if (others.empty())
    refuse_flags(arguments.given, {"--json"}, "expected two files or --replay A..B, got one file");
  if (!arguments.a.flags.empty() || arguments.given.contains("--checkpoint") ||
      arguments.given.contains("--program"))
    throw ConfigError(
        "audit: expected --replay A..B with --checkpoint, --program and flags of train, got none");
  return true;
}

bool parse_diverge(const std::vector<std::string>& words, Arguments& arguments) {
  const char* const help = "an audit, or a command line of train in quotes";
  FlagGroup group{"checkpoints and programs, and results", source_flags("-a", "A", arguments.a)};
  for (Flag& flag : source_flags("-b", "B", arguments.b)) group.flags.push_back(std::move(flag));
  group.flags.push_back(
      path_flag({"--json"}, "F", arguments.json, PathUse::writes, "the result as JSON, too"));
  const CommandLine line = {
      .usage = "zerograd diverge A B [flags] [-- flags of train for both]",
      .summary =
          "Finds where two runs part, by computing steps again from the nearest checkpoints: the\n"
          "first step, the first unit of parameters, and, if the layouts are equal, the first\n"
          "rank, op and element. Exit status 1: they differ; 0: equal. A replay that fails gives\n"
          "its status, or 7 for 1.",
      .positionals = {positional("A", help, arguments.a.name, PathUse::reads),
                      positional("B", help, arguments.b.name, PathUse::reads)},
      .groups = {std::move(group)},
      .notes =
          "An audit has the command line of its run, which a replay repeats without its outputs.\n"
          "A command line may begin with variables and another program.\n\n"
          "  zerograd diverge a.audit b.audit\n"
          "  zerograd diverge a.audit b.audit --checkpoint-b copies/b -- --threads 1\n"
          "  zerograd diverge \"train --data sort --steps 9\" \"train --data sort --steps 9 --seed "
          "1\"\n"
          "  zerograd diverge \"train --data sort\" \"ZG_CPU_ISA=avx2 old/zerograd train --data "
          "sort\""};
  return parse(line, own_words(words, arguments), arguments.given);
}

Json json_of(const Differences& differences) {
  Json all = Json::array();
  for (const auto& [field, first, second, other] : differences)
    all.push_back({{"field", field}, {"first", first}, {"second", second}});
  return all;
}

std::string range_of(const std::vector<int64_t>& steps) {
  if (steps.size() == 1) return fmt::format("step {}", steps.front());
  return steps.empty()
             ? "no step"
             : fmt::format("{} steps, {} to {}", steps.size(), steps.front(), steps.back());
}

// Prints the result of a comparison. Returns the exit status.
int report(const Arguments& arguments, const AuditTrail& a, const AuditTrail& b,
           const zero::AuditComparison& found) {
  if (!arguments.json.empty()) {
    Json json = {{"schema", "zerograd.audit-comparison/1"},
                 {"equal", found.equal},
                 {"fields", json_of(found.step)},
                 {"settings", json_of(found.settings)},
                 {"layout", json_of(found.layout)}};
    if (found.differs_at) json["step"] = *found.differs_at;
    write_json("--json", arguments.json, json.dump());
  }
  const auto print_all = [](std::span<const zero::AuditDifference> all) {
    constexpr size_t width = 100, most = 20;
    for (const zero::AuditDifference& each : all.first(std::min(all.size(), most)))
      print_line(stdout, "  {}: {}, {}", each.field, printable(each.first, width),
                 printable(each.second, width));
    if (all.size() > most) print_line(stdout, "  and {} more", all.size() - most);
  };
  if (found.differs_at) {
    const auto& [field, first, second, other] = found.step.front();
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
    print_line(stdout, "  no recorded setting differs: {}a fault, or other code, data or libraries",
               found.layout.empty() ? "" : "a layout that rounds differently, ");
  return found.differs_at || found.equal.empty() ? is_different : 0;
}

int replay(const Arguments& arguments) {
  const zero::AuditedRun run = audited_run(arguments.a);
  const auto& [first, last] = *arguments.replay;
  if (!run.trail.step(first) || !run.trail.step(last))
    raise<ConfigError>(
        "--replay: {} does not have the steps {} to {}; expected steps from {} to {}",
        arguments.a.name, first, last, run.trail.records.front().step,
        run.trail.records.back().step);
  const AuditTrail again = zero::replayed(run, first, last);
  const zero::AuditComparison found = compare(run.trail, again, first, last);
  const int status = report(arguments, run.trail, again, found);
  const int64_t begin = again.records.front().step;
  print_line(stdout, "  the replay began before step {}", begin);
  const AuditTrail::Fields units = run.trail.units_before(begin);
  if (const Differences apart = zero::compare(units, again.units_before(begin));
      !units.empty() && !apart.empty()) {
    print_line(stdout,
               "  there its parameters are not those of the record ({}): its checkpoint is of "
               "another run, or was replaced or damaged",
               apart.front().field);
    return is_different;
  }
  const auto is_setting = [](const auto& field) { return field.field.starts_with("settings."); };
  if (!arguments.a.flags.empty() || std::ranges::none_of(found.settings, is_setting)) return status;
  print_line(stdout, "  the replay has other settings than the record");
  return is_different;
}

// The copies of the first parameter that differ, "NAME: rank_0: 12, rank_1: 34"; empty: none.
std::string copies_of(const AuditTrail::Record& record) {
  constexpr std::string_view prefix = "copies.";
  std::string text, parameter;
  for (const auto& [field, sum] : record.fields) {
    if (!field.starts_with(prefix)) continue;
    const size_t end = field.rfind('.');
    const std::string name = field.substr(prefix.size(), end - prefix.size());
    if (text.empty()) parameter = name;
    if (name == parameter)
      text += fmt::format("{} {}: {}", text.empty() ? name + ":" : ",", field.substr(end + 1), sum);
  }
  return text;
}

// Prints what one file has: its steps, the first copies that differ, and the resumptions.
int report_chain(const AuditTrail& trail) {
  std::vector<int64_t> steps;
  int status = 0;
  for (const AuditTrail::Record& record : trail.records) {
    if (record.is_step) steps.push_back(record.step);
    const std::string copies = copies_of(record);
    if (copies.empty() || std::exchange(status, is_different)) continue;
    print_line(stdout, "line {}: {} step {} copies of a parameter differ: {}", record.line,
               record.is_step ? "after" : "before", record.step, copies);
  }
  print_line(stdout, "{}: the chain of {} records holds: {}{}", trail.path, trail.records.size(),
             range_of(steps), trail.is_cut ? "; a last record is not whole" : "");
  for (size_t i = 1; i < trail.records.size(); ++i) {
    const AuditTrail::Record &record = trail.records[i], &before = trail.records[i - 1];
    if (record.is_step) continue;
    const bool is_missing = !trail.step(record.step - 1);
    Differences units = zero::compare(before.fields, record.fields);
    std::erase_if(units, [](const auto& each) { return !each.field.starts_with("units."); });
    const bool is_other = before.is_step && !is_missing && !units.empty();
    print_line(stdout, "  line {}: resumed before step {}{}", record.line, record.step,
               is_missing ? ", steps before it are missing"
               : is_other ? ", with other parameters than the step before it left"
                          : "");
    if (is_other) status = is_different;
  }
  return status;
}

Json result_of(const Divergence& found) {
  constexpr const char* kinds[] = {"equal", "reproduced", "fault"};
  Json json = {{"schema", "zerograd.divergence/1"},
               {"result", kinds[static_cast<size_t>(found.kind)]}};
  json[found.kind == Divergence::Kind::equal ? "steps" : "step"] = found.steps;
  json["fields"] = json_of(found.fields);
  json["settings"] = json_of(found.settings);
  json["layout"] = json_of(found.layout);
  if (found.is_first) json["faulty"] = *found.is_first ? "A" : "B";
  if (found.op) {
    json["op"] = json_of({*found.op})[0];
    json["op"]["step"] = found.op_step;
    if (!found.other_op.empty()) json["op"]["other"] = found.other_op;
  }
  if (found.element)
    json["element"] = {{"index", found.element->index},
                       {"first", found.element->first},
                       {"second", found.element->second}};
  json["text"] = found.text;
  return json;
}

}  // namespace

int audit(const std::vector<std::string>& words) {
  Arguments arguments;
  if (!parse_audit(words, arguments)) return 0;
  try {
    if (arguments.replay) return replay(arguments);
  } catch (const ReplayFailed& failed) {
    return failed.status;
  }
  const AuditTrail trail = read_audit(arguments.a.name);
  if (arguments.b.name.empty()) return report_chain(trail);
  const AuditTrail other = read_audit(arguments.b.name);
  const int status = report(arguments, trail, other, compare(trail, other));
  for (const std::string& more : {more_steps(trail, other), more_steps(other, trail)})
    if (!more.empty()) print_line(stdout, "  {}", more);
  return status;
}

int diverge(const std::vector<std::string>& words) {
  Arguments arguments;
  if (!parse_diverge(words, arguments)) return 0;
  try {
    const Divergence found = zero::diverge(audited_run(arguments.a), audited_run(arguments.b));
    print_line(stdout, "{}", found.text);
    if (!arguments.json.empty()) write_json("--json", arguments.json, result_of(found).dump());
    return found.kind == Divergence::Kind::equal ? 0 : is_different;
  } catch (const ReplayFailed& failed) {
    return failed.status;
  }
}

}  // namespace zg::tools
