#include "tools/options/run_spec.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "tools/options/fields.h"
#include "tools/options/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {
namespace {

// Files inside a checkpoint.
constexpr std::pair<const char*, std::string RunSpec::*> files_of_settings[] = {
    {"tokenizer.json", &RunSpec::tokenizer_json},
    {"tokenizer_config.json", &RunSpec::tokenizer_config},
    {"generation_config.json", &RunSpec::generation_config}};

/// Checks combinations of fields: a number that is computed from them must not overflow or exceed
/// what flags allow.
void check_together(const RunSpec& settings) {
  if (const Seq2SeqOptions& pairs = settings.seq2seq; !pairs.config.empty()) {
    const int64_t positions = seq2seq_model(pairs).config.positions;
    for (const int64_t length : {pairs.max_source, pairs.max_target})
      if (length < 1 || length > positions)
        raise<ConfigError>("data.max_source, max_target: expected 1 to {}, got {}", positions,
                           length);
  } else {
    models::validate(settings.model);
  }
  models::validate(lora_of(settings.lora));
  const auto check_product = [](const char* names, std::initializer_list<int64_t> factors,
                                int64_t limit) {
    int64_t left = limit;
    for (const int64_t factor : factors) left /= factor;
    if (left == 0) raise<ConfigError>("{}: expected a product of at most {}", names, limit);
  };
  check_product("run.micro_batch, accumulation, ranks",
                {settings.micro_batch, settings.accumulation, settings.data_ranks},
                int64_t{1} << 40);
  check_product("run.ranks, tensor_parallel, pipeline_parallel",
                {settings.data_ranks, settings.axes.tensor, settings.axes.pipeline}, largest_count);
  const BatchRampup& rampup = settings.rampup;
  if (rampup.start > 0) {
    if (rampup.increment < 1 || rampup.samples < 1)
      throw ConfigError("run.rampup_increment, rampup_samples: expected 1 or more of both");
    check_rampup(rampup, {.micro = settings.micro_batch,
                          .accumulation = settings.accumulation,
                          .train = settings.samples_per_step()});
  }
  if (settings.epochs == 0.0 && settings.train_samples == 0 && settings.steps > largest_count)
    raise<ConfigError>("run.steps: expected at most {}, got {}", largest_count, settings.steps);
  if (settings.save_top_k == 0)
    throw ConfigError("run.save_top_k: expected 1 or more, or -1 for all, got 0");
  if (settings.skipped_samples > settings.samples)
    raise<ConfigError>(
        "position.skipped_samples: expected at most the {} of position.samples, got {}",
        settings.samples, settings.skipped_samples);
  if (!settings.preset.empty()) zero::precision_preset(settings.preset);
  zero::validate(settings.engine);
  zero::validate(settings.schedule);
}

// Whether absolute_path() of both is equal. The checkpoint of an import has no path, so the data of
// the first run from it is not a change.
bool is_same_path(const Json& before, const Json& now) {
  const std::string path = before.get<std::string>();
  return path.empty() || absolute_path(path) == absolute_path(now.get<std::string>());
}

// The names of the object and of the field in it.
std::pair<std::string, std::string> parts_of(const std::string& key) {
  const size_t dot = key.find('.');
  return {key.substr(0, dot), key.substr(dot + 1)};
}

}  // namespace

RunSpec unknown_run() {
  RunSpec spec;
  spec.steps = 0;
  spec.save_top_k = -1;  // as older versions, which kept every checkpoint
  return spec;
}

std::string to_json(const RunSpec& spec) {
  const RunSpec initial;
  Json json;
  for (const Field* field : stored_fields()) {
    const Json value = value_of(*field, spec);
    if (field->stored.is_sparse && value == value_of(*field, initial)) continue;
    const auto [group, name] = parts_of(field->stored.key);
    json[group][name] = value;
  }
  return json.dump();
}

zero::AuditOptions audit_options(const RunSpec& spec, zero::AuditOptions audit) {
  const RunSpec initial;
  Json settings = Json::object(), layout = Json::object();
  AuditPart of_group = AuditPart::settings;
  for (const FieldGroup& group : field_groups()) {
    if (!group.title.empty()) of_group = group.part;
    for (const Field& field : group.fields) {
      const AuditPart part = field.stored.part.value_or(of_group);
      if (!field.is_stored() || field.stored.is_path || part == AuditPart::none) continue;
      const Json value = value_of(field, spec);
      if (field.stored.is_sparse && value == value_of(field, initial)) continue;
      (part == AuditPart::settings ? settings : layout)[field.stored.key] = value;
    }
  }
  audit.settings = settings.dump();
  audit.layout = layout.dump();
  return audit;
}

RunSpec settings_from_json(const std::string& written, const std::string& path) {
  RunSpec settings = unknown_run();
  settings.micro_batch = 0;
  std::string where;
  try {
    const Json json = parse_json_object<Json>(written, "settings");
    for (const Field* field : stored_fields()) {
      const auto [group, name] = parts_of(field->stored.key);
      where = fmt::format("{}.{}: ", group, name);
      const Json& fields = json.at(group);
      // A field that an older version did not write has its default, which is the behaviour of that
      // version.
      if (field->stored.always || fields.contains(name))
        field->location.codec->read(fields.at(name), field->location.in_spec(settings),
                                    field->bounds());
    }
    where.clear();
    // consolidate --split sets both to 0, but older versions kept skipped_samples.
    if (settings.samples == 0) settings.skipped_samples = 0;
    if (settings.micro_batch == 0)
      throw ConfigError("run.micro_batch: expected a number of 1 or more, got none");
    check_together(settings);
  } catch (const std::exception& error) {
    throw FileError(path + ": the checkpoint's settings cannot be read: " + where + error.what() +
                    "; expected those that zerograd train wrote");
  }
  return settings;
}

models::LoraConfig lora_of(const LoraOptions& options) {
  models::LoraConfig lora{.rank = options.rank,
                          .alpha = options.alpha,
                          .dropout = options.dropout,
                          .rank_stabilised = options.rank_stabilised};
  for (size_t begin = 0; begin <= options.targets.size() && !options.targets.empty();) {
    const size_t end = std::min(options.targets.find(',', begin), options.targets.size());
    lora.targets.push_back(options.targets.substr(begin, end - begin));
    begin = end + 1;
  }
  return lora;
}

LoraOptions lora_options(const models::LoraConfig& lora) {
  return {.rank = lora.rank,
          .alpha = lora.alpha,
          .dropout = lora.dropout,
          .rank_stabilised = lora.rank_stabilised,
          .targets = join(lora.targets, ",")};
}

std::string absolute_path(const std::string& path) {
  if (path.empty() || path == "sort" || path == "adder") return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return path;
  // A path with ".." is not changed: after a link, ".." is the parent of its target.
  const bool has_parent = std::find(absolute.begin(), absolute.end(), "..") != absolute.end();
  return (has_parent ? absolute : absolute.lexically_normal()).string();
}

zero::CheckpointInfo checkpoint_info(const RunSpec& settings) {
  RunSpec portable = settings;
  for (const Field* field : stored_fields())
    if (field->stored.is_path) {
      auto& path = *static_cast<std::string*>(field->location.in_spec(portable));
      path = absolute_path(path);
    }
  zero::CheckpointInfo info{.config_json = to_json(portable), .base = settings.base};
  for (const auto& [name, text] : files_of_settings)
    if (!(settings.*text).empty()) info.files.emplace(name, settings.*text);
  return info;
}

RunSpec settings_from(const zero::CheckpointInfo& info, const std::string& path) {
  RunSpec settings = settings_from_json(info.config_json, path);
  settings.base = info.base;
  if (settings.lora.rank > 0 && settings.base.path.empty())
    throw FileError(path +
                    ": it has adapters, but not the path of their base weights; expected a "
                    "checkpoint that zerograd train wrote");
  for (const auto& [name, text] : files_of_settings)
    if (const auto found = info.files.find(name); found != info.files.end())
      settings.*text = found->second;
  return settings;
}

namespace {

bool is_of_model(const Field& field) {
  RunSpec spec;
  const void* const at = field.location.in_spec ? field.location.in_spec(spec) : nullptr;
  return std::greater_equal<>()(at, static_cast<const void*>(&spec.model)) &&
         std::less<>()(at, static_cast<const void*>(&spec.model + 1));
}

// Copies the stored fields for which `takes` is true, unless a flag sets them.
template <class Takes>
void adopt_fields(const RunSpec& from, TrainOptions& options, Source source, const Takes& takes) {
  for (const Field* field : all_fields()) {
    if (!field->is_stored() || options.has(field->name()) || !takes(*field)) continue;
    field->copy(from, options);
    options.sources[field->name()] = source;
  }
  // A model that is not a preset: its type is the name of its family.
  if (options.sources.count("model.family") && options.model.family != models::Family::gpt)
    options.model_type = name_of(options.model.family);
}

}  // namespace

void set_given(const TrainOptions& options, models::GPTConfig& model) {
  RunSpec spec;
  spec.model = model;
  for (const Field* field : all_fields())
    if (options.is_set(field->name()) && is_of_model(*field)) field->copy(options, spec);
  model = spec.model;
}

RunSpec with_flags(RunSpec saved, const TrainOptions& options) {
  for (const Field* field : all_fields())
    if (field->location.in_spec && options.has(field->name())) field->copy(options, saved);
  return saved;
}

void adopt_model(const RunSpec& theirs, TrainOptions& options) {
  adopt_fields(theirs, options, Source::folder, is_of_model);
}

void adopt(const RunSpec& saved, TrainOptions& options) {
  // The checkpoint comes before a value that a config has only by default.
  for (const std::string& flag : options.defaulted) options.given.erase(flag);
  adopt_fields(saved, options, Source::checkpoint, [&](const Field& field) {
    const Stored& stored = field.stored;
    return (stored.rule == Resume::kept || stored.rule == Resume::must_equal) &&
           (!stored.condition || stored.condition(options, saved)) &&
           !(stored.config_flag && options.is_from_config(stored.config_flag)) &&
           std::ranges::none_of(stored.other_flags,
                                [&](const char* flag) { return options.has(flag); });
  });
  // With another number of ranks the same batch is divided into other micro-batches.
  BatchOptions& batch = options.batch;
  if (!batch.micro && !batch.accumulation) {
    if (!batch.train) batch.train = saved.samples_per_step();
    batch.micro = saved.micro_batch;
    // The same micro-batch, or the largest one that divides every step on this number of ranks.
    const int64_t common = options.rampup.common(*batch.train);
    if (const int64_t share = common / options.data_axis(); common % options.data_axis() == 0)
      batch.micro = zero::largest_divisor(share, *batch.micro);
  } else if (!batch.train) {
    if (!batch.micro) batch.micro = saved.micro_batch;
    // With a config (`place` is not empty) only the config decides about absent numbers.
    if (!batch.accumulation && batch.place.empty()) batch.accumulation = saved.accumulation;
  }
}

std::vector<std::string> check_resumed(const RunSpec& saved, const RunSpec& now) {
  RunSpec before = saved;
  // The dropout is compared as run.dropout, which may change.
  if (!saved.seq2seq.config.empty() && !now.seq2seq.config.empty() &&
      saved.model.dropout != now.model.dropout)
    set_dropout(before.seq2seq, static_cast<double>(now.model.dropout));
  // Models without a table of positions accept any length.
  const bool any_length = saved.model.position != models::Position::learned &&
                          now.model.position != models::Position::learned;
  const bool both_f16 = saved.engine.compute == DType::f16 && now.engine.compute == DType::f16;
  std::vector<std::string> changes;
  for (const Field* row : stored_fields()) {
    const Stored& field = row->stored;
    const std::string& name = field.key;
    const Json value = value_of(*row, before), other = value_of(*row, now);
    if (value == other || field.rule == Resume::unchecked) continue;
    if (field.is_path && is_same_path(value, other)) continue;
    // Older checkpoints do not store a run's length.
    if (saved.steps == 0 && (name == "run.steps" || name == "run.epochs")) continue;
    if (name == "run.initial_scale_power" && both_f16)
      raise<ConfigError>(
          "--initial-scale-power: a resumed run continues with the checkpoint's scale; expected {} "
          "as in the checkpoint, got {}",
          value.dump(), other.dump());
    if (field.rule == Resume::must_equal && !(name == "model.block_size" && any_length))
      throw ConfigError("--resume: " + name + ": expected " + value.dump() +
                        " as in the checkpoint, got " + other.dump() + "; try without " +
                        (row->flag.names.empty() ? "flags that change the model" : row->name()));
    changes.push_back(name + ": " + value.dump() + " in the checkpoint, " + other.dump() + " now");
    if ((name == "run.tensor_parallel" || name == "run.sequence_parallel") &&
        now.axes.reduction_groups == 0)
      changes.back() += "; without --reduction-groups this changes bits";
  }
  const std::string contents = change_of(saved.contents, now.contents, now.data.source);
  if (!contents.empty()) changes.push_back(contents);
  const std::string held_out =
      change_of(saved.validation_contents, now.validation_contents, now.data.validation_source);
  if (!held_out.empty()) changes.push_back(held_out);
  return changes;
}

}  // namespace zg::tools
