#include "zerograd/runtime/command_line/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

using Known = std::map<std::string, const Flag*>;

Known known_flags(const CommandLine& line) {
  Known known;
  for (const FlagGroup& group : line.groups)
    for (const Flag& flag : group.flags) {
      for (const std::string& name : flag.names) known[name] = &flag;
      for (const auto& [name, value] : flag.with_value) known[name] = &flag;
    }
  return known;
}

// The value that `name` sets, if it is one of flag.with_value. Null: `name` is one of flag.names.
const std::string* value_of(const std::string& name, const Flag& flag) {
  for (const auto& [own, value] : flag.with_value)
    if (own == name) return &value;
  return nullptr;
}

[[noreturn]] void refuse_missing(const std::string& name, const Flag& flag) {
  raise<ConfigError>(
      "{}: expected a value, got nothing{}", name,
      flag.help.empty() ? "" : fmt::format("; {} {}: {}", name, flag.value, flag.help));
}

// Writes flags with dashes and splits --flag=value into two words, so that an empty value stays a
// value. The word after a flag that takes a value is not changed.
std::vector<std::string> normalised(const std::vector<std::string>& arguments, const Known& known) {
  std::vector<std::string> result;
  const Flag* waiting = nullptr;  // the flag whose value comes next
  int words_left = 0;             // how many more words the current value may have
  for (const std::string& argument : arguments) {
    if (words_left > 0 && !argument.starts_with("-")) {
      --words_left;
      result.back() += "," + argument;
      continue;
    }
    words_left = 0;
    const size_t equals = argument.find('=');
    std::string name = argument.substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
    const auto found = known.find(name);
    if (waiting && found != known.end()) refuse_missing(result.back(), *waiting);
    const bool takes_value = found != known.end() && !found->second->value.empty();
    if (const Flag* const flag = std::exchange(waiting, nullptr); flag || !name.starts_with("-")) {
      result.push_back(argument);
      if (flag && argument.find(',') == std::string::npos) words_left = flag->max_words - 1;
    } else if (const std::string* const value =
                   takes_value ? value_of(name, *found->second) : nullptr) {
      if (equals != std::string::npos)
        raise<ConfigError>("{}: expected no value, got '{}'; it is {} {}", name,
                           argument.substr(equals + 1), found->second->names.front(), *value);
      result.push_back(found->second->names.front());
      result.push_back(*value);
    } else if (equals == std::string::npos) {
      result.push_back(name);
      if (takes_value) waiting = found->second;
    } else if (takes_value) {
      result.push_back(name);
      result.push_back(argument.substr(equals + 1));
    } else {
      result.push_back(name + argument.substr(equals));
    }
  }
  if (waiting) refuse_missing(result.back(), *waiting);
  return result;
}

[[noreturn]] void refuse_extra(const std::string& extra, const Known& known) {
  if (extra.compare(0, 1, "-") != 0)
    raise<ConfigError>("unexpected argument '{}'; flags begin with --", extra);
  const std::string name = extra.substr(0, extra.find('='));
  std::vector<std::string> names;
  for (const auto& [candidate, flag] : known)
    if (!flag->help.empty()) names.push_back(candidate);
  for (const auto& [candidate, flag] : known)
    if (flag->help.empty()) names.push_back(candidate);
  const std::string dashed = name.compare(0, 2, "--") == 0 ? name : "-" + name;
  raise<ConfigError>("unknown flag {}{}", name, did_you_mean(dashed, names));
}

bool is_accepted(const Flag& flag, const std::string& value) {
  try {
    flag.set(flag.names.empty() ? flag.value : flag.names.front(), value);
  } catch (const ConfigError&) {
    return false;
  } catch (const Error&) {  // Unsupported here, but not misspelled
  }
  return true;
}

// Throws ConfigError for a value that was split into two words: --strategy deepspeed_stage 3.
void refuse_split_value(const Flag& flag, const std::string& value, const std::string& rest) {
  const std::string whole = value + "_" + rest;
  if (!is_accepted(flag, value) && is_accepted(flag, whole))
    raise<ConfigError>("{}: expected a value in one word, got '{} {}'; did you mean {}?",
                       flag.names.front(), value, rest, whole);
}

void add_paths(const Flag& flag, std::vector<NamedPath>& paths) {
  if (flag.use == PathUse::none) return;
  for (NamedPath& path : flag.paths()) {
    path.flag = flag.names.empty() ? flag.value : flag.names.front();
    paths.push_back(std::move(path));
  }
}

// Every positional and flag of the line.
std::vector<const Flag*> flags_of(const CommandLine& line) {
  std::vector<const Flag*> flags;
  for (const Flag& positional : line.positionals) flags.push_back(&positional);
  if (line.rest) flags.push_back(&*line.rest);
  for (const FlagGroup& group : line.groups)
    for (const Flag& flag : group.flags) flags.push_back(&flag);
  return flags;
}

void list_flags(const CommandLine& line) {
  for (const Flag* flag : flags_of(line)) {
    const std::string name = flag->names.empty() ? flag->value : flag->names.front();
    std::printf("%s\t%s\t%s\t%s\n", name.c_str(), flag->value.c_str(), name_of(flag->use),
                !flag->value.empty() && is_accepted(*flag, "any/text") ? "text" : "");
  }
}

// The left column of help: "--batch-size N".
std::string left_column(const Flag& flag) {
  return flag.names.front() + (flag.value.empty() ? "" : " " + flag.value);
}

void print_row(const std::string& left, const std::string& right) {
  constexpr int left_width = 30;
  std::string indented = right;
  for (size_t at = 0; (at = indented.find('\n', at)) != std::string::npos; ++at)
    indented.insert(at + 1, std::string(left_width + 4, ' '));
  if (left.size() > left_width)
    std::printf("  %s\n%*s%s\n", left.c_str(), left_width + 4, "", indented.c_str());
  else
    std::printf("  %-*s  %s\n", left_width, left.c_str(), indented.c_str());
}

void print_help(const CommandLine& line) {
  std::printf("usage: %s\n\n%s\n", line.usage.c_str(), line.summary.c_str());
  if (!line.positionals.empty() || line.rest) std::printf("\n");
  for (const Flag& positional : line.positionals) print_row(positional.value, positional.help);
  if (line.rest) print_row(line.rest->value, line.rest->help);
  for (const FlagGroup& group : line.groups) {
    if (std::ranges::all_of(group.flags, [](const Flag& flag) { return flag.help.empty(); }))
      continue;
    std::printf("\n%s\n", group.title.c_str());
    for (const Flag& flag : group.flags)
      if (!flag.help.empty()) print_row(left_column(flag), flag.help);
  }
  if (!line.notes.empty()) std::printf("\n%s\n", line.notes.c_str());
}

}  // namespace

std::vector<NamedPath> paths_of(const std::vector<FlagGroup>& groups) {
  std::vector<NamedPath> paths;
  for (const FlagGroup& group : groups)
    for (const Flag& flag : group.flags) add_paths(flag, paths);
  return paths;
}

bool parse(const CommandLine& line, const std::vector<std::string>& arguments, Given& given) {
  if (arguments == std::vector<std::string>{"--list-flags"}) return list_flags(line), false;
  const Known known = known_flags(line);
  CLI::App app;
  app.set_help_flag("-h,--help");
  app.allow_extras();

  std::vector<std::pair<const Flag*, CLI::Option*>> options;
  std::vector<std::string> values(line.positionals.size());
  for (size_t i = 0; i < values.size(); ++i)
    options.emplace_back(&line.positionals[i],
                         app.add_option(line.positionals[i].value, values[i]));
  for (const FlagGroup& group : line.groups)
    for (const Flag& flag : group.flags) {
      const std::string names = join(flag.names, ",");
      CLI::Option* option =
          flag.value.empty()
              ? app.add_flag(names)
              : app.add_option(names, CLI::callback_t([](const auto&) { return true; }))
                    ->expected(1);
      option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
      options.emplace_back(&flag, option);
    }

  std::vector<std::string> words = normalised(arguments, known);
  std::ranges::reverse(words);  // CLI11 reads the words from the back
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    print_help(line);
    return false;
  } catch (const CLI::ParseError& error) {
    throw ConfigError(error.what());
  }
  if (const std::vector<std::string> extras = app.remaining(); !extras.empty()) {
    // A misspelled flag and its value are both in `extras`; the error must name the flag.
    const auto flag = std::ranges::find_if(
        extras, [](const std::string& word) { return word.compare(0, 1, "-") == 0; });
    for (const auto& [known_flag, option] : options)
      if (flag == extras.end() && !line.rest && !known_flag->names.empty() && option->count() > 0)
        refuse_split_value(*known_flag, option->results().back(), extras.front());
    if (flag != extras.end() || !line.rest)
      refuse_extra(flag != extras.end() ? *flag : extras.front(), known);
    for (const std::string& word : extras) line.rest->set(line.rest->value, word);
  }
  for (const auto& [flag, option] : options) {
    if (option->count() == 0) {
      if (flag->names.empty())
        raise<ConfigError>("expected {}; usage: {}", flag->value, line.usage);
      continue;
    }
    if (!flag->names.empty()) given.insert(flag->names.front());
    flag->set(flag->names.empty() ? flag->value : flag->names.front(), option->results().back());
  }
  std::vector<NamedPath> paths;
  for (const Flag* flag : flags_of(line)) add_paths(*flag, paths);
  check_paths(paths);
  return true;
}

// --- devices ---

void check_device(const Given& given) {
  if (given.count("--device") && given.count("--use-hpu"))
    throw ConfigError("--use-hpu: expected one of --device and --use-hpu, got both");
}

void require_dtype(Device::Type type, DType dtype, const std::string& what) {
  if (type == Device::Type::hpu && dtype == DType::f16)
    raise<Unsupported>(
        "{}: hpu devices do not compute in f16; expected f32 or bf16; try train with --precision "
        "bf16 (of a checkpoint with --resume or --init), or --device cpu",
        what);
}

void require_device(Device::Type type) {
  if (const std::string why = Device::absence(type); !why.empty())
    raise<Unsupported>("--device {}: {}; try --device cpu", type, why);
}

void refuse_emulator(Device::Type type) {
  require_device(type);
  for (int index = 0; index < Device::count(type); ++index)
    if (const std::string what = emulator_name(type, index); !what.empty())
      raise<Unsupported>(
          "--device {}: {}:{} is the {}: times measured on it mean nothing; expected an "
          "accelerator to measure; try --device cpu",
          type, type, index, what);
}

}  // namespace zg
