#include "tests/tools/config/config_matrix.h"

#include <cstdio>
#include <set>
#include <sstream>

#include "tests/zero/deepspeed/deepspeed_case.h"
#include "tools/options/fields.h"
#include "tools/run/run.h"

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

Configured configured(const json& config, const std::string& flags) {
  // YAML reads JSON, too.
  const TemporaryFolder folder;
  const std::string file =
      folder / (config.contains("distributed_type") ? "config.yaml" : "config.json");
  write_file(file, config.dump());
  return configured("--config " + file + " " + flags);
}

Configured configured(const std::string& flags) {
  const std::vector<std::string> words =
      words_of("--data sort --vocab-size 4 --n-layer 2 --n-head 1 --n-embd 16 --threads 1 " +
               std::string(contains(flags, "--epochs ") ? "" : "--steps 4 ") + flags);
  Configured run;
  run.outcome = in_process([&] {
    tools::TrainOptions options;
    tools::parse(words, options);
    tools::resolve_options(options, {});
    static const auto data = models::sort_dataset(options.seed);
    const tools::RunSpec spec = tools::resolve_run(options, {}, *data).spec;
    const json settings = json::parse(tools::to_json(spec));
    for (const char* group : {"run", "model"})
      for (const auto& [name, value] : settings.at(group).items())
        run.seen[(*group == 'm' ? "model." : "") + name] = word(value);
    const zero::Config& engine = spec.engine;
    const SwapOptions& swap = options.device_flags.device.swap;
    run.seen.merge(Seen{{"steps_per_print", word(options.steps_per_print)},
                        {"dump_memory", word(options.dump_memory)},
                        {"async_save", word(options.async_save)},
                        {"activation_checkpoint", word(options.activation_checkpoint)},
                        {"reduce_bucket_size", word(engine.reduce_bucket_size)},
                        {"allgather_bucket_size", word(engine.allgather_bucket_size)},
                        {"prefetch_bucket_size", word(engine.prefetch_bucket_size)},
                        {"param_persistence_threshold", word(engine.param_persistence_threshold)},
                        {"overlap_comm", word(engine.overlap_comm)},
                        {"sub_group_size", word(engine.offload.sub_group_size)},
                        {"optimizer_ratio", word(engine.offload.optimizer_ratio)},
                        {"parameters_on_host", word(engine.offload.parameters_on_host)},
                        {"parameter_buffer", word(engine.offload.parameter_buffer)}});
    if (!tools::uses_disk(engine.offload)) return 0;
    run.seen["drive"] = swap.directory;
    run.seen["requests"] =
        word(swap.queue_depth) + "_requests_of_" + word(swap.block_size) + "_bytes";
    return 0;
  });
  if (!run.seen.empty())
    run.seen["dump_state"] =
        contains(run.outcome.error, ": train_batch_size = ") ? "true" : "false";
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

std::string surprise(const std::string& expected, const Configured& run, const Seen& base) {
  const std::string ended = std::to_string(run.outcome.status) + ": " + run.outcome.error;
  if (is_error(expected)) {
    const size_t colon = expected.find(": ");
    const bool fits = ended.starts_with(expected.substr(7, colon - 7) + ": ") &&
                      contains(run.outcome.error, expected.substr(colon + 2));
    return fits ? "" : "got status " + ended;
  }
  if (run.outcome.status != 0) return "got status " + ended;
  std::string text;
  const auto value_in = [](const Seen& seen, const std::string& name) {
    const auto found = seen.find(name);
    return found == seen.end() ? "" : found->second;
  };
  const auto differ = [&](const std::string& name, const std::string& value) {
    const std::string got = value_in(run.seen, name), from = value_in(base, name);
    if (got != (value == "same" ? from : value))
      text += name + ": expected " + value + ", got " + got + "; without " + from + "\n";
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
  if (base.empty()) return text;
  for (const Seen* seen : {&run.seen, &base})
    for (const auto& [name, value] : *seen)
      if (named.insert(name).second) differ(name, "same");
  return text;
}

namespace {

bool is_listed(const std::string& words, const std::string& error) {
  for (const std::string& line : split(error, '\n'))
    if (contains(line, ": overridden by flags: ") && contains(line, " " + words)) return true;
  return false;
}

void check_key(const Key& key) {
  json absent = smallest_config_for(key.section);
  absent.merge_patch(key.around);
  json& object = section_in(absent, key.section);
  if (object.is_null()) object = json::object();
  object.erase(key.key);
  json with_value = absent, automatic = absent;
  const json value = json::parse(key.value, nullptr, /*allow_exceptions=*/false);
  section_in(with_value, key.section)[key.key] = value.is_discarded() ? json(key.value) : value;
  section_in(automatic, key.section)[key.key] = "auto";

  Seen base;  // without the key and without flags that override it
  const auto check = [&](const json& config, const std::string& flags,
                         const std::string& expected) {
    const Configured now = configured(config, key.given + " " + flags);
    INFO(key.path(), ", ", config.dump(), ", flags ", flags);
    CHECK(surprise(expected, now, base) == "");
    if (flags.empty() && key.given.empty())
      CHECK(!contains(now.outcome.error, "overridden by flags"));
    return now;
  };
  base = check(absent, "", key.absent).seen;
  check(with_value, "", key.with_value);
  check(automatic, "", key.automatic);
  for (const Override& override : key.overrides) {
    const auto lists = [&](const json& config, const std::string& expected) {
      return is_listed(override.listed != "-" ? override.listed : key.path() + " (",
                       check(config, override.flags, expected).outcome.error);
    };
    INFO(key.path(), ", flags ", override.flags);
    const bool is_overridden = override.listed != "-" && !is_error(override.with_value);
    CHECK(lists(with_value, override.with_value) == is_overridden);
    // A default is not overridden.
    CHECK(!lists(absent, override.absent));
    CHECK(!lists(automatic, override.automatic));
  }
}

}  // namespace

void check_matrix(const char* table) {
  for (const Key& key : parsed(table)) check_key(key);
}

}  // namespace zg::testing
