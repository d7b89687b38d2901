#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "tests/zero/matrix_toy.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/checkpoint/snapshot.h"

// The promises of every optimizer that needs whole parameters (zero/optimizer/whole_update.h).
namespace zg::testing {

struct MatrixRun {
  int ranks = 1, first = 0, end = 3, threads = 1;
  std::string directory = {};  ///< of checkpoints; empty: none
};

/// Trains MatrixToy in steps [first, end), from the checkpoint if first > 0, and saves a checkpoint
/// at the end if run.directory is not empty. Returns the hash of the parameters.
inline std::string train_matrices(zero::Config config, const MatrixRun& run) {
  constexpr int micro_batches = 12;  // in a step; divisible by 1 to 4 ranks
  std::string hash;
  std::mutex mutex;
  // `wide` and `alone` have fewer elements and stay gathered at stage 3; `tall` does not.
  config.param_persistence_threshold = 160;
  const auto rank = [&](Communicator& comm, const Device& device) {
    const MatrixToy toy;
    zero::Engine engine(toy.store, comm, device, config);
    if (run.first > 0) zero::load_checkpoint(run.directory, engine);
    for (int step = run.first; step < run.end; ++step) {
      for (int g = comm.rank(); g < micro_batches; g += run.ranks)
        train_micro_batch(engine, static_cast<uint64_t>(step * 100 + g));
      engine.step(1e-2f);
    }
    const std::string own = engine.parameter_hash();
    if (!run.directory.empty())
      zero::save_checkpoint(run.directory, engine,
                            {.steps = run.end, .micro_batches = run.end * micro_batches});
    const std::lock_guard lock(mutex);
    if (!hash.empty() && hash != own) throw ShapeError("ranks ended with different parameters");
    hash = own;
  };
  run_local(run.ranks, rank, {.device = {.threads = run.threads, .swap = {.directory = "/tmp"}}});
  return hash;
}

/// One hash for each precision: f32, bf16 and f16 with f32 masters, and all bf16 with stochastic
/// rounding, over stages, ranks, offload, threads, and a restart at another stage on other ranks.
/// `grouped` has parameter groups; it is used with bf16 values and f32 masters.
inline void check_one_hash(const zero::UpdateOptions& update, const zero::UpdateOptions& grouped) {
  using enum Space;
  zero::UpdateOptions stochastic = update;
  stochastic.stochastic_rounding = true;
  const zero::OffloadOptions places[] = {{},
                                         {.optimizer = host},
                                         {.optimizer = file, .sub_group_size = 128},
                                         {.gradient = file, .optimizer = file},
                                         {.optimizer = host, .optimizer_ratio = 0.5}};
  const zero::Config precisions[] = {
      {.update = update},
      {.compute = DType::bf16, .update = grouped},
      {.compute = DType::f16, .update = update, .loss_scaling = low_scale},
      {.compute = DType::bf16,
       .optimizer = DType::bf16,
       .grad_accum = DType::bf16,
       .update = stochastic}};
  std::vector<std::string> hashes;
  for (const zero::Config& plain : precisions) {
    INFO(name_of(plain.compute), ", ", name_of(plain.optimizer));
    const std::string expected = train_matrices(plain, {});
    CHECK(std::count(hashes.begin(), hashes.end(), expected) == 0);
    hashes.push_back(expected);
    for_settings(std::size(places), [&](int stage, int ranks, size_t place) {
      zero::Config config = plain;
      config.stage = stage;
      config.offload = places[place];
      if (stage == 3 && ranks > 1) config.offload.parameter = file;
      config.allgather_bucket_size = ranks == 3 ? 100 : 500'000'000;
      CHECK(train_matrices(config, {.ranks = ranks, .threads = 1 + ranks % 2}) == expected);
    });
    for (const int stage : {0, 3}) {
      const TemporaryFolder folder;
      zero::Config config = plain;
      config.stage = stage;
      train_matrices(config, {.ranks = 3, .end = 2, .directory = folder.path()});
      zero::verify_checkpoint(folder / "step_2");
      config.stage = 3 - stage;
      CHECK(train_matrices(config, {.ranks = 2, .first = 2, .directory = folder.path()}) ==
            expected);
    }
  }
}

/// A plan equals its run, in which step `skipped` has infinite gradients.
inline void check_plan(const zero::UpdateOptions& update, int skipped) {
  for (const int stage : {0, 1, 3})
    for (const Space space : {Space::device, Space::host, Space::file}) {
      INFO("stage ", stage, ", ", name_of(space));
      const Program program = [&](Communicator& ranks, const Device& device) {
        const MatrixToy toy;
        zero::Engine engine(toy.store, ranks, device,
                            {.stage = stage,
                             .compute = DType::bf16,
                             .update = update,
                             .offload = {.optimizer = space, .sub_group_size = 256}});
        for (int step = 0; step < 3; ++step) {
          const float value = step == skipped ? std::numeric_limits<float>::infinity() : 1.0f;
          Gradients gradients;
          for (const auto& parameter : toy.store.parameters())
            gradients[parameter.get()].assign(static_cast<size_t>(parameter->shape.numel()), value);
          run_micro_batch(engine, gradients);
          const zero::StepResult result = engine.step(1e-3f);
          if (device.type() != Device::Type::meta) CHECK(result.skipped == (step == skipped));
        }
      };
      const DeviceOptions device{.swap = {.directory = "/tmp"}};
      const Plan planned = plan_ranks(3, program, {.device = device});
      CHECK(planned.complete);
      CHECK((run_ranks(3, program, {.local = {.device = device}, .expect = &planned}) == planned));
    }
}

/// A snapshot that another thread reads during a step has the states from before the step. `state`:
/// one that the step changes for `tall`.
inline void check_snapshot(const zero::UpdateOptions& update, zero::Engine::State state) {
  using State = zero::Engine::State;
  const MatrixToy toy;
  zero::Engine engine(toy.store, Device::cpu(), {.update = update});
  train_step(engine, 0);
  std::map<std::pair<const Parameter*, State>, std::vector<float>> before, read;
  for (const auto& parameter : toy.store.parameters())
    for (const State each : {State::master, State::moment1, State::moment2})
      before[{parameter.get(), each}] = engine.read(*parameter, each);
  zero::Snapshot snapshot(engine);
  std::mutex mutex;
  std::condition_variable changed;
  bool stepped = false;
  std::thread reader([&] {
    // Before each piece the reader waits until the step has ended, at most 20 ms.
    for (size_t i = 0; i < snapshot.pieces().size(); ++i) {
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::milliseconds(20), [&] { return stepped; });
      }
      const zero::Snapshot::Piece& piece = snapshot.pieces()[i];
      snapshot.read(i, [&](std::span<const float> part) {
        std::vector<float>& values = read[{piece.parameter, piece.state}];
        values.insert(values.end(), part.begin(), part.end());
      });
    }
  });
  train_step(engine, 1);
  {
    const std::lock_guard lock(mutex);
    stepped = true;
  }
  changed.notify_all();
  reader.join();
  for (const auto& [key, values] : before)
    if (!values.empty()) CHECK(read[key] == values);
  CHECK(engine.read(toy.tall, state) != before[{&toy.tall, state}]);
}

}  // namespace zg::testing
