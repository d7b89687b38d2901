#include "zerograd/zero/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/deepspeed/hjson.h"

namespace zg::zero {
namespace {

// clang-format off
constexpr const char* schedule_names[] = {
    "none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "cosine", "LRRangeTest", "OneCycle",
    "AnnealingLR", "hf_linear", "hf_cosine", "hf_cosine_with_restarts", "hf_polynomial",
    "hf_constant", "hf_constant_with_warmup", "hf_inverse_sqrt", "hf_warmup_stable_decay"};
// clang-format on
constexpr const char* styles[] = {"linear", "cosine", "constant"};
constexpr double one_cycle_beta2 = 0.99;  // DeepSpeed uses this value

void check_schedule(bool within, const char* field, double value, const char* expected) {
  if (!within) raise<ConfigError>("schedule: {} is {:f}; expected {}", field, value, expected);
}

/// Returns the enumerator whose value is the index of `name` in `known`.
template <class E>
E one_of(std::span<const char* const> known, const char* what, const std::string& name) {
  const auto found = std::find(known.begin(), known.end(), name);
  if (found != known.end()) return static_cast<E>(found - known.begin());
  std::string list;
  for (const char* candidate : known) list += (list.empty() ? "" : ", ") + std::string(candidate);
  raise<ConfigError>("{}: no '{}'; expected one of {}", what, name, list);
}

/// Falls from 1 to 0 along half a cosine while progress rises from 0 to 1. Then it stays 0.
double half_cosine(double progress) {
  return (1.0 + portable::cos(std::numbers::pi * std::min(1.0, progress))) / 2.0;
}

/// The fraction `done` / `total`. A total of 0 counts as 1.
double ratio(int64_t done, int64_t total) {
  return static_cast<double>(done) / static_cast<double>(std::max<int64_t>(1, total));
}

void check_schedule(const RangeTestOptions& o) {
  check_schedule(o.step_size >= 1, "range_test.step_size", static_cast<double>(o.step_size),
                 "1 or more");
  check_schedule(std::isfinite(o.step_rate) && o.step_rate >= 0.0, "range_test.step_rate",
                 o.step_rate, "a finite number from 0");
}

void check_schedule(const OneCycleOptions& o) {
  const auto at_least = [](const char* field, double value, double minimum, const char* expected) {
    check_schedule(std::isfinite(value) && value >= minimum, field, value, expected);
  };
  at_least("one_cycle.cycle_min_lr", o.cycle_min_lr, 0.0, "a finite number from 0");
  at_least("one_cycle.decay_lr_rate", o.decay_lr_rate, 0.0, "a finite number from 0");
  at_least("one_cycle.decay_mom_rate", o.decay_mom_rate, 0.0, "a finite number from 0");
  at_least("one_cycle.cycle_first_step_size", static_cast<double>(o.cycle_first_step_size), 1.0,
           "1 or more");
  at_least("one_cycle.cycle_second_step_size", static_cast<double>(o.cycle_second_step_size), 1.0,
           "1 or more");
  at_least("one_cycle.decay_step_size", static_cast<double>(o.decay_step_size), 0.0, "0 or more");
  for (double momentum : {o.cycle_min_mom, o.cycle_max_mom})
    check_schedule(momentum >= 0.0 && momentum < 1.0, "one_cycle momentum", momentum,
                   "a number in [0, 1)");
}

void check_schedule(const AnnealingOptions& o, double rate, double min_rate) {
  check_schedule(min_rate <= rate, "min_rate", min_rate, "at most the rate");
  check_schedule(o.lr_warmup_samples >= 0, "annealing.lr_warmup_samples",
                 static_cast<double>(o.lr_warmup_samples), "0 or more");
  check_schedule(
      o.lr_decay_style == DecayStyle::constant || o.lr_decay_samples > o.lr_warmup_samples,
      "annealing.lr_decay_samples", static_cast<double>(o.lr_decay_samples),
      "more than lr_warmup_samples");
}

TransformersNumbers numbers_of(const ScheduleOptions& o) {
  TransformersNumbers n;
  if (!is_of_transformers(o.kind) || o.lr_scheduler_kwargs.empty()) return n;
  const std::pair<const char*, double*> known[] = {{"num_cycles", &n.num_cycles},
                                                   {"power", &n.power},
                                                   {"lr_end", &n.lr_end},
                                                   {"timescale", &n.timescale},
                                                   {"num_decay_steps", &n.num_decay_steps},
                                                   {"num_stable_steps", &n.num_stable_steps},
                                                   {"min_lr_ratio", &n.min_lr_ratio}};
  const char* const name = "lr_scheduler_kwargs";
  for (const auto& [key, at, value] : deepspeed::read_hjson(o.lr_scheduler_kwargs, name).members) {
    const auto* const row = std::ranges::find(known, key, &std::pair<const char*, double*>::first);
    const std::string place = deepspeed::place(name, at, key);
    std::string* const curve = key == "warmup_type"  ? &n.warmup_type
                               : key == "decay_type" ? &n.decay_type
                                                     : nullptr;
    if (curve && (value.text == "linear" || value.text == "cosine" || value.text == "1-sqrt")) {
      *curve = value.text;
      continue;
    }
    if (row == std::end(known) || value.kind != deepspeed::Value::Kind::number || value.number < 0)
      throw ConfigError(place +
                        "expected a number of 0 or more for num_cycles, power, lr_end, timescale, "
                        "num_decay_steps, num_stable_steps or min_lr_ratio, or linear, cosine or "
                        "1-sqrt as warmup_type or decay_type, got " +
                        deepspeed::shown(value));
    *row->second = value.number;
  }
  return n;
}

/// The factor of the rate as get_scheduler() of transformers computes it, in its order of
/// operations. The rate is the same after rounding to f32, which optimizers receive.
double transformers_factor(const ScheduleOptions& o, const TransformersNumbers& n, int64_t k) {
  if (o.kind == ScheduleKind::hf_constant) return 1.0;
  const bool is_wsd = o.kind == ScheduleKind::hf_warmup_stable_decay;
  const int64_t warmup = o.warmup_num_steps;
  const double low = is_wsd ? n.min_lr_ratio : 0.0;
  const auto shaped = [](const std::string& type, double linear, double cosine, double root) {
    return type == "linear" ? linear : type == "cosine" ? cosine : root;
  };
  if (k < warmup) {
    const double passed = ratio(k, warmup);
    return shaped(n.warmup_type, passed, 0.5 * (1.0 - portable::cos(std::numbers::pi * passed)),
                  1.0 - std::sqrt(1.0 - passed)) *
               (1.0 - low) +
           low;
  }
  const double progress = ratio(k - warmup, o.total_num_steps - warmup);
  const auto wave = [&n](double passed) {
    const double cycles = n.num_cycles > 0.0 ? n.num_cycles : 0.5;
    return 0.5 * (1.0 + portable::cos(std::numbers::pi * cycles * 2.0 * passed));
  };
  if (is_wsd) {
    const double after = static_cast<double>(k - warmup), decay = n.num_decay_steps;
    const double stable = n.num_stable_steps >= 0.0
                              ? n.num_stable_steps
                              : static_cast<double>(o.total_num_steps - warmup) - decay;
    if (after < stable) return 1.0;
    if (after >= stable + decay) return low;
    const double passed = (after - stable) / std::max(1.0, decay);
    const double left = shaped(n.decay_type, 1.0 - passed, wave(passed), 1.0 - std::sqrt(passed));
    return std::max(0.0, left * (1.0 - low) + low);
  }
  switch (o.kind) {
    case ScheduleKind::hf_linear:
      return std::max(0.0, ratio(o.total_num_steps - k, o.total_num_steps - warmup));
    case ScheduleKind::hf_cosine:
      return std::max(0.0, wave(progress));
    case ScheduleKind::hf_cosine_with_restarts: {
      if (progress >= 1.0) return 0.0;
      const double cycles = n.num_cycles > 0.0 ? n.num_cycles : 1.0;
      return 0.5 * (1.0 + portable::cos(std::numbers::pi * std::fmod(cycles * progress, 1.0)));
    }
    case ScheduleKind::hf_polynomial:
      if (k > o.total_num_steps) return n.lr_end / o.rate;
      return ((o.rate - n.lr_end) * portable::pow(1.0 - progress, n.power) + n.lr_end) / o.rate;
    case ScheduleKind::hf_inverse_sqrt: {
      const auto begin = static_cast<double>(warmup);
      const double scale = n.timescale > 0.0 ? n.timescale : warmup > 0 ? begin : 10'000.0;
      return 1.0 / std::sqrt((static_cast<double>(k) + (scale - begin)) / scale);
    }
    default:
      return 1.0;
  }
}

double range_test_rate(const RangeTestOptions& o, double rate, int64_t k) {
  const double passed = ratio(k, o.step_size);
  return rate * (1.0 + o.step_rate * (o.staircase ? std::floor(passed) : passed));
}

int64_t cycle_steps(const OneCycleOptions& o) {
  return o.cycle_first_step_size + o.cycle_second_step_size;
}

/// The height of the cycle at step k. It rises linearly from 0 to 1, then falls linearly to 0.
double height(const OneCycleOptions& o, int64_t k) {
  if (k <= o.cycle_first_step_size) return ratio(k, o.cycle_first_step_size);
  return std::max(0.0, ratio(cycle_steps(o) - k, o.cycle_second_step_size));
}

/// The number of steps from the end of the cycle to step k, divided by decay_step_size.
double decayed(const OneCycleOptions& o, int64_t k) {
  return o.decay_step_size == 0
             ? 0.0
             : ratio(std::max<int64_t>(0, k - cycle_steps(o)), o.decay_step_size);
}

double one_cycle_rate(const OneCycleOptions& o, double highest, int64_t k) {
  const double lowest = o.cycle_min_lr / (1.0 + o.decay_lr_rate * decayed(o, k));
  return lowest + (highest - o.cycle_min_lr) * height(o, k);
}

// Computes the rate as Megatron's get_lr() does, with the same order of operations.
double annealed_rate(const AnnealingOptions& o, double rate, double min_rate, int64_t samples) {
  const int64_t warmup_samples = o.lr_warmup_samples;
  if (warmup_samples > 0 && samples <= warmup_samples)
    return rate * static_cast<double>(samples) / static_cast<double>(warmup_samples);
  if (o.lr_decay_style == DecayStyle::constant) return rate;
  if (samples > o.lr_decay_samples) return min_rate;
  const double progress = ratio(samples - warmup_samples, o.lr_decay_samples - warmup_samples);
  const double share = o.lr_decay_style == DecayStyle::linear
                           ? 1.0 - progress
                           : 0.5 * (portable::cos(std::numbers::pi * progress) + 1.0);
  return min_rate + share * (rate - min_rate);
}

}  // namespace

const char* name_of(ScheduleKind kind) { return schedule_names[static_cast<size_t>(kind)]; }

ScheduleKind schedule_kind(const std::string& name) {
  return one_of<ScheduleKind>(schedule_names, "schedule", name);
}

const char* name_of(DecayStyle style) { return styles[static_cast<size_t>(style)]; }

DecayStyle decay_style(const std::string& name) {
  return one_of<DecayStyle>(styles, "decay style", name);
}

bool is_deepspeed_warmup(ScheduleKind kind) {
  return kind == ScheduleKind::warmup_lr || kind == ScheduleKind::warmup_decay_lr ||
         kind == ScheduleKind::warmup_cosine_lr;
}

bool decays(ScheduleKind kind) {
  using enum ScheduleKind;
  for (const ScheduleKind ends : {warmup_decay_lr, warmup_cosine_lr, cosine, hf_linear, hf_cosine,
                                  hf_cosine_with_restarts, hf_polynomial, hf_warmup_stable_decay})
    if (kind == ends) return true;
  return false;
}

bool is_of_transformers(ScheduleKind kind) { return kind >= ScheduleKind::hf_linear; }

bool counts_samples(ScheduleKind kind) { return kind == ScheduleKind::annealing; }

void validate(const ScheduleOptions& o) {
  if (o.function && o.kind != ScheduleKind::none)
    raise<ConfigError>("schedule: a function is given beside the kind {}; expected one of the two",
                       o.kind);
  const auto is_finite_from_zero = [](double x) { return std::isfinite(x) && x >= 0.0; };
  const auto fraction = [](double x) { return x >= 0.0 && x <= 1.0; };
  check_schedule(is_finite_from_zero(o.rate), "rate", o.rate, "a finite number from 0");
  check_schedule(is_finite_from_zero(o.warmup_min_lr), "warmup_min_lr", o.warmup_min_lr,
                 "a finite number from 0");
  check_schedule(is_finite_from_zero(o.min_rate), "min_rate", o.min_rate, "a finite number from 0");
  check_schedule(fraction(o.warmup_min_ratio), "warmup_min_ratio", o.warmup_min_ratio, "0 to 1");
  check_schedule(fraction(o.cos_min_ratio), "cos_min_ratio", o.cos_min_ratio, "0 to 1");
  const bool deepspeed = is_deepspeed_warmup(o.kind);
  check_schedule(o.warmup_num_steps >= (deepspeed ? 1 : 0), "warmup_num_steps",
                 static_cast<double>(o.warmup_num_steps), deepspeed ? "1 or more" : "0 or more");
  check_schedule(!decays(o.kind) || o.total_num_steps >= 1, "total_num_steps",
                 static_cast<double>(o.total_num_steps), "1 or more");
  check_schedule(o.range_test);
  check_schedule(o.one_cycle);
  if (o.kind == ScheduleKind::annealing) check_schedule(o.annealing, o.rate, o.min_rate);
  const TransformersNumbers numbers = numbers_of(o);
  if (o.kind == ScheduleKind::hf_polynomial)
    check_schedule(numbers.lr_end < o.rate, "lr_end", numbers.lr_end, "less than the rate");
  if (o.kind == ScheduleKind::hf_warmup_stable_decay)
    check_schedule(numbers.num_decay_steps >= 1.0, "num_decay_steps", numbers.num_decay_steps,
                   "1 or more; try --lr-scheduler-kwargs '{\"num_decay_steps\": 100}'");
}

Schedule::Schedule(const ScheduleOptions& options)
    : options_(options), numbers_(numbers_of(options)) {
  validate(options);
  if (is_deepspeed_warmup(options.kind))  // the log warm-up divides by ln(steps), and ln(1) = 0
    options_.warmup_num_steps = std::max<int64_t>(2, options.warmup_num_steps);
}

double Schedule::warmup(int64_t iteration) const {
  if (options_.warmup_type == WarmupType::linear)
    return ratio(iteration, options_.warmup_num_steps);
  return portable::log(static_cast<double>(iteration + 1)) /
         portable::log(static_cast<double>(options_.warmup_num_steps));
}

double Schedule::rate(int64_t k) const {
  const ScheduleOptions& o = options_;
  if (o.function) {
    const double rate = o.function(k);
    if (!std::isfinite(rate) || rate < 0.0)
      raise<ConfigError>(
          "schedule: the function gives {} for step {}; expected a finite number from 0", rate, k);
    return rate;
  }
  const int64_t iteration = k - 1, warmup_steps = o.warmup_num_steps;
  const int64_t decay = o.total_num_steps - warmup_steps;
  switch (o.kind) {
    case ScheduleKind::none:
      return o.rate;
    case ScheduleKind::warmup_lr:
    case ScheduleKind::warmup_decay_lr: {
      double share = 1.0;
      if (iteration < 0)
        share = 0.0;
      else if (iteration < warmup_steps)
        share = warmup(iteration);
      else if (o.kind == ScheduleKind::warmup_decay_lr)
        share = std::max(0.0, ratio(o.total_num_steps - iteration, decay));
      return o.warmup_min_lr + (o.rate - o.warmup_min_lr) * share;
    }
    case ScheduleKind::warmup_cosine_lr:
      if (iteration < 0) return 0.0;  // warmup_min_ratio does not apply to this step
      if (iteration < warmup_steps)
        return o.rate * (o.warmup_min_ratio + (1.0 - o.warmup_min_ratio) * warmup(iteration));
      return o.rate *
             (o.cos_min_ratio +
              (1.0 - o.cos_min_ratio) * half_cosine(ratio(iteration - warmup_steps + 1, decay)));
    case ScheduleKind::lr_range_test:
      return range_test_rate(o.range_test, o.rate, k);
    case ScheduleKind::one_cycle:
      return one_cycle_rate(o.one_cycle, o.rate, k);
    case ScheduleKind::annealing:
      return annealed_rate(o.annealing, o.rate, o.min_rate, k);
    case ScheduleKind::cosine:
      if (k < warmup_steps) return o.rate * ratio(k + 1, warmup_steps + 1);
      return o.min_rate + (o.rate - o.min_rate) * half_cosine(ratio(k - warmup_steps, decay));
    default:
      return o.rate * transformers_factor(o, numbers_, k);
  }
}

std::optional<Betas> Schedule::betas(int64_t k) const {
  const OneCycleOptions& o = options_.one_cycle;
  if (options_.kind != ScheduleKind::one_cycle || !o.cycle_momentum) return std::nullopt;
  const double highest = o.cycle_max_mom * (1.0 + o.decay_mom_rate * decayed(o, k));
  // beta1 falls while the rate rises. Step 0 is an exception, as in DeepSpeed.
  const double beta1 =
      k == 0 ? o.cycle_min_mom : highest - (o.cycle_max_mom - o.cycle_min_mom) * height(o, k);
  return Betas{static_cast<float>(beta1), static_cast<float>(one_cycle_beta2)};
}

}  // namespace zg::zero
