#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/pipeline.h"
#include "zerograd/runtime/trace.h"
#include "zerograd/zero/audit.h"
#include "zerograd/zero/batch_size.h"
#include "zerograd/zero/checkpoint/checkpoint_directory.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/optimizer/schedule.h"
#include "zerograd/zero/report.h"
#include "zerograd/zero/trainer_position.h"

namespace zg::zero {

/// One micro-batch of this rank. A run counts its samples from 0, over all steps and ranks; this
/// micro-batch has the samples [first_sample, first_sample + samples).
struct MicroBatch {
  int64_t step = 0;   ///< number of steps before this one, including skipped ones
  int64_t index = 0;  ///< index among this rank's micro-batches of the step
  int64_t first_sample = 0;
  int64_t samples = 0;
  bool last = false;            ///< this rank's last one in the step
  std::vector<Tensor> tensors;  ///< returned by TrainerTask::batch
  Var input;  ///< in a pipeline: the output of the previous stage; absent on the first one
};

/// The model and its data, as functions. The trainer itself does not depend on a model.
struct TrainerTask {
  /// Makes the tensors of a micro-batch, whose `tensors` are still empty. May be absent.
  std::function<std::vector<Tensor>(const MicroBatch& batch)> batch = {};
  /// Returns the mean loss over the micro-batch, a tensor of one element. In a pipeline: the output
  /// of this rank's stage; on the last stage the loss.
  std::function<Var(Tape& tape, const MicroBatch& batch)> forward = {};
  /// In a pipeline: the tensor sent between stages, for the given number of samples.
  std::function<StageOutput(int64_t samples)> stage_output = {};
  /// The number of targets of samples [first_sample, first_sample + samples): a function of the
  /// data, which every rank can call for all samples of a step. If it is given, gradient and loss
  /// of a step are means over its targets (target_weight() in zero/engine.h). Absent: means over
  /// micro-batches. `forward` returns the mean over a micro-batch's targets in both cases; 0, with
  /// zero gradients, if there are none.
  std::function<int64_t(int64_t first_sample, int64_t samples)> targets = {};
};

struct TrainerOptions {
  int64_t micro_batch = 1;   ///< samples of a micro-batch
  int64_t accumulation = 1;  ///< micro-batches of each rank in a step, after the ramp-up
  BatchRampup rampup = {};   ///< batch growth up to micro_batch * accumulation * data ranks
  /// run() ends at this step number; skipped steps and steps before a resume are counted.
  int64_t steps = 0;
  ScheduleOptions schedule = {};
  /// With several pipeline stages. One stage does a micro-batch before the next one begins.
  PipelineSchedule pipeline = PipelineSchedule::one_f_one_b;
  /// Directory and retention of checkpoints. Absent: nothing is saved. `loss_of` may be absent: the
  /// trainer knows where a checkpoint stores the loss.
  std::optional<CheckpointDirectory::Options> checkpoints = {};
  int64_t save_interval = 0;  ///< steps between saves; 0: save only at the end
  int64_t stop_interval = 0;  ///< run() ends after each multiple of this many steps; 0: never
  /// After this many steps in a row that are skipped or have a loss that is not finite, run()
  /// throws Error with the first bad tensor. Steps that lower a dynamic loss scale do not count; it
  /// has an end of its own. A save that is due in such a row is made after it. 0: never.
  int64_t max_bad_steps = 50;
  std::shared_ptr<Trace> trace = {};  ///< records the steps [trace_first, trace_end)
  int64_t trace_first = 0, trace_end = 0;
  /// The file of the run's audit trail (zero/audit.h). Absent: none is written.
  std::optional<AuditOptions> audit = {};
  /// The page of the run (zero/report.h), which rank 0 writes. Absent: none is written.
  std::optional<ReportOptions> report = {};
  /// The base of checkpoints (CheckpointInfo::base), if parameters are not saved. resume() does not
  /// read it. TrainerHooks::describe sets its own.
  CheckpointInfo::Base base = {};
};

/// Points of a step at which TrainerHooks::observe is called, in this order.
enum class TrainerMoment : uint8_t {
  step_begins,
  batch_ready,       ///< for each micro-batch: `tensors` are filled
  forward_done,      ///< for each micro-batch
  backward_begins,   ///< for each micro-batch
  backward_done,     ///< for each micro-batch
  gradients_ready,   ///< Engine::read(State::gradient) returns the accumulated gradients
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
  int stop = 0;       ///< the result of TrainerHooks::stop, for Reason::stopped
  bool saved = true;  ///< the last save of run() succeeded, or nothing is saved
};

/// A function of the task or a hook throws it to end the run, on all ranks at the same point.
/// Before the optimizer has begun, the step is dropped as by TrainerHooks::give_up. In a pipeline
/// it must not be thrown within a micro-batch (ConfigError), because stages are at different
/// points.
struct StopTraining {};

/// Functions that the trainer calls on every rank. Each may be absent.
struct TrainerHooks {
  std::function<void(int64_t step)> before_step = {};
  /// Called after each step, before it is saved: for validation, metrics, output.
  std::function<void(const TrainedStep& step)> after_step = {};
  /// Called after each step. A result from 1 to 5 on any rank ends the run on all ranks; the
  /// smallest result is reported. 5 from another rank than 0 is ignored. 0: the run continues.
  std::function<int()> stop = {};
  /// Called before each micro-batch, in the same order on all ranks, which must return the same
  /// value. True: the step is dropped, and the engine is as it was before the step.
  std::function<bool()> give_up = {};
  /// Called once, after the last step and before it is saved.
  std::function<void(const TrainingEnd& end)> ended = {};
  std::function<void(TrainerMoment moment, const MicroBatch& batch)> observe = {};
  /// Called with the result of each save. Absent: failures are passed to `warn`.
  CheckpointDirectory::Report saved = {};
  /// Called with warnings: an audit trail or saves that failed, damaged checkpoints that resume()
  /// skipped, older checkpoints that could not be removed. Absent: they are printed on stderr.
  CheckpointDirectory::Warn warn = {};
  /// For a program that stores its own settings in a checkpoint; set both functions. `describe`
  /// writes position and settings to CheckpointInfo (the trainer sets the counters afterwards).
  /// `position_of` reads the position. Absent: config_json is {"schema":"zerograd.trainer/1", ...}
  /// with the position.
  std::function<CheckpointInfo(const TrainerPosition& position)> describe = {};
  std::function<TrainerPosition(const CheckpointInfo& info, const std::string& path)> position_of =
      {};
};

/// Training loop: micro-batches, learning rate, batch ramp-up, stops, checkpoints. The engine does
/// clipping, loss scale, precision and offload (zero/config.h).
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
/// The micro-batches of a step are distributed over the data ranks in turn, so the samples of a
/// step and the bits of its result do not depend on the number of ranks. On a device without memory
/// (runtime/plan.h) it counts the memory and the exchanges of a run. Every call is collective.
///
/// It does not lock its checkpoint directory. A program that may be started twice makes a
/// DirectoryLock on rank 0, so that the second process stops with an error.
class ZG_API Trainer {
 public:
  /// The engine must outlive the trainer. Throws ConfigError for inconsistent options.
  Trainer(Engine& engine, TrainerOptions options, TrainerTask task, TrainerHooks hooks = {});
  ~Trainer();
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Continues from a step_N, or from the newest of a directory that verifies. False: the directory
  /// has no checkpoint or does not exist, and the run starts from the beginning. Options are not
  /// compared with those of the saved run. Throws FileError.
  bool resume(const std::string& path);
  /// Continues from an open checkpoint. All ranks must open the same one.
  void resume(const CheckpointReader& checkpoint);

  /// Runs steps until there is a reason to end (TrainingEnd), then saves. A failed save does not
  /// end the run. Throws Error on all ranks after TrainerOptions::max_bad_steps.
  TrainingEnd run();
  /// Runs one step. Returns nothing if TrainerHooks::give_up or StopTraining ended it.
  std::optional<TrainedStep> step();
  /// Saves now, unless this step is saved already. Returns false if this save failed, or an earlier
  /// one that was still being written. ConfigError without TrainerOptions::checkpoints.
  bool save();
  /// Sets the score for retention, for example a validation loss. Smaller is better.
  void set_score(double score);

  const TrainerPosition& position() const;
  int64_t next_samples() const;        ///< samples of the next step on all ranks
  int64_t next_micro_batches() const;  ///< micro-batches of the next step on each rank
  double next_rate() const;
  /// To add validations and facts; null without TrainerOptions::report and before the first step.
  Report* report();
  /// Records of the audit trail are missing, because its file could not be written. `warn` was
  /// told.
  bool audit_is_lost() const;
  /// The non-tensor contents that save() writes.
  CheckpointInfo checkpoint_info() const;

 private:
  std::unique_ptr<struct TrainerState> state_;
};

}  // namespace zg::zero
