#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/support/error_message.h"
#include "zerograd/zero/deepspeed/check.h"
#include "zerograd/zero/deepspeed/hjson.h"

// Helpers for tests of DeepSpeed's configs: load() reads, checks and applies a text; other
// functions make a config in which one key has an effect.
namespace zg::testing {

struct Loaded {
  zero::deepspeed::CheckedConfig config;
  zero::DeepSpeedConfig settings;  ///< set by the config; options.program if it is Unsupported
};

/// Reads, checks and applies a config. Dtypes and spaces that follow from several fields are not
/// applied (see apply_config()). Unsupported is recorded in `config` and not thrown.
inline Loaded load(const std::string& text, const zero::DeepSpeedOptions& options = {}) {
  using namespace zero::deepspeed;
  Loaded loaded{.config = check_config(read_hjson(text, "c.json"), "c.json", options.version,
                                       options.lenient),
                .settings = options.program};
  if (!loaded.config.unsupported) loaded.settings = apply_config(loaded.config, options);
  return loaded;
}

/// Everything that a config can set, by name; -1: a count that was not given.
inline nlohmann::json fields(const zero::DeepSpeedConfig& config) {
  const zero::ScheduleOptions& schedule = config.schedule;
  const zero::RangeTestOptions& test = schedule.range_test;
  const zero::OneCycleOptions& cycle = schedule.one_cycle;
  const zero::Config& engine = config.engine;
  const zero::LossScaleOptions& scaling = engine.loss_scaling;
  const zero::OffloadOptions& offload = engine.offload;
  const SwapOptions& swap = config.swap;
  const auto count = [](const std::optional<int64_t>& given) { return given.value_or(-1); };
  return {
      {"batch.train", count(config.batch.train)},
      {"batch.micro", count(config.batch.micro)},
      {"batch.accumulation", count(config.batch.accumulation)},
      {"kind", zero::name_of(schedule.kind)},
      {"rate", schedule.rate},
      {"warmup_num_steps", schedule.warmup_num_steps},
      {"total_num_steps", schedule.total_num_steps},
      {"linear", schedule.warmup_type == zero::WarmupType::linear},
      {"warmup_min_lr", schedule.warmup_min_lr},
      {"warmup_min_ratio", schedule.warmup_min_ratio},
      {"cos_min_ratio", schedule.cos_min_ratio},
      {"test.step_size", test.step_size},
      {"test.step_rate", test.step_rate},
      {"test.staircase", test.staircase},
      {"cycle_min_lr", cycle.cycle_min_lr},
      {"decay_lr_rate", cycle.decay_lr_rate},
      {"cycle_first_step_size", cycle.cycle_first_step_size},
      {"cycle_second_step_size", cycle.cycle_second_step_size},
      {"decay_step_size", cycle.decay_step_size},
      {"cycle_momentum", cycle.cycle_momentum},
      {"cycle_min_mom", cycle.cycle_min_mom},
      {"cycle_max_mom", cycle.cycle_max_mom},
      {"decay_mom_rate", cycle.decay_mom_rate},
      {"precision", config.preset.empty() ? name_of(engine.compute) : config.preset},
      {"compute", name_of(engine.compute)},
      {"grad_accum", name_of(engine.grad_accum)},
      {"stage", engine.stage},
      {"clip_norm", engine.clip_norm},
      {"overlap_comm", engine.overlap_comm},
      {"reduce_bucket_size", engine.reduce_bucket_size},
      {"allgather_bucket_size", engine.allgather_bucket_size},
      {"prefetch_bucket_size", engine.prefetch_bucket_size},
      {"param_persistence_threshold", engine.param_persistence_threshold},
      {"rule", name_of(engine.update.rule)},
      {"momentum", engine.update.momentum},
      {"dampening", engine.update.dampening},
      {"nesterov", engine.update.nesterov},
      {"muon_momentum", engine.update.muon.momentum},
      {"muon_nesterov", engine.update.muon.nesterov},
      {"muon_rate", name_of(engine.update.muon.rate)},
      {"muon_adam_rate", engine.update.muon.adam_rate},
      {"beta1", engine.update.beta1},
      {"beta2", engine.update.beta2},
      {"epsilon", engine.update.epsilon},
      {"weight_decay", engine.update.weight_decay},
      {"decoupled", engine.update.decoupled},
      {"stochastic_rounding", engine.update.stochastic_rounding},
      {"loss_scale", scaling.loss_scale},
      {"initial_scale_power", scaling.initial_scale_power},
      {"window", scaling.window},
      {"hysteresis", scaling.hysteresis},
      {"consecutive_hysteresis", scaling.consecutive_hysteresis},
      {"min_loss_scale", scaling.min_loss_scale},
      {"offload.parameter", name_of(offload.parameter)},
      {"offload.gradient", name_of(offload.gradient)},
      {"offload.optimizer", name_of(offload.optimizer)},
      {"offload.activation", name_of(offload.activation)},
      {"nvme_path", swap.directory},
      {"sub_group_size", offload.sub_group_size},
      {"optimizer_ratio", offload.optimizer_ratio},
      {"parameters_on_host", offload.parameters_on_host},
      {"parameter_buffer", offload.parameter_buffer},
      {"block_size", swap.block_size},
      {"queue_depth", swap.queue_depth},
      {"cpu_checkpointing", config.cpu_checkpointing},
      {"async_save", config.async_save},
      {"activation_checkpoint", config.activation_checkpoint},
      {"steps_per_print", config.steps_per_print},
      {"memory_breakdown", config.memory_breakdown},
      {"reduce_per_square", config.buckets.reduce_per_square},
      {"prefetch_per_square", config.buckets.prefetch_per_square},
      {"persistence_per_width", config.buckets.persistence_per_width},
  };
}

/// Returns the smallest config in which a key of this section has an effect.
inline nlohmann::json smallest_config_for(const std::string& section) {
  if (section.starts_with("accelerate"))
    return {{"distributed_type", "DEEPSPEED"}, {"deepspeed_config", nlohmann::json::object()}};
  nlohmann::json config = {{"train_micro_batch_size_per_gpu", 4}};
  if (section == "fp16") config["fp16"]["enabled"] = true;
  if (section == "zero_optimization") config[section]["stage"] = 0;
  if (section == "bf16") config["bf16"]["enabled"] = true;
  if (section == "optimizer" || section == "adam")
    config["optimizer"] = {{"type", "Adam"}, {"params", {{"weight_decay", 0.1}}}};
  if (section == "lion")
    config["optimizer"] = {{"type", "Lion"}, {"params", {{"weight_decay", 0.1}}}};
  if (section == "muon")
    config["optimizer"] = {{"type", "Muon"}, {"params", {{"weight_decay", 0.1}}}};
  if (section == "sgd") config["optimizer"] = {{"type", "SGD"}, {"params", {{"momentum", 0.5}}}};
  if (section == "scheduler")
    config["scheduler"] = {{"type", "WarmupLR"}, {"params", nlohmann::json::object()}};
  if (zero::deepspeed::path_of(section) == "scheduler.params") {
    config["scheduler"] = {{"type", section}, {"params", nlohmann::json::object()}};
    nlohmann::json& params = config["scheduler"]["params"];
    if (section.starts_with("Warmup") && section != "WarmupLR") params["total_num_steps"] = 5000;
    if (section == "OneCycle") params = {{"cycle_min_lr", 0.001}, {"cycle_max_lr", 0.01}};
  }
  if (section.starts_with("offload_")) config["zero_optimization"]["stage"] = 3;
  return config;
}

/// Where in a config the keys of a section stand.
inline nlohmann::json& section_in(nlohmann::json& config, const std::string& section) {
  if (section.empty() || section == "accelerate") return config;
  if (section == "accelerate_deepspeed") return config["deepspeed_config"];
  if (zero::deepspeed::path_of(section) == "optimizer.params") return config["optimizer"]["params"];
  if (section == "writer") return config["checkpoint"][section];
  if (zero::deepspeed::path_of(section) == "scheduler.params") return config["scheduler"]["params"];
  if (section.starts_with("offload_")) return config["zero_optimization"][section];
  return config[section];
}

/// Returns a value of the key's type that is not its default.
inline nlohmann::json other_than_default(const zero::deepspeed::Row& row) {
  const std::string key = row.key, fallback = row.fallback;
  switch (row.type) {
    case zero::deepspeed::Type::boolean:
      return fallback != "true";
    case zero::deepspeed::Type::integer:
      return key == "stage" ? nlohmann::json(2) : nlohmann::json(fallback == "6" ? 8 : 6);
    case zero::deepspeed::Type::number:
      return 0.25;
    case zero::deepspeed::Type::numbers:
      return nlohmann::json{0.5, 0.75};
    case zero::deepspeed::Type::choice: {
      const std::string choices = row.choices;
      const std::string second = choices.substr(choices.find('|') + 1);
      return second.substr(0, second.find('|'));
    }
    case zero::deepspeed::Type::text:
      return key == "type" && std::string(row.section) == "optimizer" ? "Lamb" : "LRRangeTest";
    default:
      return nlohmann::json{{"other", 1}};
  }
}

}  // namespace zg::testing
