#include "tools/output/run_header.h"

#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

std::string described(const zero::AnnealingOptions& annealing,
                      const zero::ScheduleOptions& schedule) {
  const std::string line =
      text("learning rate: %s, %g after %lld samples of warmup, ", zero::name_of(schedule.kind),
           schedule.rate, (long long)annealing.lr_warmup_samples);
  if (annealing.lr_decay_style == zero::DecayStyle::constant) return line + "then constant";
  return line + text("then %s to %g at %lld", zero::name_of(annealing.lr_decay_style),
                     schedule.min_rate, (long long)annealing.lr_decay_samples);
}

}  // namespace

// The line about the schedule. It mentions what surprises in a short run: DeepSpeed's first two
// steps have rate 0, and its warmup may last longer than the run.
std::string described(const zero::ScheduleOptions& schedule) {
  const char* name = zero::name_of(schedule.kind);
  if (schedule.kind == zero::ScheduleKind::annealing)
    return described(schedule.annealing, schedule);
  if (schedule.kind == zero::ScheduleKind::lr_range_test)
    return text("learning rate: %s, from %g up by %g in %lld steps", name, schedule.rate,
                schedule.rate * schedule.range_test.step_rate,
                (long long)schedule.range_test.step_size);
  if (schedule.kind == zero::ScheduleKind::one_cycle)
    return text("learning rate: %s, from %g to %g in %lld steps and back in %lld", name,
                schedule.one_cycle.cycle_min_lr, schedule.rate,
                (long long)schedule.one_cycle.cycle_first_step_size,
                (long long)schedule.one_cycle.cycle_second_step_size);
  std::string line = text("learning rate: %s, %g after %lld steps of warmup", name, schedule.rate,
                          (long long)schedule.warmup_num_steps);
  if (zero::decays(schedule.kind))
    line += text(", decaying until step %lld", (long long)schedule.total_num_steps);
  if (zero::is_deepspeed_warmup(schedule.kind)) {
    const zero::Schedule rates(schedule);
    line += rates.rate(0) == rates.rate(1)
                ? text("; %g in the first two", rates.rate(0))
                : text("; %g in the first, %g in the second", rates.rate(0), rates.rate(1));
  }
  if (zero::decays(schedule.kind) && schedule.total_num_steps < schedule.warmup_num_steps)
    line += text("; total_num_steps %lld is less than warmup_num_steps %lld",
                 (long long)schedule.total_num_steps, (long long)schedule.warmup_num_steps);
  return line;
}

std::string described(const zero::OffloadOptions& offload) {
  std::string line;
  for (const auto& [kind, space] :
       {std::pair("parameters", offload.parameter), std::pair("gradients", offload.gradient),
        std::pair("optimizer", offload.optimizer), std::pair("activations", offload.activation)})
    if (space != Space::device)
      line += text(", %s on the %s", kind, space == Space::host ? "host" : "drive");
  return line;
}

std::string described(const BatchRampup& rampup, int64_t whole) {
  return text("the batch grows from %lld by %lld to %lld over %lld samples",
              (long long)rampup.start, (long long)rampup.increment, (long long)whole,
              (long long)rampup.samples);
}

}  // namespace zg::tools
