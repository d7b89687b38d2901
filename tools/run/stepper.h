#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "tools/options/fault_injection.h"
#include "tools/output/memory_json.h"
#include "tools/run/evaluation.h"
#include "tools/run/run.h"
#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/engine.h"
#include "zerograd/zero/interrupt.h"
#include "zerograd/zero/trainer.h"

namespace zg::tools {

/// True every `interval` steps; false if `interval` is 0.
inline bool is_due(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

/// One rank's part of the model, its engine and its trainer. `train` runs it on a device. `plan`
/// runs it on a device without memory, where losses and norms are 0, no weights are read and no
/// gradients are written. Every call is collective.
class Stepper {
 public:
  /// Run and communicator must outlive it. Initial values follow from the run's seed. `hooks` are
  /// the caller's; the stepper adds checkpoint contents, memory rows, fault injection and stops
  /// within a step.
  Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep,
          const std::optional<zero::CheckpointDirectory::Options>& checkpoints,
          zero::TrainerHooks hooks);
  ~Stepper();

  void load();  ///< loads the weights that the run resumes or starts from
  zero::Trainer& trainer() { return *trainer_; }
  /// From now on steps, validation and samples check this stop before each micro-batch and each
  /// token, and end the run when it is set. Null: they do not check.
  void stop_with(zero::CommonStop* stop) { stop_ = stop; }
  Evaluation evaluation();
  double validation_loss();
  std::vector<int32_t> sample();  ///< the tokens of a short text

  /// Passes a point where a fault can be injected.
  void pass(FaultInjection::Phase phase, int64_t step);
  void pass(FaultInjection::Phase phase) { pass(phase, engine_->steps()); }

  zero::Engine& engine() { return *engine_; }
  const Mesh& mesh() const { return mesh_; }
  const models::GPT& model() const { return *model_; }
  const MemoryRows& memory() const { return memory_; }
  RankMemory rank_memory() const;  ///< counted so far

 private:
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
  std::unique_ptr<models::GPT> model_;
  std::unique_ptr<zero::Engine> engine_;
  std::unique_ptr<zero::Trainer> trainer_;
  MemoryRows memory_;
  zero::CommonStop* stop_ = nullptr;
};

}  // namespace zg::tools
