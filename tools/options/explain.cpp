#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/options/fields.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/text.h"

// train --explain-settings.
namespace zg::tools {

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
  return !field.is_stored() && std::any_of(all.begin(), all.end(), [&](const Field* other) {
    return other->is_stored() && other->location.in_options(options) == at;
  });
}

// The value as the flag's word, if the flag has words.
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

}  // namespace

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

std::string explain_settings(const TrainOptions& options, const RunSpec& spec) {
  const TrainOptions standard = options.finetunes ? finetune_options() : TrainOptions();
  std::string text;
  for (const FieldGroup& group : field_groups()) {
    if (!group.title.empty()) text += fmt::format("\n{}\n", group.title);
    for (const Field& field : group.fields) {
      if (is_alternative(field)) continue;
      const bool is_resolved = field.location.in_spec != nullptr;
      const Json value = is_resolved ? value_of(field, spec) : value_of(field, options);
      text += fmt::format("  {:<30}  {:<24}  {}\n", field.name(), shown_value(field, value, spec),
                          source_of(field, options, value == value_of(field, standard)));
    }
  }
  return text.substr(1);
}

}  // namespace zg::tools
