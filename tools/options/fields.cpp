#include "tools/options/fields.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/options/flags.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {

// A field has no accessor for a constant object; nothing is written here.
Json value_of(const Field& field, const RunSpec& spec) {
  return field.location.codec->write(field.location.in_spec(const_cast<RunSpec&>(spec)));
}
Json value_of(const Field& field, const TrainOptions& options) {
  return field.location.codec->write(field.location.in_options(const_cast<TrainOptions&>(options)));
}
void Field::copy(const RunSpec& from, RunSpec& to) const {
  location.codec->copy(location.in_spec(const_cast<RunSpec&>(from)), location.in_spec(to));
}

const std::vector<const Field*>& all_fields() {
  static const std::vector<const Field*> all = [] {
    std::vector<const Field*> rows;
    for (const FieldGroup& group : field_groups())
      for (const Field& field : group.fields) rows.push_back(&field);
    return rows;
  }();
  return all;
}

const std::vector<const Field*>& stored_fields() {
  static const std::vector<const Field*> stored = [] {
    std::vector<const Field*> rows = all_fields();
    std::erase_if(rows, [](const Field* field) { return !field->is_stored(); });
    return rows;
  }();
  return stored;
}

std::set<std::string> ignored_flags(Ignored by) {
  std::set<std::string> names;
  unsigned of_group = never;
  for (const FieldGroup& group : field_groups()) {
    of_group = group.title.empty() ? of_group : group.ignored;
    for (const Field& field : group.fields)
      if (((field.ignored | of_group) & by) && !field.flag.names.empty())
        names.insert(field.name());
  }
  return names;
}

Flag flag_of(const Field& field, TrainOptions& options) {
  const FlagRow& row = field.flag;
  if (row.make) return row.make(options);
  Flag flag = field.location.codec->flag(row, field.location.in_options(options));
  if (!row.value.empty()) flag.value = row.value;
  if (row.parse) {
    flag.help = row.help;
    if (!row.shown) flag.help += fmt::format(" [{}]", value_of(field, options).get<std::string>());
    flag.set = [&options, parse = row.parse](const std::string& name, const std::string& value) {
      parse(options, {name, value});
    };
  }
  if (row.paths) {
    const auto* const path = static_cast<std::string*>(field.location.in_options(options));
    flag.paths = [path, paths = row.paths] { return paths(*path); };
  }
  flag.max_words = row.max_words;
  flag.with_value = row.with_value;
  return flag;
}

std::vector<const Field*> fields_named(const std::vector<std::string>& names) {
  std::vector<const Field*> rows;
  for (const std::string& name : names)
    for (const Field* field : all_fields())
      if (field->name() == name) rows.push_back(field);
  return rows;
}

std::vector<Flag> flags_named(const std::vector<std::string>& names, TrainOptions& options) {
  std::vector<Flag> flags;
  for (const Field* field : fields_named(names)) flags.push_back(flag_of(*field, options));
  return flags;
}

std::vector<FlagGroup> train_groups(TrainOptions& options) {
  std::vector<FlagGroup> groups;
  for (const FieldGroup& group : field_groups()) {
    if (!group.title.empty()) groups.push_back({.title = group.title});
    for (const Field& field : group.fields)
      if (!field.flag.names.empty()) groups.back().flags.push_back(flag_of(field, options));
  }
  groups.push_back(script_flags());
  groups.push_back(unsupported_flags(/*one_rank=*/false));
  return groups;
}

// train --explain-settings.

namespace {

// The given flag that decides a field instead of the field's own flag; null: there is none.
const char* other_flag(const Field& field, const TrainOptions& options) {
  for (const char* flag : field.stored.other_flags)
    if (options.has(flag)) return flag;
  return nullptr;
}

// Whether a stored row shows the same field; this row's flag is only another way to set it.
bool is_alternative(const Field& field) {
  const std::vector<const Field*>& all = all_fields();
  TrainOptions options;
  const void* const at = field.location.in_options(options);
  return !field.is_stored() && std::ranges::any_of(all, [&](const Field* other) {
    return other->is_stored() && other->location.in_options(options) == at;
  });
}

// Where a run is, and flags that help does not list unless they are given, are no settings.
bool is_setting(const Field& field, const TrainOptions& options) {
  const bool is_listed = field.is_stored() || field.flag.make || !field.flag.help.empty();
  return (is_listed || options.has(field.name())) && field.name() != "--restarted" &&
         !field.name().starts_with("position.");
}

}  // namespace

std::string shown_value(const Field& field, const Json& value, const RunSpec& spec) {
  if (field.name() == "--precision") return spec.precision();
  // The flag sets run.decoupled, too.
  if (field.name() == "--optimizer" && value == "adam" && spec.engine.update.decoupled)
    return "adamw";
  const std::vector<std::string>& choices = field.flag.choices;
  if (value.is_number_integer() && value.get<size_t>() < choices.size())
    return choices[value.get<size_t>()];
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  if (value.is_number_float()) return fmt::format("{:.7g}", value.get<double>());
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (!choices.empty() && choices.back() == "nvme")  // the flag's words for Space::device and file
    return text == "device" ? "none" : text == "file" ? "nvme" : text;
  return text.empty() || value.is_null() ? "-" : printable(text, 100);
}

std::string source_of(const Field& field, const TrainOptions& options, bool is_standard) {
  const auto found = options.sources.find(field.name());
  if (options.is_from_config(field.name()))
    return options.defaulted.count(field.name()) ? "config's default" : "config";
  if (options.has(field.name())) return "flag";
  if (found != options.sources.end())
    return found->second == Source::folder ? "folder" : "checkpoint";
  if (const char* flag = other_flag(field, options))
    return options.is_from_config(flag) ? "config" : fmt::format("flag {}", flag);
  const char* const block = field.stored.config_flag;
  if (block && !is_standard && options.is_from_config(block)) return "config";
  return is_standard ? "default" : "derived";
}

std::vector<zero::ReportSetting> settings_of(const TrainOptions& options, const RunSpec& spec) {
  const TrainOptions standard = options.finetunes ? finetune_options() : TrainOptions();
  std::vector<zero::ReportSetting> settings;
  std::string title;
  for (const FieldGroup& group : field_groups()) {
    if (!group.title.empty()) title = group.title;
    for (const Field& field : group.fields) {
      if (is_alternative(field) || !is_setting(field, options)) continue;
      const bool is_resolved = field.location.in_spec != nullptr;
      const Json value = is_resolved ? value_of(field, spec) : value_of(field, options);
      settings.push_back({title, field.name(), shown_value(field, value, spec),
                          source_of(field, options, value == value_of(field, standard))});
    }
  }
  return settings;
}

std::string explain_settings(const TrainOptions& options, const RunSpec& spec) {
  std::string text, group;
  for (const zero::ReportSetting& setting : settings_of(options, spec)) {
    if (setting.group != group) text += fmt::format("\n{}\n", group = setting.group);
    text += fmt::format("  {:<30}  {:<24}  {}\n", setting.name, setting.value, setting.source);
  }
  return text.substr(1);
}

}  // namespace zg::tools
