#include "tools/options/fields.h"

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

std::vector<Flag> flags_named(const std::vector<std::string>& names, TrainOptions& options) {
  std::vector<Flag> flags;
  for (const std::string& name : names)
    for (const Field* field : all_fields())
      if (field->name() == name) flags.push_back(flag_of(*field, options));
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

}  // namespace zg::tools
