#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "zerograd/runtime/api.h"
#include "zerograd/zero/config.h"

namespace zg::zero {

/// The learning rate as a function of the step. Kinds with DeepSpeed's names compute DeepSpeed's
/// values. The range test and the cycle are from Smith 2018, arXiv:1803.09820.
enum class ScheduleKind : uint8_t {
  none,              ///< `rate` always
  warmup_lr,         ///< up from warmup_min_lr to rate, then rate
  warmup_decay_lr,   ///< then linearly down to warmup_min_lr at total_num_steps
  warmup_cosine_lr,  ///< up from warmup_min_ratio * rate, then a cosine to cos_min_ratio * rate
  cosine,            ///< linearly up, never 0, then a cosine to min_rate, as nanoGPT
  lr_range_test,     ///< up from rate without end, to find the rate at which training diverges
  one_cycle,  ///< up from cycle_min_lr to rate and down again, beta1 in the opposite direction;
              ///< then decay
  annealing,  ///< Megatron's, by samples: linearly up from 0, then down to min_rate
  // Those of transformers (get_scheduler() in its optimization.py, version 5): all but hf_constant
  // go linearly up from 0 in warmup_num_steps.
  hf_linear,                ///< then linearly down to 0 at total_num_steps
  hf_cosine,                ///< then along num_cycles waves of a cosine
  hf_cosine_with_restarts,  ///< then num_cycles times along half a cosine
  hf_polynomial,            ///< then to lr_end, as a power of what is left
  hf_constant,
  hf_constant_with_warmup,
  hf_inverse_sqrt,        ///< then as 1 / sqrt(step / timescale)
  hf_warmup_stable_decay  ///< then rate, then num_decay_steps of decay
};
/// "none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "cosine", "LRRangeTest", "OneCycle",
/// "AnnealingLR"; those of transformers with "hf_" before their names.
ZG_API const char* name_of(ScheduleKind kind);
ZG_API ScheduleKind schedule_kind(const std::string& name);  ///< throws ConfigError: lists them
ZG_API bool is_deepspeed_warmup(ScheduleKind kind);          ///< one of DeepSpeed's three
ZG_API bool decays(ScheduleKind kind);                       ///< ends at total_num_steps
ZG_API bool is_of_transformers(ScheduleKind kind);
/// True for a schedule over samples instead of steps: a step with a larger batch advances it
/// further.
ZG_API bool counts_samples(ScheduleKind kind);

enum class WarmupType : uint8_t {
  log,    ///< ln(i + 1) / ln(warmup_num_steps)
  linear  ///< i / warmup_num_steps
};

/// For LRRangeTest: rate * (1 + step_rate * step / step_size); staircase: whole step sizes only.
struct RangeTestOptions {
  int64_t step_size = 2000;
  double step_rate = 1.0;
  bool staircase = false;
};

/// For OneCycle. After n decay_step_size of decay the rate is cycle_min_lr / (1 + decay_lr_rate *
/// n) and beta1 cycle_max_mom * (1 + decay_mom_rate * n).
struct OneCycleOptions {
  double cycle_min_lr = 0.0;
  double decay_lr_rate = 0.0;
  int64_t cycle_first_step_size = 2000, cycle_second_step_size = 2000;
  int64_t decay_step_size = 0;  ///< 0: no decay
  bool cycle_momentum = true;   ///< beta1 changes too, and beta2 is 0.99
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
  double decay_mom_rate = 0.0;
};

enum class DecayStyle : uint8_t { linear, cosine, constant };
ZG_API const char* name_of(DecayStyle style);
ZG_API DecayStyle decay_style(const std::string& name);  ///< throws ConfigError: lists them

/// For AnnealingLR, with the names of Megatron's arguments.
struct AnnealingOptions {
  int64_t lr_warmup_samples = 0;
  int64_t lr_decay_samples = 0;  ///< min_rate is reached here; includes the warm-up
  DecayStyle lr_decay_style = DecayStyle::linear;
};

/// The numbers of the kinds of transformers, with the names and defaults of its
/// lr_scheduler_kwargs.
struct TransformersNumbers {
  double num_cycles = 0.0;  ///< 0: 1 with restarts, otherwise 0.5
  double power = 1.0, lr_end = 1e-7;
  double timescale = 0.0;          ///< 0: warmup_num_steps or, without a warmup, 10000
  double num_decay_steps = 0.0;    ///< hf_warmup_stable_decay needs 1 or more
  double num_stable_steps = -1.0;  ///< below 0: what warmup and decay leave of total_num_steps
  double min_lr_ratio = 0.0;
  std::string warmup_type = "linear", decay_type = "cosine";  ///< each linear, cosine or 1-sqrt
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::none;
  /// The rate of step k in place of `kind`, which must be none: a schedule of one's own. The result
  /// must depend on k alone, so that a resumed run goes on with the same rates.
  std::function<double(int64_t k)> function = {};
  /// The highest rate (DeepSpeed's warmup_max_lr, cycle_max_lr); for LRRangeTest the lowest
  /// (min_lr).
  double rate = 1e-3;
  int64_t warmup_num_steps = 0;              ///< DeepSpeed's three kinds take at least 2
  int64_t total_num_steps = 0;               ///< the step at which the kinds that decay end
  WarmupType warmup_type = WarmupType::log;  ///< for DeepSpeed's three kinds
  double warmup_min_lr = 0.0;                ///< WarmupLR, WarmupDecayLR
  double warmup_min_ratio = 0.0;             ///< WarmupCosineLR
  double cos_min_ratio = 0.0001;             ///< WarmupCosineLR
  double min_rate = 0.0;                     ///< cosine, AnnealingLR
  RangeTestOptions range_test = {};
  OneCycleOptions one_cycle = {};
  AnnealingOptions annealing = {};
  /// TransformersNumbers as a JSON object, {"num_decay_steps": 100}; empty: the defaults.
  std::string lr_scheduler_kwargs = {};
};
/// Throws ConfigError. total_num_steps < warmup_num_steps is accepted, because DeepSpeed only warns
/// about it.
ZG_API void validate(const ScheduleOptions& options);

/// Computes the rate from the step index alone: there is no state to save. Throws ConfigError for a
/// rate of ScheduleOptions::function that is negative or not finite.
class ZG_API Schedule {
 public:
  explicit Schedule(const ScheduleOptions& options);

  /// The rate of the optimizer step with index k, from 0; skipped steps are not counted. DeepSpeed
  /// advances a schedule after a step and starts at iteration -1, so its warm-ups use iteration k -
  /// 1. Step 0 runs at the lowest rate, and so does step 1, because ln(1) = 0. If counts_samples(),
  /// k is the number of samples in the steps taken before. Megatron's scheduler also advances by a
  /// step's samples after the step, unless it was skipped, so its first step runs at rate 0.
  double rate(int64_t k) const;
  /// Betas of the same step. Absent unless the schedule sets them; then the optimizer's apply.
  std::optional<Betas> betas(int64_t k) const;

 private:
  double warmup(int64_t iteration) const;  // from 0 to 1
  ScheduleOptions options_;
  TransformersNumbers numbers_;
};

}  // namespace zg::zero
