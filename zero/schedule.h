#pragma once

#include <cstdint>
#include <string>

#include "runtime/api.h"

namespace zg::zero {

/// How the learning rate goes. WarmupLR, WarmupDecayLR and WarmupCosineLR have DeepSpeed's values.
enum class ScheduleKind : uint8_t {
  none,              ///< `rate` always
  warmup_lr,         ///< up from warmup_min_lr to rate, then rate
  warmup_decay_lr,   ///< then linearly down to warmup_min_lr at total_num_steps
  warmup_cosine_lr,  ///< up from warmup_min_ratio * rate, then a cosine to cos_min_ratio * rate
  cosine             ///< linearly up, never 0, then a cosine to min_rate, as nanoGPT
};
/// "none", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "cosine".
ZG_API const char* name_of(ScheduleKind kind);
ZG_API ScheduleKind schedule_kind(const std::string& name);  ///< throws ConfigError: lists them
ZG_API bool is_deepspeed(ScheduleKind kind);                 ///< one of DeepSpeed's three
ZG_API bool decays(ScheduleKind kind);                       ///< ends at total_num_steps

enum class WarmupType : uint8_t {
  log,    ///< ln(i + 1) / ln(warmup_num_steps)
  linear  ///< i / warmup_num_steps
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::none;
  double rate = 1e-3;                        ///< the highest; DeepSpeed's warmup_max_lr
  int64_t warmup_num_steps = 0;              ///< DeepSpeed's three take at least 2
  int64_t total_num_steps = 0;               ///< of all that decay: where they end
  WarmupType warmup_type = WarmupType::log;  ///< of DeepSpeed's three
  double warmup_min_lr = 0.0;                ///< WarmupLR, WarmupDecayLR
  double warmup_min_ratio = 0.0;             ///< WarmupCosineLR
  double cos_min_ratio = 0.0001;             ///< WarmupCosineLR
  double min_rate = 0.0;                     ///< cosine
};
/// Throws ConfigError. DeepSpeed only warns when total_num_steps < warmup_num_steps; so it passes.
ZG_API void validate(const ScheduleOptions& options);

/// The rate by place alone: there is no state to save.
class ZG_API Schedule {
 public:
  explicit Schedule(const ScheduleOptions& options);

  /// Of the k-th optimizer step that is taken, k from 0: skipped steps do not count. DeepSpeed
  /// moves a schedule after a step and starts it at iteration -1, so its three use iteration k - 1:
  /// step 0 runs at the lowest rate, and so does step 1, where ln(1) = 0.
  double rate(int64_t k) const;

 private:
  double warmup(int64_t iteration) const;  // from 0 to 1
  ScheduleOptions options_;
};

}  // namespace zg::zero
