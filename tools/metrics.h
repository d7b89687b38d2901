#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "zerograd/runtime/comm.h"

namespace zg::tools {

/// What one attempted optimizer step did.
struct StepRecord {
  int64_t step;         ///< from 0
  int64_t micro_steps;  ///< of this step, on each rank
  int64_t samples;      ///< of this step, on all ranks
  double loss;          ///< mean over micro-batches, folded in order, of the mean over targets
  double grad_norm, rate;
  double loss_scale;  ///< of f16 in this step; 1 for f32, 0 for bf16
  bool skipped;
  double tokens_per_second, seconds;
  int64_t peak_bytes, host_peak_bytes;  ///< live arena bytes at their most during the step
};

struct FinalRecord {
  int64_t steps, skipped;
  std::string param_hash;
  std::optional<double> train_score, test_score;  ///< of 1; absent for texts
  WireCounts wire;                                ///< of rank 0
};

/// JSON lines, one per step as it ends, then the final one. Numbers are %.17g, which reads back to
/// the same bits; NaN and infinities are strings, for JSON has none.
class MetricsFile {
 public:
  /// Starts anew at step 0. A run that resumes goes on in the file: what it has of steps that are
  /// taken again goes. FileError.
  MetricsFile(const std::string& path, bool resumed, int64_t first_step);
  void write(const StepRecord& record);
  void write(const FinalRecord& record);

 private:
  void write_line(const std::string& line);
  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace zg::tools
