#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/pipeline.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/batch_rampup.h"
#include "zerograd/zero/checkpoint_directory.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/schedule.h"

namespace zg::zero {

/// One micro-batch of this rank. A run counts its samples from 0, over all steps and ranks; this
/// micro-batch has the samples [first_sample, first_sample + samples).
struct MicroBatch {
  int64_t step = 0;   ///< steps attempted before this one
  int64_t index = 0;  ///< among this rank's micro-batches of the step
  int64_t first_sample = 0;
  int64_t samples = 0;
  bool last = false;            ///< this rank's last one in the step
  std::vector<Tensor> tensors;  ///< returned by TrainerTask::batch
  Var input;  ///< in a pipeline: the output of the stage before; absent on the first
};

/// The model and its data, as functions. A trainer knows no model.
struct TrainerTask {
  /// Makes the tensors of a micro-batch (its `tensors` are still empty). May be absent.
  std::function<std::vector<Tensor>(const MicroBatch& batch)> batch = {};
  /// The mean loss over the micro-batch, of one element; in a pipeline the output of this rank's
  /// stage, on the last stage the loss.
  std::function<Var(Tape& tape, const MicroBatch& batch)> forward = {};
  /// In a pipeline: the tensor that passes between stages, for so many samples.
  std::function<StageOutput(int64_t samples)> between = {};
};

struct TrainerOptions {
  int64_t micro_batch = 1;   ///< samples of a micro-batch
  int64_t accumulation = 1;  ///< micro-batches of each rank in a step, once the batch is whole
  BatchRampup rampup = {};   ///< how the batch grows to micro_batch * accumulation * data ranks
  int64_t steps = 0;         ///< run() ends when so many were attempted, before a resume included
  ScheduleOptions schedule = {};
  PipelineSchedule pipeline = PipelineSchedule::one_f_one_b;
  /// Where checkpoints go, and which are kept. Absent: nothing is saved. `loss_of` may be absent:
  /// the trainer knows how it keeps the loss.
  std::optional<CheckpointDirectory::Options> checkpoints = {};
  int64_t save_interval = 0;  ///< steps between saves; 0: only the end of the run is saved
  int64_t stop_interval = 0;  ///< run() ends after each multiple of so many steps; 0: it does not
  std::shared_ptr<Trace> trace = {};  ///< records the steps [trace_first, trace_end)
  int64_t trace_first = 0, trace_end = 0;
};

/// Where a run is, beside the engine's own state. A checkpoint keeps it.
struct TrainerPosition {
  int64_t samples = 0;          ///< consumed by all ranks
  int64_t skipped_samples = 0;  ///< those of steps that were skipped
  int64_t micro_batches = 0;    ///< consumed by all ranks
  /// Compared where not all checkpoints are kept: the last step's mean loss, or what set_score()
  /// was given. NaN: unknown.
  double score = std::numeric_limits<double>::quiet_NaN();
};

/// One step that was attempted.
struct TrainedStep {
  int64_t step = 0;           ///< counted from 0
  int64_t micro_batches = 0;  ///< of each rank
  int64_t samples = 0;        ///< of all ranks
  double loss = 0.0;          ///< mean over all micro-batches of all ranks
  double rate = 0.0;
  StepResult result;
};

/// Points of a step that an observer is called at, in this order.
enum class TrainerMoment : uint8_t {
  step_begins,
  batch_ready,       ///< of each micro-batch: `tensors` are there
  forward_done,      ///< of each micro-batch
  backward_begins,   ///< of each micro-batch
  backward_done,     ///< of each micro-batch
  gradients_ready,   ///< Engine::read(State::gradient) gives their sums
  optimizer_begins,  ///< in the phase "step"
  step_done
};

struct TrainingEnd {
  enum class Reason : uint8_t {
    finished,  ///< TrainerOptions::steps
    interval,  ///< TrainerOptions::stop_interval
    stopped,   ///< TrainerHooks::stop
    given_up   ///< TrainerHooks::give_up, within a step
  } reason = Reason::finished;
  int stop = 0;       ///< stopped: what the hook returned
  bool saved = true;  ///< of run()'s result: the last save succeeded, or nothing is saved
};

/// A function of the task or a hook throws it to end the run, on all ranks at the same point.
/// Before the optimizer has begun the step is given up, as by TrainerHooks::give_up. In a pipeline
/// it is a ConfigError within a micro-batch, where stages are at different points.
struct StopTraining {};

/// Called on every rank. Each may be absent.
struct TrainerHooks {
  std::function<void(int64_t step)> before_step = {};
  /// Validation, metrics, output. Before the step is saved.
  std::function<void(const TrainedStep& step)> after_step = {};
  /// Asked after each step: 1 to 5 ends the run on all ranks where any rank says so, the smallest
  /// first. 5 counts on rank 0 only. 0: the run goes on.
  std::function<int()> stop = {};
  /// Asked before each micro-batch, in the same order on all ranks, which must answer alike. True:
  /// the step is given up, and the engine is as it was before.
  std::function<bool()> give_up = {};
  /// Once, when no more steps follow and the last one is not saved yet.
  std::function<void(const TrainingEnd& end)> ended = {};
  std::function<void(TrainerMoment moment, const MicroBatch& batch)> observe = {};
  /// The outcome of each save. Absent: `warn` is told of failures.
  CheckpointDirectory::Report saved = {};
  /// Saves that failed, damaged checkpoints that resume() passed over, older ones that could not be
  /// removed. Absent: they are printed on stderr.
  CheckpointDirectory::Warn warn = {};
  /// A program that keeps settings of its own in a checkpoint gives both: `describe` puts position
  /// and settings into CheckpointInfo (counters are filled in after it), `position_of` reads the
  /// position back. Absent: config_json is {"schema":"zerograd.trainer/1", ...} with the position.
  std::function<CheckpointInfo(const TrainerPosition& position)> describe = {};
  std::function<TrainerPosition(const CheckpointInfo& info, const std::string& path)> position_of =
      {};
};

/// Trains: micro-batches, learning rate, batch ramp-up, stops, checkpoints. Clipping, loss scale,
/// precision and offload are the engine's (zero/config.h).
///
///   zero::Trainer trainer(engine,
///       {.micro_batch = 8, .accumulation = 2, .steps = 1000, .schedule = {.rate = 3e-4},
///        .checkpoints = {{.path = "runs/a", .keep = 2}}, .save_interval = 100},
///       {.batch = [&](const zero::MicroBatch& b) { return data.tensors(b.first_sample, b.samples);
///       },
///        .forward = [&](Tape& tape, const zero::MicroBatch& b) {
///          return net.loss(tape, b.tensors[0], b.tensors[1]);
///        }},
///       {.after_step = [](const zero::TrainedStep& s) { std::printf("%g\n", s.loss); }});
///   trainer.resume("runs/a");
///   trainer.run();
///
/// Data ranks take the micro-batches of a step in turn, so that the samples of a step and the bits
/// of its result do not depend on the number of ranks. On a device without memory (runtime/plan.h)
/// it takes the memory and makes the exchanges of a run. Every call is collective.
///
/// It does not lock the directory of its checkpoints. A program that may be started twice makes a
/// DirectoryLock on rank 0, which keeps the other one out.
class ZG_API Trainer {
 public:
  /// The engine must outlive it. ConfigError for options that do not go together.
  Trainer(Engine& engine, TrainerOptions options, TrainerTask task, TrainerHooks hooks = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Goes on from a step_N, or from the newest of a directory that verifies. False: the directory
  /// has no checkpoint, or is not there, and the run starts afresh. Options may differ from those
  /// of the run that saved; they are not compared. FileError.
  bool resume(const std::string& path);
  /// Goes on from a checkpoint that is open. All ranks open the same one.
  void resume(const CheckpointReader& checkpoint);

  /// Steps until one of TrainingEnd's reasons, and saves the end. A failed save ends nothing.
  TrainingEnd run();
  /// One step. Absent: TrainerHooks::give_up or StopTraining ended it.
  std::optional<TrainedStep> step();
  /// Saves now, unless this step is saved. False: it failed, or a save before that was still being
  /// written did. ConfigError without TrainerOptions::checkpoints.
  bool save();
  /// From now on retention compares this, a validation loss for instance. Smaller is better.
  void set_score(double score);

  const TrainerPosition& position() const;
  int64_t next_samples() const;        ///< of the next step, all ranks
  int64_t next_micro_batches() const;  ///< of the next step, each rank
  double next_rate() const;
  /// What save() writes beside the tensors.
  CheckpointInfo checkpoint_info() const;

 private:
  std::unique_ptr<struct TrainerState> state_;
};

}  // namespace zg::zero
