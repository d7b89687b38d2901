#include "zero/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/error.h"

namespace zg::zero {
namespace {

constexpr const char* names[] = {"none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "cosine"};

void check(bool within, const char* field, double value, const char* expected) {
  if (!within)
    throw ConfigError(std::string("schedule: ") + field + " is " + std::to_string(value) +
                      "; expected " + expected);
}

/// 1 falling to 0 as progress goes from 0 to 1, and 0 from there on.
double half_cosine(double progress) {
  return (1.0 + std::cos(std::numbers::pi * std::min(1.0, progress))) / 2.0;
}

double ratio(int64_t steps, int64_t of) {
  return static_cast<double>(steps) / static_cast<double>(std::max<int64_t>(1, of));
}

}  // namespace

const char* name_of(ScheduleKind kind) { return names[static_cast<size_t>(kind)]; }

ScheduleKind schedule_kind(const std::string& name) {
  const auto found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) {
    std::string list;
    for (const char* known : names) list += (list.empty() ? "" : ", ") + std::string(known);
    throw ConfigError("schedule: no '" + name + "'; expected one of " + list);
  }
  return static_cast<ScheduleKind>(found - std::begin(names));
}

bool is_deepspeed(ScheduleKind kind) {
  return kind != ScheduleKind::none && kind != ScheduleKind::cosine;
}

bool decays(ScheduleKind kind) {
  return kind != ScheduleKind::none && kind != ScheduleKind::warmup_lr;
}

void validate(const ScheduleOptions& o) {
  const auto from_zero = [](double x) { return std::isfinite(x) && x >= 0.0; };
  const auto fraction = [](double x) { return x >= 0.0 && x <= 1.0; };
  check(from_zero(o.rate), "rate", o.rate, "a finite number from 0");
  check(from_zero(o.warmup_min_lr), "warmup_min_lr", o.warmup_min_lr, "a finite number from 0");
  check(from_zero(o.min_rate), "min_rate", o.min_rate, "a finite number from 0");
  check(fraction(o.warmup_min_ratio), "warmup_min_ratio", o.warmup_min_ratio, "0 to 1");
  check(fraction(o.cos_min_ratio), "cos_min_ratio", o.cos_min_ratio, "0 to 1");
  check(o.warmup_num_steps >= (is_deepspeed(o.kind) ? 1 : 0), "warmup_num_steps",
        static_cast<double>(o.warmup_num_steps), is_deepspeed(o.kind) ? "1 or more" : "0 or more");
  check(!decays(o.kind) || o.total_num_steps >= 1, "total_num_steps",
        static_cast<double>(o.total_num_steps), "1 or more");
}

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
  validate(options);
  if (is_deepspeed(options.kind))  // ln(1) is no divisor
    options_.warmup_num_steps = std::max<int64_t>(2, options.warmup_num_steps);
}

double Schedule::warmup(int64_t iteration) const {
  if (options_.warmup_type == WarmupType::linear)
    return ratio(iteration, options_.warmup_num_steps);
  return std::log(static_cast<double>(iteration + 1)) /
         std::log(static_cast<double>(options_.warmup_num_steps));
}

double Schedule::rate(int64_t k) const {
  const ScheduleOptions& o = options_;
  const int64_t iteration = k - 1, warm = o.warmup_num_steps;
  const int64_t decay = o.total_num_steps - warm;
  switch (o.kind) {
    case ScheduleKind::none:
      return o.rate;
    case ScheduleKind::warmup_lr:
    case ScheduleKind::warmup_decay_lr: {
      double share = 1.0;
      if (iteration < 0)
        share = 0.0;
      else if (iteration < warm)
        share = warmup(iteration);
      else if (o.kind == ScheduleKind::warmup_decay_lr)
        share = std::max(0.0, ratio(o.total_num_steps - iteration, decay));
      return o.warmup_min_lr + (o.rate - o.warmup_min_lr) * share;
    }
    case ScheduleKind::warmup_cosine_lr:
      if (iteration < 0) return 0.0;  // whatever warmup_min_ratio says
      if (iteration < warm)
        return o.rate * (o.warmup_min_ratio + (1.0 - o.warmup_min_ratio) * warmup(iteration));
      return o.rate * (o.cos_min_ratio +
                       (1.0 - o.cos_min_ratio) * half_cosine(ratio(iteration - warm + 1, decay)));
    case ScheduleKind::cosine:
      if (k < warm) return o.rate * ratio(k + 1, warm + 1);
      return o.min_rate + (o.rate - o.min_rate) * half_cosine(ratio(k - warm, decay));
  }
  return o.rate;
}

}  // namespace zg::zero
