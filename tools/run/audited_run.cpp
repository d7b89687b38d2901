#include "tools/run/audited_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tools/options/fields.h"
#include "tools/run/child.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

namespace zg::tools {
namespace {

using Words = std::vector<std::string>;

// The words of a command line. Quotes keep spaces in a word, as in a shell; nothing else is
// special.
Words split(const std::string& line) {
  Words words;
  char quote = 0;
  bool in_word = false;
  for (const char c : line) {
    const bool is_quote = quote ? c == quote : c == '\'' || c == '"';
    if (is_quote) quote = quote ? 0 : c;
    const bool is_space = !quote && !is_quote && (c == ' ' || c == '\t' || c == '\n');
    if (!is_space && !std::exchange(in_word, true)) words.emplace_back();
    if (is_space) in_word = false;
    if (!is_space && !is_quote) words.back() += c;
  }
  if (quote) raise<ConfigError>("diverge: expected a closing {}, got {}", quote, printable(line));
  return words;
}

// A command line, with or without the program's name; empty: a path.
Words command_of(const std::string& name) {
  Words words = split(name);
  if (!words.empty() && words.front() == "zerograd") words.erase(words.begin());
  const bool is_command = words.size() > 1 && (words[0] == "train" || words[0] == "finetune");
  return is_command ? words : Words();
}

struct FlagWords {
  Words kept;
  std::string save;  ///< of --save
};
// Leaves out the flags that write, and, of a record, those that a replay has instead.
FlagWords without_outputs(const Words& words, bool is_record) {
  std::map<std::string, bool> dropped;  // whether the flag has a value
  TrainOptions options;
  for (const FieldGroup& group : field_groups())
    for (const Field& field : group.fields) {
      if (field.flag.names.empty()) continue;
      const Flag flag = flag_of(field, options);
      const std::string& name = flag.names.front();
      const bool is_output = group.title == "output" || group.title == "checkpoints";
      if (name == "--score-samples" || (name == "--resume" && !is_record)) continue;
      if (!is_output && flag.use != PathUse::writes && flag.use != PathUse::adds &&
          !(is_record && name == "--inject"))
        continue;
      for (const std::string& spelling : flag.names) dropped[spelling] = !flag.value.empty();
    }
  FlagWords result;
  for (size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::ranges::replace(name, '_', '-');
    const auto found = dropped.find(name);
    if (found == dropped.end()) {
      result.kept.push_back(words[i]);
      continue;
    }
    const size_t equals = words[i].find('=');
    const bool takes_next = found->second && equals == std::string::npos && i + 1 < words.size();
    const std::string value =
        takes_next ? words[++i] : words[i].substr(std::min(equals, words[i].size() - 1) + 1);
    if (name == "--save" || name == "--output-dir") result.save = value;
  }
  return result;
}

void train(Words words, const zero::AuditOptions& audit) {
  words.insert(words.begin(), this_program);
  words.insert(words.end(), {"--audit", audit.path, "--audit-interval", "1"});
  if (audit.end_op_step > audit.first_op_step)
    words.insert(words.end(),
                 {"--audit-ops", fmt::format("{}:{}", audit.first_op_step,
                                             audit.end_op_step - audit.first_op_step)});
  if (!audit.tensor.empty())
    words.insert(words.end(), {"--audit-tensor", audit.tensor_path + ":" + audit.tensor});
  const CapturedEnd end = capture_child(words, "try again", /*seconds=*/1e9);
  if (end.end.status == 0) return;
  print_line(stderr, "{}", end.output);
  throw ReplayFailed{end.end.status};
}

Words recorded_command(const zero::AuditTrail& trail, int64_t step) {
  for (const auto& [name, value] : trail.run_of(step).fields)
    if (name == "command" && value != "[]") return Json::parse(value).get<Words>();
  return {"train"};
}

// The paths of checkpoints by their steps.
std::map<int64_t, std::string> steps_of_folder(const std::string& path) {
  std::map<int64_t, std::string> found;
  for (const zero::StepFolder& folder : zero::step_folders(path)) found[folder.steps] = folder.path;
  if (found.empty()) found[zero::read_checkpoint_info(path).steps] = path;
  return found;
}

}  // namespace

zero::AuditedRun audited_run(const RunSource& source) {
  zero::AuditedRun run;
  if (Words words = command_of(source.name); !words.empty()) {
    words = without_outputs(words, /*is_record=*/false).kept;
    words.insert(words.end(), source.flags.begin(), source.flags.end());
    run.replay = [words](int64_t, int64_t end, const zero::AuditOptions& audit) {
      Words own = words;
      if (end != INT64_MAX) own.insert(own.end(), {"--exit-interval", std::to_string(end)});
      train(own, audit);
    };
    run.trail = zero::recorded(run);
    run.trail.path = source.title;
    return run;
  }
  run.trail = zero::AuditTrail::read(source.name);
  if (run.trail.records.empty())
    raise<ConfigError>("{}: expected the record of a step, got none", source.name);
  std::map<int64_t, std::string> checkpoints;
  if (!source.checkpoints.empty()) {
    checkpoints = steps_of_folder(source.checkpoints);
  } else if (const std::string save = without_outputs(recorded_command(run.trail, 0), true).save;
             std::filesystem::is_directory(save)) {
    for (const zero::StepFolder& folder : zero::step_folders(save))
      checkpoints[folder.steps] = folder.path;
  }
  for (const auto& [steps, path] : checkpoints) run.checkpoints.push_back(steps);
  run.replay = [trail = run.trail, checkpoints, flags = source.flags](
                   int64_t first, int64_t end, const zero::AuditOptions& audit) {
    Words words = without_outputs(recorded_command(trail, first), true).kept;
    if (first > 0) words.insert(words.end(), {"--resume", checkpoints.at(first)});
    words.insert(words.end(), flags.begin(), flags.end());
    // The length of the run stays as it was, because a schedule may depend on it.
    words.insert(words.end(), {"--exit-interval", std::to_string(end)});
    train(words, audit);
  };
  return run;
}

Json json_of(std::span<const zero::AuditDifference> differences) {
  Json all = Json::array();
  for (const auto& [field, first, second] : differences)
    all.push_back({{"field", field}, {"first", first}, {"second", second}});
  return all;
}

}  // namespace zg::tools
