#include "tests/tools/config_case.h"

#include <sstream>

namespace zg::testing {

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
  out << options.steps_per_print << ' ' << options.dump_memory << ' '
      << options.buckets.reduce_per_square << ' ' << options.buckets.prefetch_per_square << ' '
      << options.buckets.persistence_per_width << '\n';
  return out.str();
}

}  // namespace zg::testing
