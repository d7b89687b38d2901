#include "tests/tools/config_case.h"

#include <optional>

namespace zg::testing {
namespace {

using nlohmann::json;

bool is_schedule(const std::string& section) {
  return tools::path_of(section) == "scheduler.params";
}

}  // namespace

json fields(const tools::TrainOptions& options) {
  const auto& schedule = options.optimisation.schedule;
  const zero::RangeTestOptions& test = schedule.range_test;
  const zero::OneCycleOptions& cycle = schedule.one_cycle;
  const zero::Config& engine = options.optimisation.engine;
  const zero::LossScaleOptions& scaling = engine.loss_scaling;
  const zero::OffloadOptions& offload = engine.offload;
  const SwapOptions& swap = options.place.device.swap;
  const auto count = [](const std::optional<int64_t>& given) { return given.value_or(-1); };
  return {
      {"batch.train", count(options.batch.train)},
      {"batch.micro", count(options.batch.micro)},
      {"batch.accumulation", count(options.batch.accumulation)},
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
      {"precision", options.optimisation.precision()},
      {"compute", name_of(engine.compute)},
      {"grad_accum", name_of(engine.grad_accum)},
      {"stage", engine.stage},
      {"clip_norm", engine.clip_norm},
      {"overlap_comm", engine.overlap_comm},
      {"reduce_bucket_size", engine.reduce_bucket_size},
      {"allgather_bucket_size", engine.allgather_bucket_size},
      {"prefetch_bucket_size", engine.prefetch_bucket_size},
      {"param_persistence_threshold", engine.param_persistence_threshold},
      {"beta1", engine.adam.beta1},
      {"beta2", engine.adam.beta2},
      {"epsilon", engine.adam.epsilon},
      {"weight_decay", engine.adam.weight_decay},
      {"decoupled", engine.adam.decoupled},
      {"stochastic_rounding", engine.adam.stochastic_rounding},
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
      {"nvme_path", options.offload.nvme_path},
      {"sub_group_size", offload.sub_group_size},
      {"optimizer_ratio", offload.optimizer_ratio},
      {"parameters_on_host", offload.parameters_on_host},
      {"parameter_buffer", offload.parameter_buffer},
      {"block_size", swap.block_size},
      {"queue_depth", swap.queue_depth},
      {"cpu_checkpointing", options.offload.cpu_checkpointing},
      {"async_save", options.async_save},
      {"activation_checkpoint", options.activation_checkpoint},
      {"steps_per_print", options.steps_per_print},
      {"dump_memory", options.dump_memory},
      {"reduce_per_square", options.buckets.reduce_per_square},
      {"prefetch_per_square", options.buckets.prefetch_per_square},
      {"persistence_per_width", options.buckets.persistence_per_width},
  };
}

std::string fingerprint(const tools::TrainOptions& options) { return fields(options).dump(); }

json surroundings(const std::string& section) {
  if (section.starts_with("accelerate"))
    return {{"distributed_type", "DEEPSPEED"}, {"deepspeed_config", json::object()}};
  json config = {{"train_micro_batch_size_per_gpu", 4}};
  if (section == "fp16") config["fp16"]["enabled"] = true;
  if (section == "zero_optimization") config[section]["stage"] = 0;
  if (section == "bf16") config["bf16"]["enabled"] = true;
  if (section == "optimizer" || section == "adam")
    config["optimizer"] = {{"type", "Adam"}, {"params", {{"weight_decay", 0.1}}}};
  if (section == "scheduler")
    config["scheduler"] = {{"type", "WarmupLR"}, {"params", json::object()}};
  if (is_schedule(section)) {
    config["scheduler"] = {{"type", section}, {"params", json::object()}};
    json& params = config["scheduler"]["params"];
    if (section.starts_with("Warmup") && section != "WarmupLR") params["total_num_steps"] = 5000;
    if (section == "OneCycle") params = {{"cycle_min_lr", 0.001}, {"cycle_max_lr", 0.01}};
  }
  if (section.starts_with("offload_")) config["zero_optimization"]["stage"] = 3;
  return config;
}

json& section_in(json& config, const std::string& section) {
  if (section.empty() || section == "accelerate") return config;
  if (section == "accelerate_deepspeed") return config["deepspeed_config"];
  if (section == "adam") return config["optimizer"]["params"];
  if (section == "writer") return config["checkpoint"][section];
  if (is_schedule(section)) return config["scheduler"]["params"];
  if (section.starts_with("offload_")) return config["zero_optimization"][section];
  return config[section];
}

json another(const tools::Row& row) {
  const std::string key = row.key, fallback = row.fallback;
  switch (row.type) {
    case tools::Type::boolean:
      return fallback != "true";
    case tools::Type::integer:
      return key == "stage" ? json(2) : json(fallback == "6" ? 8 : 6);
    case tools::Type::number:
      return 0.25;
    case tools::Type::numbers:
      return json{0.5, 0.75};
    case tools::Type::choice: {
      const std::string choices = row.choices;
      const std::string second = choices.substr(choices.find('|') + 1);
      return second.substr(0, second.find('|'));
    }
    case tools::Type::text:
      return key == "type" && std::string(row.section) == "optimizer" ? "Lamb" : "LRRangeTest";
    default:
      return json{{"other", 1}};
  }
}

}  // namespace zg::testing
