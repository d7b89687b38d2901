#include "tests/tools/config/config_matrix.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <set>
#include <sstream>

#include "tests/zero/deepspeed/deepspeed_case.h"

namespace zg::testing {
namespace {

using nlohmann::json;

std::string word(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number_float()) return value.dump();
  char text[32];
  std::snprintf(text, sizeof text, "%g", value.get<double>());
  return text;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \n");
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(" \n") + 1 - first);
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(trimmed(part));
  return parts;
}

bool is_error(const std::string& expected) { return expected.starts_with("status "); }

void fill(std::string& column, const std::string& without) {
  if (column.empty() || column == ".") column = without;
  if (column == "refused") column = "status 2: got 'auto'";
}

Key key_of(const std::string& line) {
  std::vector<std::string> columns = split(line, '|');
  REQUIRE_MESSAGE(columns.size() == 4, line);
  const size_t space = columns[0].find(' '), dot = columns[0].find('.');
  const bool has_section = dot < space;
  for (std::string& column : columns) fill(column, "");
  const size_t first = has_section ? dot + 1 : 0;
  Key key = {.section = has_section ? columns[0].substr(0, dot) : "",
             .key = columns[0].substr(first, space - first),
             .value = trimmed(columns[0].substr(space)),
             .absent = columns[1],
             .with_value = columns[2],
             .automatic = columns[3]};
  REQUIRE_MESSAGE(zero::deepspeed::find_row(key.section, key.key), line);
  return key;
}

Override override_of(const Key& key, const std::string& line) {
  std::vector<std::string> columns = split(line, '|');
  columns.resize(5);
  const std::string name = columns[0].substr(0, columns[0].find_first_of(" ="));
  fill(columns[2], is_error(key.absent) ? key.absent : columns[1]);
  fill(columns[3], is_error(key.automatic) ? key.automatic : columns[2]);
  fill(columns[4], key.path() + " (" + name + ")");
  return {columns[0], columns[1], columns[2], columns[3], columns[4]};
}

}  // namespace

Outcome ConfigRuns::run(const std::string& command, const json& config, const std::string& flags) {
  const auto with_drive = [&](const std::string& text) {
    return replaced(text, "DRIVE", drive_.path());
  };
  // YAML reads JSON, too.
  const bool is_accelerate = config.contains("distributed_type");
  const std::string file = folder_ / (is_accelerate ? "config.yaml" : "config.json");
  write_file(file, with_drive(config.dump()));
  return zerograd(command +
                  " --data sort --vocab-size 4 --n-layer 2 --n-head 1 --n-embd 16 --threads 1 "
                  "--config " +
                  file + " " + with_drive(flags));
}

ConfigRuns::Run ConfigRuns::train(const json& config, const std::string& flags) {
  const std::string save = folder_ / "saved";
  std::filesystem::remove_all(save);
  Run run;
  run.outcome =
      this->run("train --steps 4 --score-samples 0 --log-interval 0 --save " + save, config, flags);
  const auto& [status, out, error, resident_bytes] = run.outcome;
  if (status != 0) return run;
  const json manifest = json::parse(read_file(save + "/step_4/manifest.json"));
  for (const auto& [name, value] : manifest.at("config").at("run").items())
    run.seen[name] = word(value);
  std::istringstream stream(out);
  for (std::string line; std::getline(stream, line);)
    if (const size_t step = line.find("[Rank 0] step="); step != std::string::npos)
      run.seen["prints"] += line.substr(step + 14, line.find(',', step) - step - 14) + ";";
  if (contains(out, "| step |")) run.seen["prints"] += "memory;";
  if (contains(error, ": train_batch_size = ")) run.seen["prints"] += "settings;";
  const std::string disk = line_after(error, "drive ");
  if (!disk.empty()) {
    run.seen["drive"] = replaced(disk.substr(0, disk.find(':')), drive_.path(), "DRIVE");
    run.seen["requests"] = replaced(disk.substr(disk.rfind("; ") + 2), " ", "_");
  }
  return run;
}

ConfigRuns::Run ConfigRuns::plan(const json& config, const std::string& flags) {
  const std::string file = folder_ / "memory.json";
  Run run;
  run.outcome = this->run("plan --steps 3 --ranks 2 --memory-json " + file, config, flags);
  if (run.outcome.status != 0) return run;
  const json rank = json::parse(read_file(file)).at("ranks").at(0);
  const auto see = [&](const std::string& name, const json& value) {
    const int64_t bytes = value.get<int64_t>();
    std::string& seen = run.seen[name];
    if (seen.empty() || std::stoll(seen) < bytes) seen = std::to_string(bytes);
  };
  for (const auto& [name, counts] : rank.at("wire").items()) see(name, counts.at("calls"));
  see("drive_read", rank.at("io").at("read"));
  see("peak", rank.at("peak").at("live"));
  for (const json& row : rank.at("rows")) {
    if (row.at("step") == 2 && row.at("at") == "after_forward") see("forward_peak", row.at("max"));
    for (const char* space : {"device", "host", "file"})
      for (const auto& [purpose, bytes] : row.at(space).items())
        see(std::string(space) + "_" + purpose, bytes);
  }
  return run;
}

std::string Key::path() const {
  return zero::deepspeed::path_of(*zero::deepspeed::find_row(section, key));
}

std::vector<Key> parsed(std::string table) {
  for (size_t at = 0; (at = table.find("\\\n", at)) != std::string::npos;) table.erase(at, 2);
  std::vector<Key> keys;
  for (const std::string& line : split(table, '\n')) {
    if (line.empty()) continue;
    if (line.starts_with("with "))
      keys.back().around = json::parse(line.substr(5));
    else if (line.starts_with("given "))
      keys.back().given = line.substr(6);
    else if (line.starts_with("--"))
      keys.back().overrides.push_back(override_of(keys.back(), line));
    else
      keys.push_back(key_of(line));
  }
  return keys;
}

std::string surprise(const std::string& expected, const ConfigRuns::Run& run, const Seen& base,
                     bool sees_all) {
  const auto& [status, out, error, resident_bytes] = run.outcome;
  if (is_error(expected)) {
    const size_t colon = expected.find(": ");
    const bool fits = std::to_string(status) == expected.substr(7, colon - 7) &&
                      contains(error, expected.substr(colon + 2));
    return fits ? "" : "got status " + std::to_string(status) + ": " + error;
  }
  if (status != 0) return "got status " + std::to_string(status) + ": " + error;
  std::string text;
  const auto differ = [&](const std::string& name, const std::string& value) {
    const auto found = run.seen.find(name), before = base.find(name);
    const std::string got = found == run.seen.end() ? "" : found->second;
    const std::string from = before == base.end() ? "" : before->second;
    bool fits = got == value;
    if (value == "same") fits = got == from;
    if (value == "less") fits = std::stoll(got) < std::stoll(from);
    if (value == "more") fits = std::stoll(got) > std::stoll(from);
    if (!fits) text += name + ": expected " + value + ", got " + got + "; without " + from + "\n";
  };
  std::set<std::string> named;
  if (expected == "same") {
    if (base.empty()) return "expected the same as a run that failed";
  } else {
    std::istringstream words(expected);
    for (std::string word; words >> word;) {
      const size_t equal = word.find('=');
      if (equal == std::string::npos) return "no expectation: " + word;
      named.insert(word.substr(0, equal));
      differ(word.substr(0, equal), word.substr(equal + 1));
    }
    if (named.empty()) return "nothing is expected";
  }
  if (base.empty() || (!sees_all && expected != "same")) return text;
  for (const Seen* seen : {&run.seen, &base})
    for (const auto& [name, value] : *seen)
      if (named.insert(name).second) differ(name, "same");
  return text;
}

namespace {

class Matrix {
 public:
  explicit Matrix(Command command) : command_(command) {}

  void check(const Key& key) {
    json absent = smallest_config_for(key.section);
    absent.merge_patch(key.around);
    json& object = section_in(absent, key.section);
    if (object.is_null()) object = json::object();
    object.erase(key.key);
    json with_value = absent, automatic = absent;
    const json value = json::parse(key.value, nullptr, /*allow_exceptions=*/false);
    section_in(with_value, key.section)[key.key] = value.is_discarded() ? json(key.value) : value;
    section_in(automatic, key.section)[key.key] = "auto";

    base_.clear();
    base_ = check(key, absent, "", key.absent).seen;
    check(key, with_value, "", key.with_value);
    check(key, automatic, "", key.automatic);
    for (const Override& override : key.overrides) {
      const auto lists = [&](const json& config, const std::string& expected) {
        const bool names_flag = override.listed != "-";
        return is_listed(names_flag ? override.listed : key.path() + " (",
                         check(key, config, override.flags, expected).outcome.error);
      };
      INFO(key.path(), ", flags ", override.flags);
      const bool is_overridden = override.listed != "-" && !is_error(override.with_value);
      CHECK(lists(with_value, override.with_value) == is_overridden);
      // A default is not overridden.
      CHECK(!lists(absent, override.absent));
      CHECK(!lists(automatic, override.automatic));
    }
  }

 private:
  ConfigRuns::Run run(const json& config, const std::string& flags) {
    return command_ == Command::train ? runs_.train(config, flags) : runs_.plan(config, flags);
  }

  ConfigRuns::Run check(const Key& key, const json& config, const std::string& flags,
                        const std::string& expected) {
    const ConfigRuns::Run now = run(config, key.given + " " + flags);
    INFO(key.path(), ", ", config.dump(), ", flags ", flags);
    CHECK(surprise(expected, now, base_, command_ == Command::train) == "");
    if (flags.empty() && key.given.empty())
      CHECK(!contains(now.outcome.error, "overridden by flags"));
    return now;
  }

  static bool is_listed(const std::string& words, const std::string& error) {
    for (const std::string& line : split(error, '\n'))
      if (contains(line, ": overridden by flags: ") && contains(line, " " + words)) return true;
    return false;
  }

  const Command command_;
  ConfigRuns runs_;
  Seen base_;  // result without the key and without flags that override it
};

}  // namespace

void check_matrix(const char* table, Command command) {
  Matrix matrix(command);
  for (const Key& key : parsed(table)) matrix.check(key);
}

}  // namespace zg::testing
