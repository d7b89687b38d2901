#pragma once

#include <memory>
#include <vector>

#include "tools/evaluation.h"
#include "tools/interrupt.h"
#include "tools/memory_json.h"
#include "tools/run.h"
#include "zerograd/models/gpt.h"
#include "zerograd/models/pipeline.h"
#include "zerograd/runtime/mesh.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/schedule.h"

namespace zg::tools {

/// Every `interval` steps; never when that is 0.
inline bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

/// One rank's part of the model and its engine, and all that a run does with them before its last
/// step is taken: what `train` runs on a device and `plan` walks on one without memory, where
/// losses and norms are 0, no weights are read and no gradients written. Every call is collective.
class Stepper {
 public:
  /// Run and communicator must outlive it. Initial values are from the run's seed.
  Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep);
  ~Stepper();

  /// Loads what the run resumes or starts from. The micro-batches consumed so far, of all ranks.
  int64_t load();

  struct Step {
    int64_t micro_batches;  ///< of each rank
    int64_t samples;        ///< of all ranks
    double loss;            ///< mean over all micro-batches of all ranks
    double rate;
    zero::StepResult result;
  };
  /// One optimizer step on the next samples, at the schedule's rate for what was taken so far.
  /// Stopped: the state is as it was before.
  Step step();
  /// The run as a checkpoint of this moment keeps it.
  zero::CheckpointInfo checkpoint_info(int64_t micro_batches) const;
  /// From here on steps, validation and samples look for this stop before each micro-batch and each
  /// token, and throw Stopped at it. Null: they do not.
  void stop_with(CommonStop* stop) { stop_ = stop; }
  double rate() const;  ///< of the next step
  Evaluation evaluation();
  double validation_loss();
  std::vector<int32_t> sample();  ///< the tokens of a short text
  /// Called after a step: a signal finds the ranks at different places and, where they are
  /// processes, not all of them, so one that any rank got counts for all. SIGTERM, SIGINT, SIGHUP,
  /// SIGPIPE, kill_switch (which only rank 0 looks for) or 0.
  int agreed(int reason);

  /// Here a drill may strike.
  void pass(Drill::Phase phase, int64_t step);
  void pass(Drill::Phase phase) { pass(phase, engine_->steps()); }

  zero::Engine& engine() { return *engine_; }
  const Mesh& mesh() const { return mesh_; }
  const models::GPT& model() const { return *model_; }
  Settings& settings() { return settings_; }  ///< its samples move on
  const MemoryRows& memory() const { return memory_; }
  RankMemory rank_memory() const;  ///< so far

 private:
  friend class TrainingStage;
  Tape inference_tape();
  bool reaches_stop() { return stop_ && stop_->reached(ranks_.rank()); }
  Step take_step();

  const Run& run_;
  Communicator& ranks_;
  Device device_;
  Mesh mesh_;
  Settings settings_;
  ParameterStore store_;
  std::unique_ptr<models::GPT> model_;
  std::unique_ptr<zero::Engine> engine_;
  zero::Schedule schedule_;
  MemoryRows memory_;
  CommonStop* stop_ = nullptr;
};

}  // namespace zg::tools
