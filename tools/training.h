#pragma once

#include <memory>
#include <optional>

#include "tools/checkpoints.h"
#include "tools/console.h"
#include "tools/deepspeed_log.h"
#include "tools/evaluation.h"
#include "tools/interrupt.h"
#include "tools/metrics.h"
#include "tools/stepper.h"
#include "tools/tensorboard.h"
#include "zerograd/runtime/comm.h"

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
  int run(const InterruptScope& interrupt, CommonStop* stop);
  const RankMemory& memory() const { return memory_; }  ///< after run(): of its steps
  bool finished() const { return finished_; }  ///< after run(): neither interrupted nor a drill

 private:
  void prepare_engine();
  void announce();
  int run_steps(const InterruptScope& interrupt);
  std::optional<int> take_step(const InterruptScope& interrupt);
  StepRecord train_step(int64_t step);
  void note_divergence(int64_t step, double loss);
  void note_growth(int64_t samples);
  /// Where the file is kept. What cannot be written costs it.
  template <class File, class... What>
  void write(std::optional<File>& file, const What&... what);
  void report(const StepRecord& record);
  void report_as_deepspeed(const StepRecord& record);
  void report_periodic(int64_t step);
  void report_epochs();
  void write_trace();
  TensorBoardFile::Place place() const;
  void validate();
  void print_sample();
  void print_memory_table();
  void save();
  bool save_last();
  void report_save(const std::string& step_n, const zero::CheckpointSave::Result& result);
  int reason_to_end(const InterruptScope& interrupt) const;
  int end_early(const std::string& why, int status);
  int finish(const InterruptScope& interrupt);

  bool is_first() const { return ranks_.rank() == 0; }

  const Run& run_;
  const TrainOptions& options_;
  const models::Dataset& dataset_;
  Communicator& ranks_;
  Device device_;
  Stepper stepper_;
  Settings& settings_;  ///< position and loss move on
  zero::Engine& engine_;
  RankMemory memory_;
  std::optional<zero::CheckpointDirectory> checkpoints_;  ///< without --save none
  std::optional<MetricsFile> metrics_;
  std::optional<TensorBoardFile> tensorboard_;
  bool results_lost_ = false;  ///< of one of them
  std::optional<Console> console_;
  std::optional<DeepSpeedLog> deepspeed_log_;
  int64_t micro_batches_ = 0;  ///< of all ranks, consumed since step 0
  int64_t validated_at_ = -1, saved_at_ = -1;
  std::string reported_;      ///< the step_N whose failure was printed last
  int64_t diverged_at_ = -1;  ///< since when losses are not finite; -1: they are
  double peak_flops_ = 0.0;   ///< of all ranks; 0: unknown
  double seconds_ = 0.0;      ///< of this run's steps
  int64_t peak_bytes_ = 0;    ///< in this run's steps
  bool table_printed_ = false, finished_ = false;
};

}  // namespace zg::tools
