#include "zerograd/zero/deepspeed/check.h"

#include <set>

#include "zerograd/runtime/text/format.h"

namespace zg::zero::deepspeed {
namespace {

// Sections where DeepSpeed replaces "auto" by the default.
bool drops_auto(const std::string& section) {
  static const std::set<std::string> sections = {
      "zero_optimization", "offload_param", "offload_optimizer", "fp16", "bf16", "tensorboard",
      "csv_monitor",       "wandb"};
  return sections.count(section) > 0;
}

std::string value_of(const Setting& setting) {
  if (setting.automatic) return "auto";
  if (setting.null) return "null";
  switch (setting.row->type) {
    case Type::boolean:
      return setting.boolean ? "true" : "false";
    case Type::integer:
      return std::to_string(setting.integer);
    case Type::number:
      return shown(setting.number);
    case Type::numbers: {
      std::vector<std::string> words;
      for (const double number : setting.numbers) words.push_back(shown(number));
      return fmt::format("[{}]", join(words, ", "));
    }
    default:
      return setting.text;
  }
}

class Checker {
 public:
  Checker(CheckedConfig& config, bool lenient) : config_(config), lenient_(lenient) {}

  void check_section(const std::string& section, const Value& object) {
    sections_.insert(section);
    const bool is_off = is_switched_off(section, object);
    for (const Value::Member& member : object.members) {
      const Row* row = find_row(section, member.key);
      if (is_off && member.key != "enabled")
        keep_if_valid(row, member);
      else if (row)
        check_key(*row, member, object);
      else
        refuse_unknown(section, member);
    }
  }

  // Fills the keys that a section of the config leaves out.
  void fill_defaults() {
    for (const Row& row : rows()) {
      if (sections_.count(row.section) == 0 || row.type == Type::section || *row.fallback == '\0')
        continue;
      const std::string name = name_of(row);
      if (config_.settings.count(name) == 0)
        config_.settings.emplace(name, default_of(row, config_.version));
    }
  }

 private:
  static std::string name_of(const Row& row) { return std::string(row.section) + "." + row.key; }
  std::string where(const Row& row, Position at) const {
    return place(config_.file, at, path_of(row));
  }

  static bool is_switched_off(const std::string& section, const Value& object) {
    if (!find_row(section, "enabled")) return false;
    for (const Value::Member& member : object.members)
      if (member.key == "enabled") return is_disabled(member.value);
    return false;
  }

  // A section that is switched off has no effect and is not checked. A flag may switch it on, so
  // its valid values are kept.
  void keep_if_valid(const Row* row, const Value::Member& member) {
    if (!row || row->type == Type::section || member.value.text == "auto") return;
    try {
      Setting setting = coerced(*row, member.value, "");
      setting.at = member.at;
      config_.settings.emplace(name_of(*row), setting);
    } catch (const ConfigError&) {
    }
  }

  // DeepSpeed ignores keys that it does not know at its top level, and accelerate those of its
  // deepspeed_config. Here only keys that are similar to no other are ignored.
  static bool is_ignored(const std::string& section, const std::string& advice) {
    return (section.empty() || section == "accelerate_deepspeed") &&
           (advice.starts_with("try leaving it out") || advice.ends_with(", of another section?"));
  }

  void refuse_unknown(const std::string& section, const Value::Member& member) {
    const std::string in = section == "accelerate" ? "" : path_of(section);
    const std::string begin =
        place(config_.file, member.at, in.empty() ? member.key : in + "." + member.key);
    const std::string advice = advice_on(section, member.key);
    // A config for SageMaker has keys of its own, and is not supported.
    if (section == "accelerate" && config_.unsupported) return;
    if (!lenient_ && is_ignored(section, advice)) {
      config_.without_effect.push_back(
          fmt::format("{}accepted without effect ({} has no such key and ignores it)", begin,
                      section.empty() ? "DeepSpeed" : "accelerate"));
      return;
    }
    if (!lenient_)
      raise<ConfigError>("{}unknown key; expected a key of {}, got '{}'; {}", begin,
                         section.empty() ? "DeepSpeed's config"
                         : in.empty()    ? "accelerate's config"
                                         : in,
                         printable(member.key), advice);
    config_.warnings.push_back(fmt::format("{}unknown key, ignored; {}", begin, advice));
  }

  void check_key(const Row& row, const Value::Member& member, const Value& object) {
    const Value& value = member.value;
    const std::string begin = where(row, member.at);
    if (row.type == Type::section && is_shorthand(row, member)) return;
    // accelerate treats a key with the value null as absent.
    if (value.kind == Value::Kind::null && std::string_view(row.section).starts_with("accelerate"))
      return;
    const bool is_auto = value.kind == Value::Kind::text && value.text == "auto";
    if (is_auto && !row.automatic && drops_auto(row.section)) return;
    Setting setting;
    if (is_auto && row.automatic)
      setting = {.row = &row, .given = true, .automatic = true};
    else
      setting = coerced(row, value, place(config_.file, value.at, path_of(row)));
    setting.at = member.at;
    const auto [other, is_new] = config_.settings.emplace(name_of(row), setting);
    if (!is_new)
      raise<ConfigError>(
          "{}{} is another name of a key that stands in line {} too; expected it once, "
          "got both; try leaving one of the two out",
          begin, member.key, other->second.at.line);
    if (row.effect == Effect::nothing && !is_switched_off(row.choices, value))
      config_.without_effect.push_back(
          fmt::format("{}accepted without effect ({})", begin, row.why));
    if (row.effect == Effect::only && !is_default(setting, config_.version))
      note_unsupported(config_, fmt::format("{}{}: {}; expected {}; try leaving it out", begin,
                                            shown(value), row.why, accepted(row)));
    if (row.type == Type::section && !setting.null) check_child(row, member, object);
  }

  std::string accepted(const Row& row) const {
    const std::string fallback = fallback_of(row, config_.version);
    return fallback == "null" && row.type == Type::boolean ? "false" : fallback;
  }

  // zero_optimization: true is stage 1.
  bool is_shorthand(const Row& row, const Value::Member& member) {
    if (std::string(row.key) != "zero_optimization" || member.value.kind != Value::Kind::boolean)
      return false;
    sections_.insert(row.key);
    Setting stage{.row = find_row(row.key, "stage"), .at = member.at, .given = true};
    stage.integer = member.value.boolean ? 1 : 0;
    stage.number = static_cast<double>(stage.integer);
    config_.settings.emplace(name_of(*stage.row), stage);
    return true;
  }

  void check_child(const Row& row, const Value::Member& member, const Value& object) {
    if (std::string(row.key) != "params") {
      check_section(row.choices, member.value);
      if (std::string(row.key) == "optimizer" || std::string(row.key) == "scheduler")
        check_typed(row.key, member);
      return;
    }
    const std::string params = section_of_params(row.section, object);
    if (!params.empty()) check_section(params, member.value);
  }

  // The section that lists the keys of `params`; empty if the type is missing or not supported.
  static std::string section_of_params(const std::string& section, const Value& object) {
    for (const Value::Member& member : object.members)
      if (member.key == "type" && member.value.kind == Value::Kind::text)
        return section == "optimizer" ? section_of_optimizer(member.value.text)
                                      : section_of_schedule(member.value.text);
    return "";
  }

  void check_typed(const std::string& section, const Value::Member& member) {
    const Setting* type = config_.find(section, "type");
    const std::string names = join_names(section);
    if (!type)
      raise<ConfigError>("{}a type is missing; expected one of {}, got none; try \"type\": \"{}\"",
                         place(config_.file, member.at, section), names,
                         section == "optimizer" ? "AdamW" : "WarmupLR");
    const std::string params =
        section == "optimizer" ? section_of_optimizer(type->text) : section_of_schedule(type->text);
    if (!params.empty()) {
      sections_.insert(params);
      return;
    }
    const std::string begin = config_.place_of(*type);
    if (section == "optimizer" && is_unsupported_optimizer(type->text))
      return note_unsupported(
          config_, fmt::format("{}'{}': this version lacks it; expected one of {}; try {}", begin,
                               type->text, names, instead_of_optimizer(type->text)));
    raise<ConfigError>("{}expected one of {}, got '{}'{}", begin, names, printable(type->text),
                       name_advice(section, type->text));
  }

  CheckedConfig& config_;
  const bool lenient_;
  std::set<std::string> sections_;
};

const Setting* given(const CheckedConfig& config, const char* section, const char* key) {
  const Setting* setting = config.find(section, key);
  return setting && setting->given ? setting : nullptr;
}

std::string line_of(const Setting& setting) { return std::to_string(setting.at.line); }

void check_precision(CheckedConfig& config) {
  const Setting *fp16 = given(config, "fp16", "enabled"), *bf16 = given(config, "bf16", "enabled");
  if (fp16 && bf16 && fp16->boolean && bf16->boolean)
    raise<ConfigError>(
        "{}bfloat16 and fp16 modes cannot be simultaneously enabled; expected one of "
        "them, got both, fp16 in line {}; try \"enabled\": false for one",
        config.place_of(*bf16), line_of(*fp16));
  const Setting* states = given(config, "bf16", "bf16_optimizer_states");
  const Setting* weights = given(config, "bf16", "bf16_master_weights_and_grads");
  const bool has_states = states && states->boolean, has_weights = weights && weights->boolean;
  if (config.is_on("bf16", "enabled") && has_states != has_weights)
    note_unsupported(config, config.place_of(has_states ? *states : *weights) +
                                 "masters and moments have one dtype; expected "
                                 "bf16_master_weights_and_grads and bf16_optimizer_states both "
                                 "true or both false; try both");
  if (const Setting* sums = given(config, "data_types", "grad_accum_dtype");
      sums && sums->text == "fp16")
    note_unsupported(config, config.place_of(*sums) +
                                 "'fp16': sums of gradients would overflow; expected fp32 or bf16; "
                                 "try fp32");
}

void check_offload(CheckedConfig& config) {
  const char* const pairs[][2] = {{"cpu_offload", "offload_optimizer"},
                                  {"cpu_offload_param", "offload_param"}};
  for (const auto& [old_key, new_key] : pairs) {
    const Setting* before = given(config, "zero_optimization", old_key);
    const Setting* now = given(config, "zero_optimization", new_key);
    if (before && now && !before->null && !now->null)
      raise<ConfigError>(
          "{}{} is the old name of {}, which stands in line {} too; expected one of "
          "them, got both; try leaving {} out",
          config.place_of(*before), old_key, new_key, line_of(*now), old_key);
  }
}

void check_sizes(const CheckedConfig& config) {
  const Setting* gather = given(config, "zero_optimization", "allgather_bucket_size");
  const Setting* stage = config.find("zero_optimization", "stage");
  const bool is_checked = stage && (stage->integer == 1 || stage->integer == 2);
  if (is_checked && gather && !gather->automatic && gather->integer % 2 != 0)
    raise<ConfigError>("{}expected an even number, got {}; try {}", config.place_of(*gather),
                       gather->integer, gather->integer + 1);
}

void check_scheduler(const CheckedConfig& config) {
  const Setting* type = config.find("scheduler", "type");
  if (!type) return;
  for (const Row& row : rows()) {
    const bool needed = row.section == type->text && !*row.fallback;
    if (!needed || config.find(row.section, row.key)) continue;
    const bool total = std::string(row.key) == "total_num_steps";
    raise<ConfigError>("{}{} needs {}; expected it in scheduler.params, got none; try \"{}\": {}",
                       config.place_of(*type), type->text, row.key, row.key,
                       total ? "\"auto\", which is the run's --steps" : "0.001");
  }
}

void check_accelerate(CheckedConfig& config) {
  const Setting* type = config.find("accelerate", "distributed_type");
  for (const char* kind : {"FSDP", "MEGATRON_LM", "XLA", "TPU"})
    if (type && type->text == kind)
      note_unsupported(config,
                       fmt::format("{}{}: this version lacks it; expected DEEPSPEED, got {}; try "
                                   "DEEPSPEED with zero_stage: 3",
                                   config.place_of(*type), kind, kind));
  const auto processes = config.settings.find("accelerate.num_processes");
  if (type && type->text == "NO" && processes != config.settings.end() &&
      processes->second.integer > 1) {
    processes->second.integer = 1;
    config.without_effect.push_back(
        config.place_of(processes->second) +
        "accepted without effect (distributed_type: NO is one process)");
  }
  const Setting* precision = config.find("accelerate", "mixed_precision");
  if (precision && precision->text == "fp8")
    note_unsupported(config, config.place_of(*precision) +
                                 "fp8: this version lacks it; expected no, fp16 or bf16; try bf16");
}

}  // namespace

const Setting* CheckedConfig::find(const std::string& section, const std::string& key) const {
  const auto found = settings.find(section + "." + key);
  return found == settings.end() ? nullptr : &found->second;
}

bool CheckedConfig::is_on(const std::string& section, const std::string& key) const {
  const Setting* setting = find(section, key);
  return setting && setting->boolean;
}

std::string CheckedConfig::place_of(const Setting& setting) const {
  return place(file, setting.at, path_of(*setting.row));
}

std::vector<std::string> CheckedConfig::state() const {
  std::vector<std::string> lines;
  for (const auto& [name, setting] : settings)
    if (setting.row->type != Type::section && setting.row->type != Type::any)
      lines.push_back(fmt::format("{} = {}{}", path_of(*setting.row), value_of(setting),
                                  setting.given ? "" : " (default)"));
  return lines;
}

void note_unsupported(CheckedConfig& config, const std::string& message) {
  if (!config.unsupported) config.unsupported = message;
}

void check_contradictions(CheckedConfig& config) {
  check_precision(config);
  check_offload(config);
  check_sizes(config);
  check_scheduler(config);
  check_accelerate(config);
}

CheckedConfig check_config(const Value& root, const std::string& file, DeepSpeedVersion version,
                           bool lenient, const std::string& section) {
  if (root.kind != Value::Kind::object)
    raise<ConfigError>("{}expected an object {{...}}, got {}{}", place(file, root.at, ""),
                       shown(root),
                       section.empty() ? "; try { \"train_batch_size\": 16 }"
                                       : "; try distributed_type: DEEPSPEED");
  CheckedConfig config{.file = file, .version = version};
  Checker checker(config, lenient);
  checker.check_section(section, root);
  checker.fill_defaults();
  check_contradictions(config);
  return config;
}

}  // namespace zg::zero::deepspeed
