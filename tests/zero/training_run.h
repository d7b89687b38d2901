#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/zero/toy.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

// Training on local ranks, as tests of the engine compare it: the same micro-batches for any number
// of ranks.
namespace zg::testing {

/// For TEST_CASE_FIXTURE: an engine of the toy on one rank, and a folder for checkpoints.
struct ToyEngine {
  const TemporaryFolder folder = {};
  const Toy toy;
  zero::Engine engine{toy.store, Device::cpu()};
};

struct TrainingRun {
  int ranks = 1, first = 0, end = 3;  ///< steps [first, end)
  int micro_batches = 12;             ///< of a step, on all ranks
  std::string directory = {};  ///< of checkpoints: one is loaded if first > 0, and saved at the end
  int threads = 0;             ///< 0: the default
  float rate = 1e-2f;
};

struct TrainingOutcome {
  std::string hash;
  std::vector<double> losses, norms, scales;  ///< by step
  std::vector<std::string> bad_tensors;       ///< by step; empty if it was applied
  int64_t skipped = 0;
  bool operator==(const TrainingOutcome&) const = default;
};

/// Takes the steps of a run on one of its ranks. `micro_batch(engine, number)` returns a loss.
template <class F>
TrainingOutcome take_steps(zero::Engine& engine, const TrainingRun& run, const F& micro_batch) {
  TrainingOutcome outcome;
  for (int step = run.first; step < run.end; ++step) {
    std::vector<double> losses;
    engine.expect_step(run.micro_batches / run.ranks, run.rate);
    for (int g = engine.ranks().rank(); g < run.micro_batches; g += run.ranks)
      losses.push_back(micro_batch(engine, static_cast<uint64_t>(100 * step + g)));
    outcome.losses.push_back(engine.mean_loss(losses));
    const zero::StepResult result = engine.step(run.rate);
    outcome.norms.push_back(result.gradient_norm);
    outcome.scales.push_back(result.loss_scale);
    outcome.bad_tensors.push_back(result.bad_tensor);
  }
  outcome.skipped = engine.skipped();
  outcome.hash = engine.parameter_hash();
  return outcome;
}

/// Trains a Model on local ranks. The outcome is that of every rank. `micro_batch` takes the
/// engine, the model if it needs it, and the number of the micro-batch.
template <class Model = Toy, class F = double (*)(zero::Engine&, uint64_t)>
TrainingOutcome train_on_ranks(const zero::Config& config, const TrainingRun& run,
                               const F& micro_batch = train_micro_batch) {
  TrainingOutcome outcome;
  std::mutex mutex;
  const auto rank = [&](Communicator& comm, const Device& device) {
    const Model model;
    zero::Engine engine(model.store, comm, device, config);
    if (run.first > 0) zero::load_checkpoint(run.directory, engine);
    const TrainingOutcome own = take_steps(engine, run, [&](zero::Engine&, uint64_t number) {
      if constexpr (std::is_invocable_v<F, zero::Engine&, uint64_t>)
        return micro_batch(engine, number);
      else
        return micro_batch(engine, model, number);
    });
    if (!run.directory.empty())
      zero::save_checkpoint(run.directory, engine,
                            {.steps = run.end,
                             .skipped = engine.skipped(),
                             .micro_batches = run.end * run.micro_batches});
    const std::lock_guard lock(mutex);
    if (outcome.hash.empty()) outcome = own;
    if (!(outcome == own)) throw ShapeError("ranks ended with different outcomes");
  };
  run_local(run.ranks, rank, {.device = {.threads = run.threads, .swap = {.directory = "/tmp"}}});
  return outcome;
}

}  // namespace zg::testing
