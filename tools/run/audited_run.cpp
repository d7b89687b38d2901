#include "tools/run/audited_run.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

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

struct Command {
  Words variables;  ///< NAME=VALUE
  std::string program = this_program;
  Words words;             ///< after the program; empty: none
  Words folders, resumed;  ///< of --save and of --resume, where without_outputs() left them out
};
// Without words: the name is a path.
Command command_of(const std::string& name) {
  const Words words = split(name);
  const auto is_train = [](const std::string& word) {
    return word == "train" || word == "finetune";
  };
  const auto is_plain = [](const std::string& word) { return word.find('=') == word.npos; };
  const auto train = std::ranges::find_if(words, is_train);
  const auto program = std::ranges::find_if(words, is_plain);
  if (train == words.end() || train - program > 1 || words.size() < 2) return {};
  Command command{.variables = {words.begin(), program}, .words = {train, words.end()}};
  if (program != train) command.program = *program;
  return command;
}

// The model and its first weights, which a run takes from the checkpoint that it resumes.
constexpr const char* resumed_flags[] = {"--from-hf", "--init",   "--init-adapter", "--model-type",
                                         "--n-layer", "--n-head", "--n-embd",       "--vocab-size"};

// Leaves out the flags that write, and, of a record, those that a replay has instead; `resumes`:
// from a checkpoint.
Command without_outputs(Command command, bool is_record, bool resumes = false) {
  const Words words = std::exchange(command.words, {});
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
          !(is_record && name == "--inject") &&
          !(resumes && std::ranges::find(resumed_flags, name) != std::end(resumed_flags)))
        continue;
      for (const std::string& spelling : flag.names) dropped[spelling] = !flag.value.empty();
    }
  for (size_t i = 0; i < words.size(); ++i) {
    std::string name = words[i].substr(0, words[i].find('='));
    std::ranges::replace(name, '_', '-');
    const auto found = dropped.find(name);
    if (found == dropped.end()) {
      command.words.push_back(words[i]);
      continue;
    }
    const size_t equals = words[i].find('=');
    const bool takes_next = found->second && equals == std::string::npos && i + 1 < words.size();
    const std::string value =
        takes_next ? words[++i] : words[i].substr(std::min(equals, words[i].size() - 1) + 1);
    if (name == "--save" || name == "--output-dir") command.folders.push_back(value);
    if (name == "--resume" || name == "--load") command.resumed.push_back(value);
  }
  return command;
}

Words words_of(const Command& command) {
  Words words = command.variables;
  words.push_back(command.program);
  words.insert(words.end(), command.words.begin(), command.words.end());
  return words;
}

// The flags and their values; variables and program are the first one's value.
zero::AuditTrail::Fields flags_of(const Command& command) {
  zero::AuditTrail::Fields flags = {{"program", ""}};
  for (const std::string& word : words_of(command))
    if (word.starts_with("--"))
      flags.emplace_back(word, "");
    else
      flags.back().second += (flags.back().second.empty() ? "" : " ") + word;
  for (auto& [flag, value] : flags)
    if (value.empty()) value = "on";
  return flags;
}

void train(Command command, const zero::AuditOptions& audit, const RunSource& source) {
  if (!command.variables.empty()) {
    command.variables.insert(command.variables.begin(), "env");
    if (command.program == this_program)
      command.program = std::filesystem::read_symlink("/proc/self/exe").string();
  }
  Words words = words_of(command);
  words.insert(words.end(), {"--audit", audit.path, "--audit-interval", "1"});
  if (audit.end_op_step > audit.first_op_step)
    words.insert(words.end(), {"--audit-ops",
                               fmt::format("{}:{}:{}", audit.first_op_step,
                                           audit.end_op_step - audit.first_op_step, audit.tensor)});
  const CapturedEnd end = capture_child(words, "try the path of a zerograd", 1e9);
  if (end.end.signal != 0)
    throw ReplayFailed{128 + end.end.signal};  // this process was interrupted
  if (end.end.status == 0) return;
  print_line(stderr,
             "{}\nthe replay of {}: {} ended with status {}: {}; paths are relative to this folder",
             end.output, source.title, printable(source.name, 200), end.end.status,
             printable(join(words, " "), 400));
  constexpr int is_different = 1, has_failed = 7;  // 1 is a result of audit and diverge
  throw ReplayFailed{end.end.status == is_different ? has_failed : end.end.status};
}

// The command line that a replay repeats. Without words: another program wrote the record.
Command recorded_command(const zero::AuditTrail& trail, int64_t step) {
  Command command;
  constexpr std::string_view variable = "run.environment.";
  const zero::AuditTrail::Record& run = trail.run_of(step);
  for (const auto& [name, value] : run.fields) try {
      if (name == "command")
        command.words = Json::parse(value).get<Words>();
      else if (name.starts_with(variable))
        command.variables.push_back(name.substr(variable.size()) + "=" +
                                    Json::parse(value).get<std::string>());
    } catch (const Json::exception&) {
      raise<FileError>("{}: line {}: {}: expected words, got {}", trail.path, run.line, name,
                       printable(value, 60));
    }
  return without_outputs(command, /*is_record=*/true);
}

using Checkpoints = std::map<int64_t, std::string>;  // paths by steps

// Adds the checkpoints of a path: a folder of step_N, or one.
void add_checkpoints(const std::string& path, Checkpoints& found) {
  const auto folders = zero::step_folders(path);
  for (const zero::StepFolder& folder : folders) found[folder.steps] = folder.path;
  if (folders.empty()) found[zero::read_checkpoint_info(path).steps] = path;
}

// The checkpoints of --checkpoint, or else of --resume and --save in the record.
Checkpoints checkpoints_of(const zero::AuditTrail& trail, const RunSource& source) {
  Checkpoints found;
  if (!source.checkpoints.empty()) {
    add_checkpoints(source.checkpoints, found);
    return found;
  }
  const auto add_all = [&](const Words& folders) {
    for (const std::string& folder : folders) try {
        add_checkpoints(folder, found);
      } catch (const FileError&) {  // ignored: a replay says which checkpoint it lacks
      }
  };
  for (const zero::AuditTrail::Record& record : trail.records) {
    if (record.is_step) continue;
    const Command command = recorded_command(trail, record.step);
    add_all(command.resumed);
    // Later ones of the run before are of steps that this one took again.
    found.erase(found.upper_bound(record.step), found.end());
    add_all(command.folders);
  }
  return found;
}

// A run that was resumed with other flags is replayed in parts.
void replay_record(const zero::AuditTrail& trail, const Checkpoints& checkpoints,
                   const RunSource& source, int64_t first, int64_t end,
                   const zero::AuditOptions& audit) {
  for (int64_t stop = end; first < end; first = std::exchange(stop, end)) {
    Command command = recorded_command(trail, first);
    if (command.words.empty())
      raise<ConfigError>(
          "replay: {}: expected a record of zerograd train, got one without a command line; "
          "try zero::diverge() in the program that wrote it",
          source.name);
    for (const zero::AuditTrail::Record& record : trail.records)
      if (!record.is_step && record.step > first && record.step < stop &&
          checkpoints.contains(record.step) &&
          recorded_command(trail, record.step).words != command.words)
        stop = record.step;
    if (!source.program.empty()) command.program = source.program;
    if (first > 0) {
      command = without_outputs(command, /*is_record=*/true, /*resumes=*/true);
      command.words.insert(command.words.end(), {"--resume", checkpoints.at(first)});
    }
    command.words.insert(command.words.end(), source.flags.begin(), source.flags.end());
    // The length of the run stays as it was, because a schedule may depend on it.
    command.words.insert(command.words.end(), {"--exit-interval", std::to_string(stop)});
    zero::AuditOptions own = audit;
    own.first_op_step = std::max(own.first_op_step, first);
    own.end_op_step = std::min(own.end_op_step, stop);
    train(command, own, source);
  }
}

zero::AuditedRun run_of_command(const RunSource& source, Command command) {
  zero::AuditedRun run;
  if (!source.program.empty()) command.program = source.program;
  command = without_outputs(command, /*is_record=*/false);
  command.words.insert(command.words.end(), source.flags.begin(), source.flags.end());
  run.command = flags_of(command);
  run.replay = [command, source](int64_t, int64_t end, const zero::AuditOptions& audit) {
    Command own = command;
    if (end != INT64_MAX)
      own.words.insert(own.words.end(), {"--exit-interval", std::to_string(end)});
    train(own, audit, source);
  };
  run.trail = zero::recorded(run);
  run.trail.path = source.title;
  if (!run.trail.records.empty()) run.checkpoints = {run.trail.records.front().step};
  return run;
}

}  // namespace

zero::AuditTrail read_audit(const std::string& path) {
  zero::AuditTrail trail = zero::AuditTrail::read(path);
  if (trail.records.empty())
    raise<FileError>("{}: expected the records of an audit, got none", path);
  return trail;
}

zero::AuditedRun audited_run(const RunSource& source) {
  if (Command command = command_of(source.name); !command.words.empty()) {
    if (!source.checkpoints.empty())
      raise<ConfigError>(
          "--checkpoint: {}: expected the file of an audit with it, got a command line, which "
          "names its checkpoint by --resume",
          source.title);
    return run_of_command(source, command);
  }
  if (source.name.find(' ') != std::string::npos && !std::filesystem::exists(source.name))
    raise<ConfigError>(
        "expected the file of an audit, or a command line of train or finetune, got {}",
        printable(source.name));
  zero::AuditedRun run{.trail = read_audit(source.name)};
  const zero::AuditTrail& trail = run.trail;
  run.command = flags_of(recorded_command(trail, trail.records.front().step));
  const Checkpoints checkpoints = checkpoints_of(trail, source);
  for (const auto& [steps, path] : checkpoints) run.checkpoints.push_back(steps);
  run.replay = [trail, checkpoints, source](int64_t first, int64_t end,
                                            const zero::AuditOptions& audit) {
    replay_record(trail, checkpoints, source, first, end, audit);
  };
  return run;
}

}  // namespace zg::tools
