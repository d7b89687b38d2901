#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tools/options/fault_injection.h"
#include "tools/output/memory_json.h"
#include "tools/run/evaluation.h"
#include "tools/run/run.h"
#include "tools/run/run_model.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/interrupt.h"
#include "zerograd/zero/metrics.h"
#include "zerograd/zero/trainer.h"

namespace zg::tools {

/// True every `interval` steps; false if `interval` is 0.
inline bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

/// Holds one rank's part of the model, the engine and the trainer of a run. `train` uses it on a
/// real device. `plan` uses it on a meta device, where losses and norms are 0, no weights are read
/// and no gradients are written. The constructor, load(), validation_loss(), sample() and the
/// functions of the trainer are collective.
class Stepper {
 public:
  /// `run` and `ranks` must outlive the Stepper. The initial parameters depend only on the run's
  /// seed. `hooks` are the caller's, except describe, position_of, observe and give_up, which the
  /// Stepper sets: checkpoint contents, memory rows, fault injection, stops within a step.
  Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep,
          const std::optional<zero::CheckpointDirectory::Options>& checkpoints,
          zero::TrainerHooks hooks);
  ~Stepper();

  void load();  ///< loads the weights that the run resumes or starts from
  zero::Trainer& trainer() { return *trainer_; }
  /// From now on stop->reached() is called before each micro-batch of training and validation and
  /// before each token of sample(). If it returns true, the run ends. Null: no such calls.
  void stop_with(zero::CommonStop* stop) { stop_ = stop; }
  Evaluation evaluation();  ///< of a decoder
  double validation_loss() { return validation_loss(run_.options.eval_batches); }
  double validation_loss(int64_t batches);  ///< 0: of the whole split
  std::vector<int32_t> sample();            ///< the tokens of a short text

  /// Injects the fault of the run's options if it is for this rank, phase and step.
  void inject_fault(FaultInjection::Phase phase, int64_t step);
  void inject_fault(FaultInjection::Phase phase) { inject_fault(phase, engine_->steps()); }

  zero::Engine& engine() { return *engine_; }
  const Mesh& mesh() const { return mesh_; }
  const RunModel& model() const { return *model_; }
  int64_t step_tokens() const { return model_->tokens(step_); }  ///< of the newest step
  const MemoryRows& memory() const { return memory_; }
  RankMemory rank_memory() const;  ///< counted so far in this run
  /// With --kernels: of the step that is counted, once it is done.
  std::optional<StepLaunches> launches() const {
    return launches_ ? launches_->counted() : std::nullopt;
  }

 private:
  void load_adapters();
  void note_counted_step();
  zero::TrainerTask task();
  Var forward(Tape& tape, const zero::MicroBatch& batch);
  void observe(zero::TrainerMoment moment, const zero::MicroBatch& batch);
  Tape inference_tape();
  bool reaches_stop() { return stop_ && stop_->reached(ranks_.rank()); }

  const Run& run_;
  Communicator& ranks_;
  Device device_;
  Mesh mesh_;
  ParameterStore store_;
  std::unique_ptr<RunModel> model_;
  SampleRange step_;  // the newest step
  // With --kernels: in the step that is counted, of all ranks, of this rank.
  int64_t counted_tokens_ = 0, counted_micro_batches_ = 0;
  std::unique_ptr<zero::Engine> engine_;
  std::unique_ptr<zero::Trainer> trainer_;
  MemoryRows memory_;
  std::optional<zero::StepLaunchNotes> launches_;  // with --kernels
  zero::CommonStop* stop_ = nullptr;
};

}  // namespace zg::tools
