#pragma once

#include <chrono>
#include <optional>

#include "tools/deepspeed/deepspeed_log.h"
#include "tools/output/console.h"
#include "tools/run/checkpoints.h"
#include "tools/run/evaluation.h"
#include "tools/run/stepper.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/interrupt.h"
#include "zerograd/zero/metrics.h"

namespace zg::tools {

/// One rank of `zerograd train`. All ranks compute the same steps, validations, samples and scores,
/// each on its own micro-batches of a step. Only rank 0 prints and writes.
class Training {
 public:
  /// Run, communicator and the device's owner must outlive it. Prints the first lines of the run.
  Training(const Run& run, Communicator& ranks, const Device& device);
  /// Returns the exit status. Rank 0 prints the memory table, after an error too. A signal to one
  /// rank ends all ranks, after the last step is saved. `stop`: shared by ranks that are threads,
  /// which can then also stop within a step. Null: the run stops between steps only.
  int run(const zero::InterruptScope& interrupt, zero::CommonStop* stop);
  const RankMemory& memory() const { return memory_; }  ///< after run(): counted over its steps
  /// After run(): neither interrupted nor ended by an injected fault.
  bool finished() const { return finished_; }

 private:
  zero::TrainerHooks hooks();
  void prepare_engine();
  void announce();
  std::string description_of_adapters() const;
  int run_steps();
  void begin_step();
  void note_step(const zero::TrainedStep& step);
  void note_divergence(int64_t step, double loss);
  void note_growth(int64_t samples);
  /// Writes to the file of `flag` if it is open. After a write error the file is closed and the run
  /// goes on.
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
  const RunSpec& settings_;  ///< settings at the start of the run
  const zero::InterruptScope* interrupt_ = nullptr;
  Stepper stepper_;
  zero::Engine& engine_;
  zero::Trainer& trainer_;
  RankMemory memory_;
  std::optional<zero::MetricsFile> metrics_;
  std::optional<zero::MetricsBoard> tensorboard_;
  bool results_lost_ = false;  ///< a file of results could not be written completely
  std::optional<Console> console_;
  std::optional<DeepSpeedLog> deepspeed_log_;
  int64_t validated_at_ = -1;
  std::string reported_;  ///< path of the last step_N whose failed save was printed
  std::chrono::steady_clock::time_point step_began_;
  /// First step with a non-finite loss since the last finite one; -1: none.
  int64_t diverged_at_ = -1;
  double peak_flops_ = 0.0;  ///< all ranks together; 0: unknown
  double seconds_ = 0.0;     ///< total over the steps of this run
  int64_t peak_bytes_ = 0;   ///< largest value in the steps of this run
  bool table_printed_ = false, finished_ = false;
};

}  // namespace zg::tools
