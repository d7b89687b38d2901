#include "tools/options/run_spec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "tools/options/fields.h"
#include "tools/options/lora_flags.h"
#include "tools/options/seq2seq_flags.h"
#include "zerograd/models/gpt/family.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;

// Files inside a checkpoint.
constexpr std::pair<const char*, std::string RunSpec::*> files_of_settings[] = {
    {"tokenizer.json", &RunSpec::tokenizer_json},
    {"tokenizer_config.json", &RunSpec::tokenizer_config},
    {"generation_config.json", &RunSpec::generation_config}};

const char* name_of(models::Order order) {
  return order == models::Order::random ? "random" : "sequential";
}
const char* name_of(zero::WarmupType type) {
  return type == zero::WarmupType::linear ? "linear" : "log";
}

template <class T>
Json value_of(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return name_of(value);
  else
    return value;
}
Json value_of(double number) {
  // JSON has no infinities, and a diverged run must still save.
  return std::isfinite(number) ? Json(number)
                               : Json(std::isnan(number) ? "nan"
                                      : number > 0       ? "inf"
                                                         : "-inf");
}
Json value_of(const std::vector<zero::ParameterGroup>& groups) { return zero::text_of(groups); }
Json value_of(std::optional<int32_t> token) { return token ? Json(*token) : Json(nullptr); }
Json value_of(const Stored& field) {
  return std::visit(
      [](auto value) {
        if constexpr (std::is_pointer_v<decltype(value)>) return Json(value_of(*value));
        return Json();
      },
      field.value);
}

// The stored fields, in the order of the JSON.
std::vector<Stored> stored_fields(TrainOptions& options, RunSpec& saved) {
  std::vector<Stored> all;
  for (FieldGroup& group : fields_of(options, saved))
    for (Field& field : group.fields)
      if (field.stored.rule != Resume::not_stored) all.push_back(std::move(field.stored));
  std::sort(all.begin(), all.end(),
            [](const Stored& a, const Stored& b) { return a.key.place < b.key.place; });
  return all;
}

std::string brief(const Json& json) { return printable(json.dump()); }

[[noreturn]] void refuse(const std::string& expected, const Json& got) {
  throw ConfigError("expected " + expected + ", got " + brief(got));
}

/// Sets `value` to the one of `choices` that value_of() writes as `json`.
template <class E>
void read_one_of(const Json& json, E& value, std::initializer_list<E> choices) {
  std::vector<std::string> names;
  for (const E choice : choices) {
    if (value_of(choice) == json) return void(value = choice);
    names.push_back(value_of(choice).template get<std::string>());
  }
  refuse("one of " + join(names, ", "), json);
}
void read(const Json& json, models::Order& order) {
  read_one_of(json, order, {models::Order::random, models::Order::sequential});
}
void read(const Json& json, models::Family& family) {
  for (const models::Family one : models::all_families)
    if (value_of(one) == json) return void(family = one);
  refuse(models::list_families(&models::FamilyRow::name), json);
}
void read(const Json& json, models::Position& position) {
  read_one_of(json, position,
              {models::Position::learned, models::Position::alibi, models::Position::rope});
}
void read(const Json& json, nn::NormKind& kind) {
  read_one_of(json, kind, {nn::NormKind::layer, nn::NormKind::rms});
}
void read(const Json& json, nn::MlpKind& kind) {
  using enum nn::MlpKind;
  read_one_of(json, kind, {gelu_tanh, gelu_erf, gated_silu, gated_gelu_tanh, gated_gelu_erf});
}
void read(const Json& json, RopeScaling& scaling) {
  using enum RopeScaling;
  read_one_of(json, scaling, {none, linear, llama3, yarn});
}
void read(const Json& json, DType& dtype) {
  read_one_of(json, dtype, {DType::f32, DType::bf16, DType::f16});
}
void read(const Json& json, Space& space) {
  read_one_of(json, space, {Space::device, Space::host, Space::file});
}
void read(const Json& json, LossMean& mean) {
  read_one_of(json, mean, {LossMean::micro_batch, LossMean::token});
}
void read(const Json& json, OptimizerRule& rule) {
  using enum OptimizerRule;
  read_one_of(json, rule, {adam, lion, sgd, muon, adafactor});
}
void read(const Json& json, zero::MuonRate& rate) {
  read_one_of(json, rate, {zero::MuonRate::original, zero::MuonRate::match_rms_adamw});
}
void read(const Json& json, zero::ScheduleKind& kind) {
  kind = zero::schedule_kind(json.get<std::string>());
}
void read(const Json& json, zero::WarmupType& type) {
  read_one_of(json, type, {zero::WarmupType::linear, zero::WarmupType::log});
}
void read(const Json& json, zero::DecayStyle& style) {
  style = zero::decay_style(json.get<std::string>());
}
void read(const Json& json, std::vector<zero::ParameterGroup>& groups) {
  if (!json.is_string()) refuse("a text", json);
  groups = zero::parameter_groups(json.get<std::string>());
}
void read(const Json& json, bool& value) {
  if (!json.is_boolean()) refuse("true or false", json);
  value = json.get<bool>();
}
// A zero byte would end a path too early when the file is opened.
void read(const Json& json, std::string& text) {
  if (!json.is_string()) refuse("a text", json);
  text = json.get<std::string>();
  if (text.find('\0') != std::string::npos) refuse("a text without zero bytes", json);
}

// The conversions of nlohmann::json are not used: they wrap or round a number that does not fit.
template <class Integer>
requires std::is_integral_v<Integer>
void read(const Json& json, Integer& value, const Bounds& limits) {
  const Between& bounds = std::get<Between>(limits);
  const bool fits = json.is_number_integer() &&
                    !(json.is_number_unsigned() &&
                      json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || json.get<int64_t>() < bounds.minimum || json.get<int64_t>() > bounds.maximum)
    refuse(fmt::format("a whole number from {} to {}", bounds.minimum, bounds.maximum), json);
  value = static_cast<Integer>(json.get<int64_t>());
}
void read(const Json& json, std::optional<int32_t>& token, const Bounds& bounds) {
  token.reset();
  if (!json.is_null()) read(json, token.emplace(), bounds);
}
void read(const Json& json, std::vector<int32_t>& tokens, const Bounds& bounds) {
  if (!json.is_array()) refuse("a list of tokens", json);
  tokens.clear();
  for (const Json& token : json) read(token, tokens.emplace_back(), bounds);
}
template <class Real>
requires std::is_floating_point_v<Real>
void read(const Json& json, Real& value, const Bounds& bounds) {
  if (std::holds_alternative<AnyNumber>(bounds)) {
    constexpr Real infinity = std::numeric_limits<Real>::infinity();
    for (const Real other : {infinity, -infinity, std::numeric_limits<Real>::quiet_NaN()})
      if (value_of(other) == json) return void(value = other);
    if (!json.is_number()) refuse("a number", json);
    return void(value = json.get<Real>());
  }
  const Range& range = std::get<Range>(bounds);
  const double number = json.is_number() ? json.get<double>() : NAN;
  const bool above = range.open_below ? number > range.minimum : number >= range.minimum;
  const bool below = range.open_above ? number < range.maximum : number <= range.maximum;
  value = static_cast<Real>(number);  // a float may overflow within the range
  if (!above || !below || !std::isfinite(value)) refuse(range.words, json);
}
void read(const Json& json, std::array<double, 3>& values, const Bounds& bounds) {
  if (!json.is_array() || json.size() != values.size()) refuse(std::get<Range>(bounds).words, json);
  for (size_t i = 0; i < values.size(); ++i) read(json[i], values[i], bounds);
}
void read(const Json& json, const Stored& field) {
  std::visit(
      [&](auto value) {
        if constexpr (requires { read(json, *value); })
          read(json, *value);
        else if constexpr (std::is_pointer_v<decltype(value)>)
          read(json, *value, field.bounds);
      },
      field.value);
}

/// Checks combinations of fields: a number that is computed from them must not overflow or exceed
/// what flags allow.
void check_together(const RunSpec& settings) {
  if (const Seq2SeqOptions& pairs = settings.seq2seq; !pairs.config.empty()) {
    const int64_t positions = seq2seq_model(pairs).config.positions;
    for (const int64_t length : {pairs.max_source, pairs.max_target})
      if (length < 1 || length > positions)
        throw ConfigError(fmt::format("data.max_source, max_target: expected 1 to {}, got {}",
                                      positions, length));
  } else {
    models::validate(settings.model);
  }
  models::validate(lora_of(settings.lora));
  const auto check_product = [](const char* names, std::initializer_list<int64_t> factors,
                                int64_t limit) {
    int64_t left = limit;
    for (const int64_t factor : factors) left /= factor;
    if (left == 0)
      throw ConfigError(fmt::format("{}: expected a product of at most {}", names, limit));
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
    throw ConfigError(
        fmt::format("run.steps: expected at most {}, got {}", largest_count, settings.steps));
  if (settings.save_top_k == 0)
    throw ConfigError("run.save_top_k: expected 1 or more, or -1 for all, got 0");
  if (settings.skipped_samples > settings.samples)
    throw ConfigError(
        fmt::format("position.skipped_samples: expected at most the {} of "
                    "position.samples, got {}",
                    settings.samples, settings.skipped_samples));
  if (!settings.optimisation.preset.empty()) zero::precision_preset(settings.optimisation.preset);
  zero::validate(settings.optimisation.engine);
  zero::validate(settings.optimisation.schedule);
}

// Whether absolute_path() of both is equal. The checkpoint of an import has no path, so the data of
// the first run from it is not a change.
bool is_same_path(const Json& before, const Json& now) {
  const std::string path = before.get<std::string>();
  return path.empty() || absolute_path(path) == absolute_path(now.get<std::string>());
}

// The names of the object and of the field in it.
std::pair<std::string, std::string> parts_of(const Key& key) {
  const std::string name = key.name;
  const size_t dot = name.find('.');
  return {name.substr(0, dot), name.substr(dot + 1)};
}

Json json_of(const RunSpec& settings) {
  TrainOptions unused;
  RunSpec values = settings, initial;
  const std::vector<Stored> fields = stored_fields(unused, values),
                            initial_fields = stored_fields(unused, initial);
  Json json;
  for (size_t i = 0; i < fields.size(); ++i) {
    const Json value = value_of(fields[i]);
    if (fields[i].is_sparse && value == value_of(initial_fields[i])) continue;
    const auto [group, name] = parts_of(fields[i].key);
    json[group][name] = value;
  }
  return json;
}

}  // namespace

std::string to_json(const RunSpec& settings) { return json_of(settings).dump(); }

RunSpec settings_from_json(const std::string& written, const std::string& path) {
  RunSpec settings;
  TrainOptions unused;
  std::string where;
  try {
    const Json json = parse_json_object<Json>(written, "settings");
    for (const Stored& field : stored_fields(unused, settings)) {
      const auto [group, name] = parts_of(field.key);
      where = fmt::format("{}.{}: ", group, name);
      const Json& fields = json.at(group);
      // A field that an older version did not write has its default, which is the behaviour of that
      // version.
      if (field.key.always || fields.contains(name)) read(fields.at(name), field);
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
  TrainOptions unused;
  for (const Stored& field : stored_fields(unused, portable))
    if (field.is_path) {
      std::string& path = *std::get<std::string*>(field.value);
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
                    ": it has adapters, and does not say of which weights; expected a "
                    "checkpoint that zerograd train wrote");
  for (const auto& [name, text] : files_of_settings)
    if (const auto found = info.files.find(name); found != info.files.end())
      settings.*text = found->second;
  return settings;
}

void adopt(const RunSpec& saved, TrainOptions& options) {
  RunSpec values = saved;
  const auto given = [&](const std::string& flag) { return options.given.count(flag) > 0; };
  for (const FieldGroup& group : fields_of(options, values))
    for (const auto& [flag, stored, config, config_flags] : group.fields) {
      const std::vector<const char*>& others = stored.other_flags;
      const bool decided = (!flag.names.empty() && given(flag.names.front())) ||
                           std::any_of(others.begin(), others.end(), given);
      if (stored.take && !decided && (!stored.condition || stored.condition())) stored.take();
    }
  // With another number of ranks the same batch is divided into other micro-batches.
  BatchOptions& batch = options.batch;
  if (!batch.micro && !batch.accumulation) {
    if (!batch.train) batch.train = saved.samples_per_step();
    batch.micro = saved.micro_batch;
    // The same micro-batch, or the largest one that divides every step on this number of ranks.
    const int64_t common = batch.rampup.common(*batch.train);
    if (const int64_t share = common / options.data_ranks(); common % options.data_ranks() == 0)
      batch.micro = zero::largest_divisor(share, *batch.micro);
  } else if (!batch.train) {
    if (!batch.micro) batch.micro = saved.micro_batch;
    // With a config (`place` is not empty) the config alone decides about absent numbers.
    if (!batch.accumulation && batch.place.empty()) batch.accumulation = saved.accumulation;
  }
}

std::vector<std::string> check_resumed(const RunSpec& saved, const RunSpec& now) {
  TrainOptions unused;
  RunSpec before_values = saved, after_values = now;
  // The dropout is compared as run.dropout, which may change.
  if (!saved.seq2seq.config.empty() && !now.seq2seq.config.empty() &&
      saved.model.dropout != now.model.dropout)
    set_dropout(before_values.seq2seq, static_cast<double>(now.model.dropout));
  const std::vector<Stored> before = stored_fields(unused, before_values);
  const std::vector<Stored> after = stored_fields(unused, after_values);
  // Models without a table of positions accept any length.
  const bool any_length = saved.model.position != models::Position::learned &&
                          now.model.position != models::Position::learned;
  const bool both_f16 = saved.optimisation.engine.compute == DType::f16 &&
                        now.optimisation.engine.compute == DType::f16;
  std::vector<std::string> changes;
  for (size_t i = 0; i < before.size(); ++i) {
    const Stored& field = before[i];
    const std::string name = field.key.name;
    const Json value = value_of(field), other = value_of(after[i]);
    if (value == other || field.rule == Resume::unchecked) continue;
    if (field.is_path && is_same_path(value, other)) continue;
    // Older checkpoints do not store a run's length.
    if (saved.steps == 0 && (name == "run.steps" || name == "run.epochs")) continue;
    if (name == "run.initial_scale_power" && both_f16)
      throw ConfigError(
          "--initial-scale-power: a resumed run continues with the checkpoint's scale; "
          "expected " +
          value.dump() + " as in the checkpoint, got " + other.dump());
    if (field.rule == Resume::must_equal && !(name == "model.block_size" && any_length))
      throw ConfigError("--resume: " + name + ": expected " + value.dump() +
                        " as in the checkpoint, got " + other.dump() +
                        "; try without flags that change the model");
    changes.push_back(name + ": " + value.dump() + " in the checkpoint, " + other.dump() + " now");
  }
  const std::string contents = change_of(saved.contents, now.contents, now.data.source);
  if (!contents.empty()) changes.push_back(contents);
  const std::string held_out =
      change_of(saved.validation_contents, now.validation_contents, now.data.validation_source);
  if (!held_out.empty()) changes.push_back(held_out);
  return changes;
}

}  // namespace zg::tools
