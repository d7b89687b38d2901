#include <nlohmann/json.hpp>

#include "tools/commands/subcommands.h"
#include "tools/output/memory_json.h"
#include "tools/run/audited_run.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;
using zero::Divergence;

struct DivergeCommand {
  RunSource a{.title = "A"}, b{.title = "B"};
  std::string json;
};

bool parse(const std::vector<std::string>& arguments, DivergeCommand& command) {
  const auto own = std::ranges::find(arguments, "--");
  if (own != arguments.end())
    command.a.flags = command.b.flags = std::vector<std::string>(own + 1, arguments.end());
  const auto run = [](const char* name, RunSource& source) {
    Flag flag = positional(name, "an audit, or a command line of train in quotes", source.name,
                           PathUse::reads);
    return flag;
  };
  const CommandLine line = {
      .usage = "zerograd diverge A B [flags] [-- flags of train for both]",
      .summary =
          "Finds where two runs part, by computing steps again from the nearest checkpoints: the\n"
          "first step, the first unit of parameters, and, if the layouts are equal, the first\n"
          "rank, op and element. Exit status 1: they differ; 0: equal.",
      .positionals = {run("A", command.a), run("B", command.b)},
      .groups = {{"checkpoints, and results",
                  {path_flag({"--checkpoint-a"}, "DIR", command.a.checkpoints, PathUse::reads,
                             "A's step_N, or one; without it those in the --save of its record"),
                   path_flag({"--checkpoint-b"}, "DIR", command.b.checkpoints, PathUse::reads,
                             "the same of B"),
                   path_flag({"--json"}, "F", command.json, PathUse::writes,
                             "the result as JSON, too")}}},
      .notes =
          "An audit has the command line of its run, which a replay repeats without its "
          "outputs.\n\n"
          "  zerograd diverge a.audit b.audit\n"
          "  zerograd diverge a.audit b.audit --checkpoint-b copies/b -- --threads 1\n"
          "  zerograd diverge \"train --data sort --steps 9\" \"train --data sort --steps 9 --seed "
          "1\""};
  Given given;
  return parse(line, {arguments.begin(), own}, given);
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
  if (found.op) json["op"] = json_of({&*found.op, 1})[0];
  if (found.element)
    json["element"] = {{"index", found.element->index},
                       {"first", found.element->first},
                       {"second", found.element->second}};
  json["text"] = found.text;
  return json;
}

}  // namespace

int diverge(const std::vector<std::string>& arguments) {
  DivergeCommand command;
  if (!parse(arguments, command)) return 0;
  try {
    const Divergence found = zero::diverge(audited_run(command.a), audited_run(command.b));
    print_line(stdout, "{}", found.text);
    if (!command.json.empty()) write_json("--json", command.json, result_of(found).dump());
    return found.kind == Divergence::Kind::equal ? 0 : 1;
  } catch (const ReplayFailed& failed) {
    return failed.status;
  }
}

}  // namespace zg::tools
