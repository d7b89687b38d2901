#include "tools/options/settings.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/text/text.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/schedule.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* tokenizer_file = "tokenizer.json";  // file name inside a checkpoint

/// The range of an integer field.
struct Between {
  int64_t least, most;
};
/// Larger numbers are rounded by other JSON readers. Sums of two do not overflow.
constexpr int64_t exact = int64_t{1} << 53;
constexpr Between extent{1, largest_count}, count{0, largest_count}, any_size{1, exact},
    any_count{0, exact}, zero_stage{0, 3}, exponent{-126, 127}, kept{-1, largest_count},
    token_id{0, largest_count};
constexpr Between any_seed{0, std::numeric_limits<int64_t>::max()};
constexpr Range finite{0.0, 1.7e308, false, false, "a finite number of 0 or more"};
constexpr Range share{0.0, 1.0, false, false, "a number from 0 to 1"};
constexpr Range split_weight{0.0, 1e12, false, false, "three weights from 0"};
constexpr Range epoch_count{0.0, 1e6, false, false, "a number from 0 to 1e6"};
/// The range of a loss, which may be NaN.
struct AnyNumber {};
constexpr AnyNumber any_number;

// The list of fields for both reading and writing: `visit(group, name, field, bounds)`. Numbers
// have bounds: those of their flag, if there is one.
template <class SettingsType, class Visit>
void for_each_field(SettingsType& settings, const Visit& visit) {
  visit("model", "layers", settings.model.layers, extent);
  visit("model", "heads", settings.model.heads, extent);
  visit("model", "width", settings.model.width, extent);
  visit("model", "vocabulary", settings.model.vocabulary, extent);
  visit("model", "block_size", settings.model.block_size, extent);
  visit("model", "tied", settings.model.tied);
  visit("model", "family", settings.model.family);
  visit("model", "position", settings.model.position);
  visit("model", "embedding_norm", settings.model.embedding_norm);
  visit("data", "source", settings.data.source);
  visit("data", "order", settings.data.order);
  visit("data", "validation_fraction", settings.data.validation_fraction, below_one);
  visit("data", "split", settings.data.split, split_weight);
  visit("data", "tokenizer", settings.data.tokenizer);
  visit("data", "tokenizer_checksum", settings.data.tokenizer_checksum);
  visit("data", "characters", settings.characters);
  visit("data", "bytes", settings.contents.bytes, any_count);
  visit("data", "checksum", settings.contents.checksum);
  visit("data", "bos_token", settings.special_tokens.bos, token_id);
  visit("data", "eos_tokens", settings.special_tokens.eos, token_id);
  visit("data", "pad_token", settings.special_tokens.pad, token_id);
  visit("run", "micro_batch", settings.micro_batch, extent);
  visit("run", "accumulation", settings.accumulation, extent);
  visit("run", "ranks", settings.ranks, extent);
  visit("run", "tensor_parallel", settings.axes.tensor, extent);
  visit("run", "pipeline_parallel", settings.axes.pipeline, extent);
  visit("run", "sequence_parallel", settings.axes.sequence_parallel);
  visit("run", "rampup_start", settings.rampup.start, count);
  visit("run", "rampup_increment", settings.rampup.increment, count);
  visit("run", "rampup_samples", settings.rampup.samples, count);
  visit("run", "dropout", settings.model.dropout, below_one);
  visit("run", "rate", settings.optimisation.schedule.rate, not_negative);
  visit("run", "schedule", settings.optimisation.schedule.kind);
  visit("run", "warmup_steps", settings.optimisation.schedule.warmup_num_steps, any_count);
  visit("run", "schedule_steps", settings.optimisation.schedule.total_num_steps, any_count);
  visit("run", "warmup_type", settings.optimisation.schedule.warmup_type);
  visit("run", "warmup_min_rate", settings.optimisation.schedule.warmup_min_lr, not_negative);
  visit("run", "warmup_min_ratio", settings.optimisation.schedule.warmup_min_ratio, share);
  visit("run", "cosine_min_ratio", settings.optimisation.schedule.cos_min_ratio, share);
  visit("run", "min_rate", settings.optimisation.schedule.min_rate, not_negative);
  auto& annealing = settings.optimisation.schedule.annealing;
  visit("run", "warmup_samples", annealing.lr_warmup_samples, any_count);
  visit("run", "decay_samples", annealing.lr_decay_samples, any_count);
  visit("run", "decay_style", annealing.lr_decay_style);
  auto& range_test = settings.optimisation.schedule.range_test;
  visit("run", "range_test_step_size", range_test.step_size, any_size);
  visit("run", "range_test_step_rate", range_test.step_rate, finite);
  visit("run", "range_test_staircase", range_test.staircase);
  auto& cycle = settings.optimisation.schedule.one_cycle;
  visit("run", "cycle_min_rate", cycle.cycle_min_lr, finite);
  visit("run", "cycle_decay_rate", cycle.decay_lr_rate, finite);
  visit("run", "cycle_first_steps", cycle.cycle_first_step_size, any_count);
  visit("run", "cycle_second_steps", cycle.cycle_second_step_size, any_count);
  visit("run", "cycle_decay_steps", cycle.decay_step_size, any_count);
  visit("run", "cycle_momentum", cycle.cycle_momentum);
  visit("run", "cycle_min_momentum", cycle.cycle_min_mom, finite);
  visit("run", "cycle_max_momentum", cycle.cycle_max_mom, finite);
  visit("run", "cycle_momentum_decay", cycle.decay_mom_rate, finite);
  visit("run", "weight_decay", settings.optimisation.engine.adam.weight_decay, not_negative);
  visit("run", "beta1", settings.optimisation.engine.adam.beta1, below_one);
  visit("run", "beta2", settings.optimisation.engine.adam.beta2, below_one);
  visit("run", "epsilon", settings.optimisation.engine.adam.epsilon, not_negative);
  visit("run", "decoupled", settings.optimisation.engine.adam.decoupled);
  visit("run", "stochastic_rounding", settings.optimisation.engine.adam.stochastic_rounding);
  visit("run", "clip_norm", settings.optimisation.engine.clip_norm, not_negative);
  visit("run", "preset", settings.optimisation.preset);
  visit("run", "compute", settings.optimisation.engine.compute);
  visit("run", "load", settings.optimisation.engine.load);
  visit("run", "optimizer", settings.optimisation.engine.optimizer);
  visit("run", "initial_scale_power", settings.optimisation.engine.loss_scaling.initial_scale_power,
        exponent);
  visit("run", "loss_scale", settings.optimisation.engine.loss_scaling.loss_scale, not_negative);
  visit("run", "loss_scale_window", settings.optimisation.engine.loss_scaling.window, any_size);
  visit("run", "hysteresis", settings.optimisation.engine.loss_scaling.hysteresis, any_size);
  visit("run", "consecutive_hysteresis",
        settings.optimisation.engine.loss_scaling.consecutive_hysteresis);
  visit("run", "min_loss_scale", settings.optimisation.engine.loss_scaling.min_loss_scale,
        positive);
  visit("run", "stage", settings.optimisation.engine.stage, zero_stage);
  visit("run", "offload_parameter", settings.optimisation.engine.offload.parameter);
  visit("run", "offload_gradient", settings.optimisation.engine.offload.gradient);
  visit("run", "offload_optimizer", settings.optimisation.engine.offload.optimizer);
  visit("run", "offload_activation", settings.optimisation.engine.offload.activation);
  visit("run", "grad_accum", settings.optimisation.engine.grad_accum);
  visit("run", "reduce_at_boundary", settings.optimisation.engine.reduce_at_boundary);
  visit("run", "nccl_reduce", settings.optimisation.engine.nccl_reduce);
  visit("run", "seed", settings.seed, any_seed);
  visit("run", "steps", settings.steps, any_count);
  visit("run", "epochs", settings.epochs, epoch_count);
  visit("run", "train_samples", settings.train_samples, any_count);
  visit("run", "save_top_k", settings.save_top_k, kept);
  visit("position", "samples", settings.samples, any_count);
  visit("position", "skipped_samples", settings.skipped_samples, any_count);
  visit("position", "loss", settings.loss, any_number);
}

const char* order_name(models::Order order) {
  return order == models::Order::random ? "random" : "sequential";
}

Json value_of(models::Order order) { return order_name(order); }
Json value_of(models::Family family) { return models::name_of(family); }
Json value_of(models::Position position) { return models::name_of(position); }
Json value_of(Space space) { return zg::name_of(space); }
Json value_of(DType dtype) { return name_of(dtype); }
Json value_of(zero::ScheduleKind kind) { return zero::name_of(kind); }
Json value_of(zero::WarmupType type) { return type == zero::WarmupType::linear ? "linear" : "log"; }
Json value_of(zero::DecayStyle style) { return zero::name_of(style); }
Json value_of(double number) {
  // JSON has no infinities, and a diverged run must still save.
  return std::isfinite(number) ? Json(number)
                               : Json(std::isnan(number) ? "nan"
                                      : number > 0       ? "inf"
                                                         : "-inf");
}
Json value_of(std::optional<int32_t> token) { return token ? Json(*token) : Json(nullptr); }
template <class T>
Json value_of(const T& value) {
  return value;
}

std::string brief(const Json& json) { return printable(json.dump()); }

[[noreturn]] void refuse(const std::string& expected, const Json& got) {
  throw ConfigError("expected " + expected + ", got " + brief(got));
}

/// Reads the enumerator that value_of() writes with this name.
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
  read_one_of(json, family, {models::Family::gpt, models::Family::bloom});
}
void read(const Json& json, models::Position& position) {
  read_one_of(json, position, {models::Position::learned, models::Position::alibi});
}
void read(const Json& json, DType& dtype) {
  read_one_of(json, dtype, {DType::f32, DType::bf16, DType::f16});
}
void read(const Json& json, Space& space) {
  read_one_of(json, space, {Space::device, Space::host, Space::file});
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
void read(const Json& json, bool& value) {
  if (!json.is_boolean()) refuse("true or false", json);
  value = json.get<bool>();
}
// A zero byte would cut off a path when the file is opened.
void read(const Json& json, std::string& text) {
  if (!json.is_string()) refuse("a text", json);
  text = json.get<std::string>();
  if (text.find('\0') != std::string::npos) refuse("a text without zero bytes", json);
}

// The conversions of the JSON parser would wrap and round.
template <class Integer>
requires std::is_integral_v<Integer>
void read(const Json& json, Integer& value, const Between& bounds) {
  const bool fits = json.is_number_integer() &&
                    !(json.is_number_unsigned() &&
                      json.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits || json.get<int64_t>() < bounds.least || json.get<int64_t>() > bounds.most)
    refuse(
        text("a whole number from %lld to %lld", (long long)bounds.least, (long long)bounds.most),
        json);
  value = static_cast<Integer>(json.get<int64_t>());
}
void read(const Json& json, std::optional<int32_t>& token, const Between& bounds) {
  token.reset();
  if (!json.is_null()) read(json, token.emplace(), bounds);
}
void read(const Json& json, std::vector<int32_t>& tokens, const Between& bounds) {
  if (!json.is_array()) refuse("a list of tokens", json);
  tokens.clear();
  for (const Json& token : json) read(token, tokens.emplace_back(), bounds);
}
template <class Real>
requires std::is_floating_point_v<Real>
void read(const Json& json, Real& value, const Range& range) {
  const double number = json.is_number() ? json.get<double>() : NAN;
  const bool above = range.open_below ? number > range.least : number >= range.least;
  const bool below = range.open_above ? number < range.most : number <= range.most;
  if (!above || !below) refuse(range.words, json);
  value = static_cast<Real>(number);
}
void read(const Json& json, std::array<double, 3>& values, const Range& range) {
  if (!json.is_array() || json.size() != values.size()) refuse(range.words, json);
  for (size_t i = 0; i < values.size(); ++i) read(json[i], values[i], range);
}
void read(const Json& json, double& number, AnyNumber) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double other : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()})
    if (value_of(other) == json) return void(number = other);
  if (!json.is_number()) refuse("a number", json);
  number = json.get<double>();
}

/// Checks combinations of fields: a number that is computed from them must not overflow or exceed
/// what flags allow.
void check_together(const Settings& settings) {
  models::validate(settings.model);
  const auto check_product = [](const char* names, std::initializer_list<int64_t> factors,
                                int64_t most) {
    int64_t left = most;
    for (const int64_t factor : factors) left /= factor;
    if (left == 0)
      throw ConfigError(text("%s: expected a product of at most %lld", names, (long long)most));
  };
  check_product("run.micro_batch, accumulation, ranks",
                {settings.micro_batch, settings.accumulation, settings.ranks}, int64_t{1} << 40);
  check_product("run.ranks, tensor_parallel, pipeline_parallel",
                {settings.ranks, settings.axes.tensor, settings.axes.pipeline}, largest_count);
  const BatchRampup& rampup = settings.rampup;
  if (rampup.start > 0) {
    if (rampup.increment < 1 || rampup.samples < 1)
      throw ConfigError("run.rampup_increment, rampup_samples: expected 1 or more of both");
    check_rampup(rampup, {.micro = settings.micro_batch,
                          .accumulation = settings.accumulation,
                          .train = settings.samples_per_step()});
  }
  if (settings.epochs == 0.0 && settings.train_samples == 0 && settings.steps > largest_count)
    throw ConfigError(text("run.steps: expected at most %lld, got %lld", (long long)largest_count,
                           (long long)settings.steps));
  if (settings.save_top_k == 0)
    throw ConfigError("run.save_top_k: expected 1 or more, or -1 for all, got 0");
  if (settings.skipped_samples > settings.samples)
    throw ConfigError(
        text("position.skipped_samples: expected at most the %lld of "
             "position.samples, got %lld",
             (long long)settings.samples, (long long)settings.skipped_samples));
  if (!settings.optimisation.preset.empty()) zero::precision_preset(settings.optimisation.preset);
  zero::validate(settings.optimisation.engine);
  zero::validate(settings.optimisation.schedule);
}

bool is_recent(const std::string& group, const std::string& name) {
  return group == "run" || name.starts_with("tokenizer") || name.ends_with("_token") ||
         name == "eos_tokens" || name == "split" || name == "bytes" || name == "checksum" ||
         name == "skipped_samples" || name == "family" || name == "position" ||
         name == "embedding_norm";
}

// Whether a difference is reported as a line of its own. Characters are checked where the data is
// read. Older checkpoints do not store a run's length, so it is not compared.
bool is_compared(const Settings& saved, const std::string& group, const std::string& name) {
  if (group == "position" || name == "characters" || name == "bytes" || name == "checksum")
    return false;
  return saved.steps > 0 || (name != "steps" && name != "epochs");
}

bool names_a_path(const std::string& group, const std::string& name) {
  return group == "data" && (name == "source" || name == "tokenizer");
}

// Compares paths independent of their spelling. An import has no path, so its first data is not a
// change.
bool is_same_path(const Json& before, const Json& now) {
  const std::string path = before.get<std::string>();
  return path.empty() || absolute_path(path) == absolute_path(now.get<std::string>());
}

Json json_of(const Settings& settings) {
  Json json;
  for_each_field(settings, [&](const char* group, const char* name, const auto& field,
                               const auto&...) { json[group][name] = value_of(field); });
  return json;
}

}  // namespace

std::string to_json(const Settings& settings) { return json_of(settings).dump(); }

Settings settings_from_json(const std::string& written, const std::string& path) {
  Settings settings;
  std::string where;
  try {
    // Code that reads or prints a value recurses to its depth.
    const Json json = Json::parse(written, [](int depth, Json::parse_event_t, Json&) {
      constexpr int deepest = 64;
      if (depth > deepest) throw ConfigError("are nested deeper than 64 levels");
      return true;
    });
    for_each_field(settings,
                   [&](const char* group, const char* name, auto& field, const auto&... bounds) {
                     where = std::string(group) + "." + name + ": ";
                     const Json& fields = json.at(group);
                     // Older versions behaved like the default of a field that they did not know.
                     if (fields.contains(name) || !is_recent(group, name))
                       read(fields.at(name), field, bounds...);
                   });
    where.clear();
    // An older consolidate --split kept the skipped samples of the original run.
    if (settings.samples == 0) settings.skipped_samples = 0;
    if (settings.micro_batch == 0) throw ConfigError("run.micro_batch: expected it, got nothing");
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
  // Remove "." only: through a link, ".." may lead to another folder than its spelling says.
  const bool climbs = std::find(absolute.begin(), absolute.end(), "..") != absolute.end();
  return (climbs ? absolute : absolute.lexically_normal()).string();
}

zero::CheckpointInfo checkpoint_info(const Settings& settings) {
  Settings portable = settings;
  portable.data.source = absolute_path(settings.data.source);
  portable.data.tokenizer = absolute_path(settings.data.tokenizer);
  zero::CheckpointInfo info{.config_json = to_json(portable)};
  if (!settings.tokenizer_json.empty()) info.files.emplace(tokenizer_file, settings.tokenizer_json);
  return info;
}

Settings settings_from(const zero::CheckpointInfo& info, const std::string& path) {
  Settings settings = settings_from_json(info.config_json, path);
  const auto tokenizer = info.files.find(tokenizer_file);
  if (tokenizer != info.files.end()) settings.tokenizer_json = tokenizer->second;
  return settings;
}

std::vector<std::string> check_resumed(const Settings& saved, const Settings& now) {
  const Json before = json_of(saved), after = json_of(now);
  std::vector<std::string> changes;
  for (const auto& [group, fields] : before.items()) {
    for (const auto& [name, value] : fields.items()) {
      const Json& other = after.at(group).at(name);
      if (value == other || !is_compared(saved, group, name)) continue;
      if (names_a_path(group, name) && is_same_path(value, other)) continue;
      const auto scaled = [](const Json& run) { return run.at("compute") == "f16"; };
      if (name == "initial_scale_power" && scaled(fields) && scaled(after.at(group)))
        throw ConfigError(
            "--initial-scale-power: the scale goes on where the checkpoint left it; "
            "expected " +
            value.dump() + " as in the checkpoint, got " + other.dump());
      const std::string difference = group + "." + name + ": ";
      // ALiBi models have no table of positions and accept any length.
      const bool any_length = name == "block_size" && fields.at("position") == "alibi" &&
                              after.at(group).at("position") == "alibi";
      if (group == "model" && !any_length)
        throw ConfigError("--resume: " + difference + "expected " + value.dump() +
                          " as in the checkpoint, got " + other.dump() +
                          "; try without the flags that size the model");
      changes.push_back(difference + value.dump() + " in the checkpoint, " + other.dump() + " now");
    }
  }
  const std::string contents = change_of(saved.contents, now.contents, now.data.source);
  if (!contents.empty()) changes.push_back(contents);
  return changes;
}

}  // namespace zg::tools
