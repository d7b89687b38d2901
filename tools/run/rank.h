#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/deepspeed/deepspeed_log.h"
#include "tools/output/console.h"
#include "tools/output/memory_json.h"
#include "tools/run/inference.h"
#include "tools/run/run.h"
#include "zerograd/autograd/pipeline.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/interrupt.h"
#include "zerograd/zero/metrics.h"
#include "zerograd/zero/trainer.h"

// A rank of a run.
namespace zg::tools {

// The model of a run (run_model.cpp).

/// Samples [first, first + count) of a split.
struct SampleRange {
  int64_t first = 0, count = 0;
  bool operator==(const SampleRange&) const = default;
};

/// Layers [first, end) of the model, those of an encoder before those of its decoder.
struct LayerRange {
  int64_t first = 0, end = 0;
};

/// The model of a run on one rank: a decoder, or an encoder-decoder. validation_loss() and sample()
/// are collective at stage 3; `make_tape` makes tapes that record nothing.
class RunModel {
 public:
  virtual ~RunModel() = default;
  /// The tensors of a micro-batch; `step` has the samples of its whole step.
  virtual std::vector<Tensor> batch(const zero::MicroBatch& batch, const SampleRange& step) = 0;
  virtual Var forward(Tape& tape, const zero::MicroBatch& batch) const = 0;
  virtual StageOutput stage_output(int64_t samples) const = 0;
  virtual int64_t tokens(const SampleRange& step) const = 0;  ///< tokens of a step, with padding
  /// The number of targets in training samples, without ignored ones.
  virtual int64_t targets(const SampleRange& samples) const = 0;
  /// The mean over `batches` micro-batches of the validation split; 0: the whole split.
  virtual double validation_loss(const std::function<Tape()>& make_tape, int64_t batches) const = 0;
  virtual int64_t shown_parameters() const = 0;  ///< the number that train prints
  /// Floating-point operations of matrix products for a token; 0: unknown.
  virtual double flops_per_token() const = 0;
  virtual LayerRange layers() const = 0;  ///< layers of this rank's pipeline stage
  /// Throws Unsupported for an encoder-decoder, which has no scores and samples of text.
  virtual const models::GPT& decoder() const = 0;
};

/// `run`, `store` and `mesh` must outlive the model.
std::unique_ptr<RunModel> make_run_model(const Run& run, ParameterStore& store, const Mesh& mesh,
                                         const Device& device);

/// The injected fault "flip" (flip.cpp): a bit of one element changes. States are those of this
/// rank; of the other kinds the bit is one of the output of a kernel or a collective in the step.
class FlippedBit {
 public:
  FlippedBit(const FaultInjection& injection, zero::Engine& engine)
      : injection_(injection), engine_(engine) {}
  ~FlippedBit() { end_step(); }
  FlippedBit(const FlippedBit&) = delete;
  FlippedBit& operator=(const FlippedBit&) = delete;

  void begin_step();  ///< collective
  void end_step();
  void begin_save();  ///< collective
  void end_save();    ///< changes the bit back

 private:
  using Kind = FaultInjection::Kind;
  bool is_due(int64_t step) const;
  void flip_moment();
  void flip_state(const zero::Engine::State& state);
  void note(const Trace::Call& call);
  void report(const std::string& what);

  const FaultInjection& injection_;
  zero::Engine& engine_;
  const std::thread::id thread_ = std::this_thread::get_id();
  int64_t step_ = 0;  // the one that runs, or ran before a save
  bool has_own_trace_ = false;
  std::atomic<bool> is_done_ = false;
  std::atomic<int64_t> seen_ = 0;  // outputs of the kind so far
  std::shared_ptr<const Trace::Watch> watch_;
  std::function<void()> flip_back_;  // after the save of a checkpoint
};

/// Thrown for the fault "return".
struct LeftEarly {};

/// One rank of a run: its part of the model, the engine, the trainer and, for `train`, the console
/// and the files of metrics. All ranks compute the same steps, validations and samples, each
/// on its own micro-batches of a step, and share the questions of scores. Only rank 0 prints and
/// writes. `plan` uses it on a meta device, where losses and norms are 0, no weights are read and
/// nothing is printed or written. Every function is collective.
class Rank {
 public:
  /// Run, communicator and the device's owner must outlive it. The initial parameters depend only
  /// on the run's seed.
  Rank(const Run& run, Communicator& ranks, const Device& device);
  ~Rank();
  /// Loads the weights that the run resumes or starts from, prints the first lines of the run and
  /// trains. Returns the exit status. Rank 0 prints the memory table, after an error too. A signal
  /// to one rank ends all ranks, after the last step is saved. `stop`: shared by ranks that are
  /// threads, which can then also stop before a micro-batch of training and validation and before a
  /// token of a sample. Null: the run stops between steps only.
  int train(const zero::InterruptScope& interrupt, zero::CommonStop* stop);
  /// On a meta device: takes the steps of train() without its output. Returns their memory.
  RankMemory plan();
  zero::Trainer& trainer() { return *trainer_; }        ///< for single steps
  const RankMemory& memory() const { return memory_; }  ///< after train(): counted over its steps
  /// After train(): neither interrupted nor ended by an injected fault.
  bool finished() const { return finished_; }

 private:
  using Phase = FaultInjection::Phase;

  zero::TrainerOptions trainer_options() const;
  zero::TrainerTask task();
  zero::TrainerHooks hooks();
  void load();
  void load_adapters();
  Var forward(Tape& tape, const zero::MicroBatch& batch);
  void observe(zero::TrainerMoment moment, const zero::MicroBatch& batch);
  void note_counted_step();
  /// Injects the fault of the run's options if it is for this rank, phase and step.
  void inject_fault(Phase phase, int64_t steps_ago = 0);
  bool reaches_stop() { return stop_ && stop_->reached(ranks_.rank()); }
  Tape inference_tape();
  Evaluation evaluation();                  // decoders only
  double validation_loss(int64_t batches);  // 0: the whole split
  std::vector<int32_t> sample();            // the tokens of a short text
  void validate();
  void print_sample();
  void plan_end();
  RankMemory count_memory() const;  // so far in this run

  // The run's output: rank_report.cpp.
  void open_outputs();
  void announce();
  std::string description_of_adapters() const;
  zero::ReportOptions report_options() const;
  void complete_report(const std::string& hash);
  int run_steps();
  void begin_step();
  void note_step(const zero::TrainedStep& step);
  void note_divergence(int64_t step, double loss);
  void note_growth(int64_t samples);
  /// Writes to the file of `flag` if it is open. After a write error the file is closed and the run
  /// goes on.
  template <class File, class... What>
  void write(const char* flag, std::optional<File>& file, const What&... what);
  void report(const zero::TrainedStep& step);
  void print_step(const zero::StepRecord& record);
  void report_epochs();
  void write_trace();
  zero::MetricsBoard::Progress place() const;
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
  const Device device_;
  const bool is_planned_;
  Mesh mesh_;
  ParameterStore store_;
  std::optional<BlockRecord> blocks_;  // with --report, in the first steps
  std::unique_ptr<RunModel> model_;
  std::unique_ptr<zero::Engine> engine_;
  std::unique_ptr<zero::Trainer> trainer_;
  std::optional<FlippedBit> flip_;  // the injected fault

  SampleRange step_;  // samples of the newest step
  MemoryRows rows_;
  std::vector<MemoryRow> reported_rows_;           // of the first steps, with --report
  MemoryBlocks reported_blocks_;                   // of the last one of them, on rank 0
  std::optional<zero::StepLaunchNotes> launches_;  // with --kernels
  // In the step that `launches_` counts: tokens of all ranks, micro-batches of this rank.
  int64_t counted_tokens_ = 0, counted_micro_batches_ = 0;
  RankMemory memory_;
  int64_t validated_at_ = -1;

  // In train() only.
  const zero::InterruptScope* interrupt_ = nullptr;
  zero::CommonStop* stop_ = nullptr;
  std::optional<Console> console_;
  std::optional<zero::MetricsFile> metrics_;
  std::optional<zero::MetricsBoard> tensorboard_;
  std::optional<DeepSpeedLog> deepspeed_log_;
  std::string reported_;       // path of the last step_N whose failed save was printed
  int64_t log_interval_ = 0;   // steps between loss lines; 0: none
  int64_t diverged_at_ = -1;   // first step with a non-finite loss since the last finite one
  double peak_flops_ = 0.0;    // all ranks together; 0: unknown
  double seconds_ = 0.0;       // total over the steps of this run
  int64_t peak_bytes_ = 0;     // largest value in the steps of this run
  bool results_lost_ = false;  // a file of results could not be written completely
  bool table_printed_ = false, finished_ = false;
};

}  // namespace zg::tools
