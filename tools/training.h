#pragma once

#include <memory>
#include <optional>
#include <string>

#include "models/data.h"
#include "models/gpt.h"
#include "runtime/trace.h"
#include "tools/checkpoints.h"
#include "tools/console.h"
#include "tools/evaluation.h"
#include "tools/interrupt.h"
#include "tools/memory_table.h"
#include "tools/metrics.h"
#include "tools/options.h"
#include "tools/settings.h"
#include "zero/engine.h"

namespace zg::tools {

/// One run of `zerograd train` on one rank.
class Training {
 public:
  explicit Training(const TrainOptions& options);
  int run();  ///< the exit status; also after an error it writes the trace and the memory table

 private:
  struct Resumed {
    std::string path;  ///< empty: a fresh start
    std::optional<Settings> settings;
  };
  static Resumed find_resumed(TrainOptions& options);

  void check_outputs() const;
  void prepare_data_and_model();
  void prepare_engine();
  void announce();
  int64_t total_steps() const;
  int run_steps();
  StepRecord train_step(int64_t step);
  double micro_batch(int64_t step, bool first, bool last);
  void report(const StepRecord& record);
  void report_periodic(int64_t step);
  void validate();
  void print_sample();
  void print_memory_table();
  void write_trace() const;
  void save();
  int interrupted(int signal);
  void finish();
  Evaluation evaluation();
  double matmul_flops_per_token() const;

  TrainOptions options_;
  Resumed resumed_;
  Settings settings_;
  Device device_;
  std::shared_ptr<Trace> trace_;
  std::unique_ptr<models::Dataset> dataset_;
  ParameterStore store_;
  std::unique_ptr<models::GPT> model_;
  std::unique_ptr<zero::Engine> engine_;
  std::optional<MetricsFile> metrics_;
  std::optional<Console> console_;
  MemoryTable memory_;
  InterruptScope interrupt_;
  int64_t steps_ = 0;          ///< where the run ends
  int64_t micro_batches_ = 0;  ///< consumed since step 0
  int64_t validated_at_ = -1, saved_at_ = -1;
  double peak_flops_ = 0.0;  ///< 0: unknown
};

}  // namespace zg::tools
