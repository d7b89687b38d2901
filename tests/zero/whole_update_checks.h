#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/matrix_toy.h"
#include "tests/zero/training_run.h"
#include "zerograd/zero/checkpoint/snapshot.h"

// The promises of every optimizer that needs whole parameters (zero/optimizer/whole_update.h).
namespace zg::testing {

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
  std::vector<zero::Config> precisions = {
      {.update = update},
      {.compute = DType::bf16, .update = grouped},
      {.compute = DType::f16, .update = update, .loss_scaling = low_scale},
      {.compute = DType::bf16,
       .optimizer = DType::bf16,
       .grad_accum = DType::bf16,
       .update = stochastic}};
  std::vector<std::string> hashes;
  for (zero::Config& plain : precisions) {
    // `wide` and `alone` have fewer elements and stay gathered at stage 3; `tall` does not.
    plain.param_persistence_threshold = 160;
    hashes.push_back(train_on_ranks<MatrixToy>(plain, {}).hash);
    CHECK(std::count(hashes.begin(), hashes.end(), hashes.back()) == 1);
  }
  for_cover(
      [&](size_t precision, int stage, int ranks, const zero::OffloadOptions& offload) {
        INFO("precision ", precision, ", stage ", stage, ", ranks ", ranks, ", ",
             name_of(offload.optimizer));
        zero::Config config = precisions[precision];
        config.stage = stage;
        config.offload = offload;
        if (stage == 3 && ranks > 1) config.offload.parameter = file;
        config.allgather_bucket_size = ranks == 3 ? 100 : 500'000'000;
        const TrainingRun run{.ranks = ranks, .threads = 1 + ranks % 2};
        CHECK(train_on_ranks<MatrixToy>(config, run).hash == hashes[precision]);
      },
      std::vector<size_t>{0, 1, 2, 3}, std::vector{0, 1, 2, 3}, std::vector{1, 2, 3, 4}, places);
  for (size_t precision = 0; precision < hashes.size(); ++precision)
    for (const int stage : {0, 3}) {
      INFO("precision ", precision, ", saved at stage ", stage);
      const TemporaryFolder folder;
      zero::Config config = precisions[precision];
      config.stage = stage;
      train_on_ranks<MatrixToy>(config, {.ranks = 3, .end = 2, .directory = folder.path()});
      zero::verify_checkpoint(folder / "step_2");
      config.stage = 3 - stage;
      const TrainingRun rest{.ranks = 2, .first = 2, .directory = folder.path()};
      CHECK(train_on_ranks<MatrixToy>(config, rest).hash == hashes[precision]);
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
      check_planned(3, program, {.swap = {.directory = "/tmp"}});
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
