#include "tests/tools/config_case.h"

#include <sstream>

namespace zg::testing {
namespace {

using nlohmann::json;

bool is_schedule(const std::string& section) {
  return tools::path_of(section) == "scheduler.params";
}

}  // namespace

std::string fingerprint(const tools::TrainOptions& options) {
  std::ostringstream out;
  out.precision(17);
  const auto& schedule = options.optimisation.schedule;
  const zero::Config& engine = options.optimisation.engine;
  const zero::LossScaleOptions& scaling = engine.loss_scaling;
  out << options.batch.train.value_or(-1) << ' ' << options.batch.micro.value_or(-1) << ' '
      << options.batch.accumulation.value_or(-1) << '\n';
  out << zero::name_of(schedule.kind) << ' ' << schedule.rate << ' ' << schedule.warmup_num_steps
      << ' ' << schedule.total_num_steps << ' ' << static_cast<int>(schedule.warmup_type) << ' '
      << schedule.warmup_min_lr << ' ' << schedule.warmup_min_ratio << ' ' << schedule.cos_min_ratio
      << '\n';
  const zero::RangeTestOptions& test = schedule.range_test;
  const zero::OneCycleOptions& cycle = schedule.one_cycle;
  out << test.step_size << ' ' << test.step_rate << ' ' << test.staircase << ' '
      << cycle.cycle_min_lr << ' ' << cycle.decay_lr_rate << ' ' << cycle.cycle_first_step_size
      << ' ' << cycle.cycle_second_step_size << ' ' << cycle.decay_step_size << ' '
      << cycle.cycle_momentum << ' ' << cycle.cycle_min_mom << ' ' << cycle.cycle_max_mom << ' '
      << cycle.decay_mom_rate << '\n';
  out << options.optimisation.precision() << ' ' << name_of(engine.compute) << ' '
      << name_of(engine.grad_accum) << ' ' << engine.stage << ' ' << engine.clip_norm << ' '
      << engine.overlap_comm << ' ' << engine.reduce_bucket_size << ' '
      << engine.allgather_bucket_size << ' ' << engine.prefetch_bucket_size << ' '
      << engine.param_persistence_threshold << '\n';
  out << engine.adam.beta1 << ' ' << engine.adam.beta2 << ' ' << engine.adam.epsilon << ' '
      << engine.adam.weight_decay << ' ' << engine.adam.decoupled << '\n';
  out << scaling.loss_scale << ' ' << scaling.initial_scale_power << ' ' << scaling.window << ' '
      << scaling.hysteresis << ' ' << scaling.consecutive_hysteresis << ' '
      << scaling.min_loss_scale << '\n';
  const zero::OffloadOptions& offload = engine.offload;
  for (const Space space :
       {offload.parameter, offload.gradient, offload.optimizer, offload.activation})
    out << name_of(space) << ' ';
  const SwapOptions& swap = options.place.device.swap;
  out << options.offload.nvme_path << ' ' << offload.sub_group_size << ' ' << swap.block_size << ' '
      << swap.queue_depth << ' ';
  out << options.offload.cpu_checkpointing << '\n'
      << options.steps_per_print << ' ' << options.dump_memory << ' '
      << options.buckets.reduce_per_square << ' ' << options.buckets.prefetch_per_square << ' '
      << options.buckets.persistence_per_width << '\n';
  return out.str();
}

json surroundings(const std::string& section) {
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
  if (section.empty()) return config;
  if (section == "adam") return config["optimizer"]["params"];
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
