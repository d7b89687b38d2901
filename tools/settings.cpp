#include "tools/settings.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "zero/schedule.h"

namespace zg::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* tokenizer_file = "tokenizer.json";  // of a checkpoint

// One list of fields for both directions: `visit(group, name, field)`.
template <class SettingsType, class Visit>
void for_each_field(SettingsType& settings, const Visit& visit) {
  visit("model", "layers", settings.model.layers);
  visit("model", "heads", settings.model.heads);
  visit("model", "width", settings.model.width);
  visit("model", "vocabulary", settings.model.vocabulary);
  visit("model", "block_size", settings.model.block_size);
  visit("model", "tied", settings.model.tied);
  visit("model", "family", settings.model.family);
  visit("model", "position", settings.model.position);
  visit("model", "embedding_norm", settings.model.embedding_norm);
  visit("data", "source", settings.data.source);
  visit("data", "order", settings.data.order);
  visit("data", "validation_fraction", settings.data.validation_fraction);
  visit("data", "split", settings.data.split);
  visit("data", "tokenizer", settings.data.tokenizer);
  visit("data", "tokenizer_checksum", settings.data.tokenizer_checksum);
  visit("data", "characters", settings.characters);
  visit("data", "bytes", settings.contents.bytes);
  visit("data", "checksum", settings.contents.checksum);
  visit("data", "bos_token", settings.special_tokens.bos);
  visit("data", "eos_tokens", settings.special_tokens.eos);
  visit("data", "pad_token", settings.special_tokens.pad);
  visit("run", "micro_batch", settings.micro_batch);
  visit("run", "accumulation", settings.accumulation);
  visit("run", "ranks", settings.ranks);
  visit("run", "tensor_parallel", settings.axes.tensor);
  visit("run", "pipeline_parallel", settings.axes.pipeline);
  visit("run", "sequence_parallel", settings.axes.sequence_parallel);
  visit("run", "rampup_start", settings.rampup.start);
  visit("run", "rampup_increment", settings.rampup.increment);
  visit("run", "rampup_samples", settings.rampup.samples);
  visit("run", "dropout", settings.model.dropout);
  visit("run", "rate", settings.optimisation.schedule.rate);
  visit("run", "schedule", settings.optimisation.schedule.kind);
  visit("run", "warmup_steps", settings.optimisation.schedule.warmup_num_steps);
  visit("run", "schedule_steps", settings.optimisation.schedule.total_num_steps);
  visit("run", "warmup_type", settings.optimisation.schedule.warmup_type);
  visit("run", "warmup_min_rate", settings.optimisation.schedule.warmup_min_lr);
  visit("run", "warmup_min_ratio", settings.optimisation.schedule.warmup_min_ratio);
  visit("run", "cosine_min_ratio", settings.optimisation.schedule.cos_min_ratio);
  visit("run", "min_rate", settings.optimisation.schedule.min_rate);
  auto& annealing = settings.optimisation.schedule.annealing;
  visit("run", "warmup_samples", annealing.lr_warmup_samples);
  visit("run", "decay_samples", annealing.lr_decay_samples);
  visit("run", "decay_style", annealing.lr_decay_style);
  auto& range_test = settings.optimisation.schedule.range_test;
  visit("run", "range_test_step_size", range_test.step_size);
  visit("run", "range_test_step_rate", range_test.step_rate);
  visit("run", "range_test_staircase", range_test.staircase);
  auto& cycle = settings.optimisation.schedule.one_cycle;
  visit("run", "cycle_min_rate", cycle.cycle_min_lr);
  visit("run", "cycle_decay_rate", cycle.decay_lr_rate);
  visit("run", "cycle_first_steps", cycle.cycle_first_step_size);
  visit("run", "cycle_second_steps", cycle.cycle_second_step_size);
  visit("run", "cycle_decay_steps", cycle.decay_step_size);
  visit("run", "cycle_momentum", cycle.cycle_momentum);
  visit("run", "cycle_min_momentum", cycle.cycle_min_mom);
  visit("run", "cycle_max_momentum", cycle.cycle_max_mom);
  visit("run", "cycle_momentum_decay", cycle.decay_mom_rate);
  visit("run", "weight_decay", settings.optimisation.engine.adam.weight_decay);
  visit("run", "beta1", settings.optimisation.engine.adam.beta1);
  visit("run", "beta2", settings.optimisation.engine.adam.beta2);
  visit("run", "epsilon", settings.optimisation.engine.adam.epsilon);
  visit("run", "decoupled", settings.optimisation.engine.adam.decoupled);
  visit("run", "stochastic_rounding", settings.optimisation.engine.adam.stochastic_rounding);
  visit("run", "clip_norm", settings.optimisation.engine.clip_norm);
  visit("run", "preset", settings.optimisation.preset);
  visit("run", "compute", settings.optimisation.engine.compute);
  visit("run", "load", settings.optimisation.engine.load);
  visit("run", "optimizer", settings.optimisation.engine.optimizer);
  visit("run", "initial_scale_power",
        settings.optimisation.engine.loss_scaling.initial_scale_power);
  visit("run", "loss_scale", settings.optimisation.engine.loss_scaling.loss_scale);
  visit("run", "loss_scale_window", settings.optimisation.engine.loss_scaling.window);
  visit("run", "hysteresis", settings.optimisation.engine.loss_scaling.hysteresis);
  visit("run", "consecutive_hysteresis",
        settings.optimisation.engine.loss_scaling.consecutive_hysteresis);
  visit("run", "min_loss_scale", settings.optimisation.engine.loss_scaling.min_loss_scale);
  visit("run", "stage", settings.optimisation.engine.stage);
  visit("run", "offload_parameter", settings.optimisation.engine.offload.parameter);
  visit("run", "offload_gradient", settings.optimisation.engine.offload.gradient);
  visit("run", "offload_optimizer", settings.optimisation.engine.offload.optimizer);
  visit("run", "offload_activation", settings.optimisation.engine.offload.activation);
  visit("run", "grad_accum", settings.optimisation.engine.grad_accum);
  visit("run", "reduce_at_boundary", settings.optimisation.engine.reduce_at_boundary);
  visit("run", "nccl_reduce", settings.optimisation.engine.nccl_reduce);
  visit("run", "seed", settings.seed);
  visit("run", "steps", settings.steps);
  visit("run", "epochs", settings.epochs);
  visit("run", "train_samples", settings.train_samples);
  visit("run", "save_top_k", settings.save_top_k);
  visit("position", "samples", settings.samples);
  visit("position", "skipped_samples", settings.skipped_samples);
  visit("position", "loss", settings.loss);
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
  // JSON has no infinities: a diverged run still saves.
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

void read(const Json& json, models::Order& order) {
  order =
      json.get<std::string>() == "sequential" ? models::Order::sequential : models::Order::random;
}
/// One of two names.
template <class E>
void read_named(const Json& json, E& value, E first, E second) {
  const std::string name = json.get<std::string>();
  if (name != models::name_of(first) && name != models::name_of(second))
    throw ConfigError(name + "; expected " + models::name_of(first) + " or " +
                      models::name_of(second));
  value = name == models::name_of(first) ? first : second;
}
void read(const Json& json, models::Family& family) {
  read_named(json, family, models::Family::gpt, models::Family::bloom);
}
void read(const Json& json, models::Position& position) {
  read_named(json, position, models::Position::learned, models::Position::alibi);
}
void read(const Json& json, DType& dtype) {
  const std::string name = json.get<std::string>();
  for (DType known : {DType::f32, DType::bf16, DType::f16})
    if (name == name_of(known)) return void(dtype = known);
  throw ConfigError("dtype " + name + "; expected f32, bf16 or f16");
}
void read(const Json& json, Space& space) {
  const std::string name = json.get<std::string>();
  for (Space known : {Space::device, Space::host, Space::file})
    if (name == zg::name_of(known)) return void(space = known);
  throw ConfigError("offload " + name + "; expected device, host or file");
}
void read(const Json& json, zero::ScheduleKind& kind) {
  kind = zero::schedule_kind(json.get<std::string>());
}
void read(const Json& json, zero::WarmupType& type) {
  type = json.get<std::string>() == "linear" ? zero::WarmupType::linear : zero::WarmupType::log;
}
void read(const Json& json, zero::DecayStyle& style) {
  style = zero::decay_style(json.get<std::string>());
}
void read(const Json& json, double& number) {
  number = json.is_string() ? std::stod(json.get<std::string>()) : json.get<double>();
}
void read(const Json& json, std::optional<int32_t>& token) {
  token = json.is_null() ? std::nullopt : std::optional(json.get<int32_t>());
}
template <class T>
void read(const Json& json, T& value) {
  json.get_to(value);
}

bool is_recent(const std::string& group, const std::string& name) {
  return group == "run" || name.starts_with("tokenizer") || name.ends_with("_token") ||
         name == "eos_tokens" || name == "split" || name == "bytes" || name == "checksum" ||
         name == "skipped_samples" || name == "family" || name == "position" ||
         name == "embedding_norm";
}

// Whether a difference is a line of its own. Characters are checked where the data is read; what
// older checkpoints do not say of a run's length cannot have changed.
bool is_compared(const Settings& saved, const std::string& group, const std::string& name) {
  if (group == "position" || name == "characters" || name == "bytes" || name == "checksum")
    return false;
  return saved.steps > 0 || (name != "steps" && name != "epochs");
}

bool names_a_path(const std::string& group, const std::string& name) {
  return group == "data" && (name == "source" || name == "tokenizer");
}

// However the two are spelled; an import had none, so that the first one is no change.
bool is_same_path(const Json& before, const Json& now) {
  const std::string path = before.get<std::string>();
  return path.empty() || absolute_path(path) == absolute_path(now.get<std::string>());
}

Json json_of(const Settings& settings) {
  Json json;
  for_each_field(settings, [&](const char* group, const char* name, const auto& field) {
    json[group][name] = value_of(field);
  });
  return json;
}

}  // namespace

std::string to_json(const Settings& settings) { return json_of(settings).dump(); }

Settings settings_from_json(const std::string& written, const std::string& path) {
  Settings settings;
  try {
    const Json json = Json::parse(written);
    for_each_field(settings, [&](const char* group, const char* name, auto& field) {
      const Json& fields = json.at(group);
      // What an older version did not know it did as the default says.
      if (fields.contains(name) || !is_recent(group, name)) read(fields.at(name), field);
    });
  } catch (const std::exception& error) {
    throw FileError(path + ": the checkpoint's settings cannot be read: " + error.what() +
                    "; expected one that zerograd train wrote");
  }
  return settings;
}

std::string absolute_path(const std::string& path) {
  if (path.empty() || path == "sort" || path == "adder") return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return path;
  // Without "." in it; ".." may lead elsewhere than its spelling, through a link.
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
      // Without a table of positions a model takes any length.
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
