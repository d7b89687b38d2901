#pragma once

#include <functional>
#include <memory>

#include "models/gpt.h"
#include "tools/memory_json.h"
#include "tools/run.h"
#include "zero/engine.h"
#include "zero/schedule.h"

namespace zg::tools {

/// One rank's model, engine and steps, with nothing read, written or printed: what `train` runs on
/// a device and `plan` walks on one without memory. There losses and norms are 0.
class Stepper {
 public:
  /// Run and communicator must outlive it. Initial values are from the run's seed.
  Stepper(const Run& run, Communicator& ranks, const Device& device, MemoryRows::Keep keep);

  struct Step {
    double loss;  ///< mean over all micro-batches of all ranks
    double rate;
    zero::StepResult result;
  };
  /// One optimizer step on the next samples, at the schedule's rate for the steps taken so far;
  /// `before_update` sees its gradients. Collective.
  Step step(const std::function<void()>& before_update = {});
  /// A signal finds the ranks at different places: rank 0's counts, after a step. Collective.
  int agreed(int signal);

  zero::Engine& engine() { return *engine_; }
  const models::GPT& model() const { return *model_; }
  Settings& settings() { return settings_; }  ///< its samples move on
  const MemoryRows& memory() const { return memory_; }
  RankMemory rank_memory() const;  ///< so far

 private:
  double micro_batch(int64_t index);

  const Run& run_;
  Communicator& ranks_;
  Device device_;
  Settings settings_;
  ParameterStore store_;
  std::unique_ptr<models::GPT> model_;
  std::unique_ptr<zero::Engine> engine_;
  zero::Schedule schedule_;
  MemoryRows memory_;
};

}  // namespace zg::tools
