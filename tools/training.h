#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "tools/checkpoints.h"
#include "tools/console.h"
#include "tools/deepspeed_log.h"
#include "tools/evaluation.h"
#include "tools/stepper.h"
#include "zerograd/runtime/comm.h"
#include "zerograd/zero/interrupt.h"
#include "zerograd/zero/metrics.h"

namespace zg::tools {

/// One rank of `zerograd train`. Every rank computes the same steps, validations, samples and
/// scores, each on its own micro-batches of a step; rank 0 is the one that prints and writes.
class Training {
 public:
  /// Run, communicator and device's owner must outlive it. Announces the run.
  Training(const Run& run, Communicator& ranks, const Device& device);
  /// The exit status; also after an error rank 0 prints the memory table. A signal that one rank
  /// gets counts for all; once the last step is saved it ends the process. `stop`: of ranks that
  /// are threads, which then stop within a step too; null: after it.
  int run(const zero::InterruptScope& interrupt, zero::CommonStop* stop);
  const RankMemory& memory() const { return memory_; }  ///< after run(): of its steps
  bool finished() const { return finished_; }  ///< after run(): neither interrupted nor a drill

 private:
  zero::TrainerHooks hooks();
  void prepare_engine();
  void announce();
  int run_steps();
  void begin_step();
  void note_step(const zero::TrainedStep& step);
  void note_divergence(int64_t step, double loss);
  void note_growth(int64_t samples);
  /// Where the file is kept. What cannot be written costs it.
  template <class File, class... What>
  void write(const char* flag, std::optional<File>& file, const What&... what);
  void report(const zero::StepRecord& record);
  void report_as_deepspeed(const zero::StepRecord& record);
  void report_epochs();
  void write_trace();
  zero::MetricsBoard::Progress place() const;
  void validate();
  void print_sample();
  void print_memory_table();
  void report_save(const std::string& step_n, const zero::CheckpointSave::Result& result);
  int reason_to_end() const;
  int signal_of(const zero::TrainingEnd& end) const;
  void note_end(const zero::TrainingEnd& end);
  int finish();

  bool is_first() const { return ranks_.rank() == 0; }

  const Run& run_;
  const TrainOptions& options_;
  const models::Dataset& dataset_;
  Communicator& ranks_;
  Device device_;
  const Settings& settings_;  ///< where the run began
  const zero::InterruptScope* interrupt_ = nullptr;
  Stepper stepper_;
  zero::Engine& engine_;
  zero::Trainer& trainer_;
  RankMemory memory_;
  std::optional<zero::MetricsFile> metrics_;
  std::optional<zero::MetricsBoard> tensorboard_;
  bool results_lost_ = false;  ///< of one of them
  std::optional<Console> console_;
  std::optional<DeepSpeedLog> deepspeed_log_;
  int64_t validated_at_ = -1;
  std::string reported_;  ///< the step_N whose failure was printed last
  std::chrono::steady_clock::time_point step_began_;
  int64_t diverged_at_ = -1;  ///< since when losses are not finite; -1: they are
  double peak_flops_ = 0.0;   ///< of all ranks; 0: unknown
  double seconds_ = 0.0;      ///< of this run's steps
  int64_t peak_bytes_ = 0;    ///< in this run's steps
  bool table_printed_ = false, finished_ = false;
};

}  // namespace zg::tools
