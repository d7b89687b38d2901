#include "zerograd/zero/checkpoint/snapshot.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "tests/support/cover.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/checkpoint/checkpoint_folder.h"
#include "zerograd/zero/checkpoint/checkpoint_save.h"

using namespace zg;
using namespace zg::testing;
using zero::CheckpointSave;
using zero::Config;
using zero::Engine;
using zero::Snapshot;
using State = Engine::State;
using namespace std::chrono_literals;

namespace {

using Values = std::map<std::pair<std::string, State>, std::vector<float>>;

Values states_of(const Engine& engine) {
  Values values;
  for (const auto& parameter : engine.store().parameters())
    for (const State& state : {State::master, State::moment1, State::moment2})
      values[{parameter->name, state}] = engine.read(*parameter, state);
  return values;
}

Values loaded(const std::string& path) {
  const Toy toy;
  Engine engine(toy.store, Device::cpu(), {.seed = 99});
  zero::load_checkpoint(path, engine);
  return states_of(engine);
}

/// Dtypes of compute and optimizer.
using Dtypes = std::pair<DType, DType>;
const Dtypes dtypes[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};
const Space spaces[] = {Space::device, Space::host, Space::file};

/// States in place, or through the bucket, or through a drive.
Config config_of(const Dtypes& types, Space states, int stage = 0, Space values = Space::device) {
  return {.stage = stage,
          .compute = types.first,
          .optimizer = types.second,
          .offload = {.parameter = stage == 3 ? values : Space::device,
                      .optimizer = states,
                      .sub_group_size = 64},
          .param_persistence_threshold = 20};
}

Device cpu_with_drive(const TemporaryFolder& folder) {
  return Device::cpu(0, {.swap = {.directory = folder.path()}});
}

}  // namespace

TEST_CASE("a save stores the state from when it began, while the engine trains and writes") {
  for_cover(
      [](int world, int stage, const Dtypes& types, Space states, Space values) {
        INFO("world ", world, ", stage ", stage, ", ", name_of(types.first), ", ", name_of(states));
        const TemporaryFolder folder, disk;
        Values before;
        run_local(world,
                  [&](Communicator& comm, const Device& device) {
                    const Toy toy;
                    Engine engine(toy.store, comm, device, config_of(types, states, stage, values));
                    train_step(engine, 0);
                    const Values own = states_of(engine);
                    if (comm.rank() == 0) before = own;
                    CheckpointSave save(folder.path(), engine, {.steps = 1});
                    train_step(engine, 1);
                    for (const auto& parameter : engine.store().parameters())
                      engine.write(
                          *parameter, State::master,
                          std::vector<float>(static_cast<size_t>(parameter->shape.numel()), 7));
                    CHECK(save.finish().failed_rank == -1);
                  },
                  {.device = {.swap = {.directory = disk.path()}}});
        CHECK(loaded(folder / "step_1") == before);
      },
      std::vector{1, 2, 4}, std::vector{0, 1, 2, 3}, dtypes, spaces, spaces);
}

TEST_CASE(
    "Engine::step waits for a snapshot's reader, which gets the values from before the step") {
  const TemporaryFolder disk;
  const auto check = [&](const Dtypes& types, Space states) {
    INFO(name_of(types.first), ", ", name_of(types.second), ", ", name_of(states));
    const Config config = config_of(types, states);
    const Toy toy;
    Engine engine(toy.store, cpu_with_drive(disk), config);
    train_step(engine, 0);
    const Values before = states_of(engine);
    Snapshot snapshot(engine);
    CHECK_THROWS_AS(Snapshot another(engine), ConfigError);

    // The reader stops in the middle until the step has ended, or has had time to.
    std::mutex mutex;
    std::condition_variable changed;
    bool stepped = false;
    Values read;
    std::thread reader([&] {
      const std::vector<Snapshot::Piece>& pieces = snapshot.pieces();
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (i == 0 || i == pieces.size() / 2 || i + 2 == pieces.size()) {
          std::unique_lock lock(mutex);
          changed.wait_for(lock, 100ms, [&] { return stepped; });
          if (i < pieces.size() / 2) CHECK(!stepped);
        }
        snapshot.read(i, [&](std::span<const float> part) {
          auto& values = read[{pieces[i].parameter->name, pieces[i].state}];
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
    CHECK(states_of(engine) != before);
  };
  for (const Dtypes& types : dtypes)
    for (const Space states : spaces) check(types, states);
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "an unread snapshot does not block micro-batches, and a failed or abandoned one blocks no "
    "step") {
  train_step(engine, 0);
  {
    Snapshot snapshot(engine);  // it is not read
    train_micro_batch(engine, 5);
    snapshot.abandon();
    engine.step(1e-2f);
  }
  Snapshot snapshot(engine);
  CHECK_THROWS_AS(snapshot.read(0, [](std::span<const float>) { throw FileError("a full disk"); }),
                  FileError);
  train_step(engine, 1);
}

TEST_CASE_FIXTURE(ToyEngine, "Engine::write waits until the snapshot is read") {
  train_step(engine, 0);
  const Values before = states_of(engine);
  Snapshot snapshot(engine);
  Values read;
  std::thread reader([&] {
    std::this_thread::sleep_for(50ms);
    for (size_t i = 0; i < snapshot.pieces().size(); ++i)
      snapshot.read(i, [&](std::span<const float> part) {
        const Snapshot::Piece& piece = snapshot.pieces()[i];
        read[{piece.parameter->name, piece.state}].assign(part.begin(), part.end());
      });
  });
  engine.write(toy.weight, State::moment2, std::vector<float>(5 * 31, 7));
  reader.join();
  for (const auto& [key, values] : read) CHECK(before.at(key) == values);
  CHECK(engine.read(toy.weight, State::moment2) == std::vector<float>(5 * 31, 7));
}

TEST_CASE(
    "a state longer than the save bucket is saved in parts through one bucket of host memory") {
  constexpr int64_t bucket = int64_t{4} << 20;  // a million f32
  const auto weight_of = [](const Engine& engine) {
    return engine.read(*engine.store().parameters()[0], State::master);
  };
  for (const Space space : {Space::host, Space::file}) {
    CAPTURE(name_of(space));
    const TemporaryFolder folder, disk;
    ParameterStore store;
    store.add(store.unit("unit"), "weight", {(1 << 21) + 5}, Init::normal(0.5f));
    const Device device = cpu_with_drive(disk);
    const Engine engine(
        store, device,
        {.compute = DType::bf16, .optimizer = DType::bf16, .offload = {.optimizer = space}});
    const int64_t before = device.memory().live(Space::host);
    CheckpointSave save(folder.path(), engine, {});
    CHECK(device.memory().live(Space::host) - before == arena_bytes(bucket));
    CHECK(save.finish().failed_rank == -1);
    Engine other(store, Device::cpu(), {.seed = 99});
    zero::load_checkpoint(folder / "step_0", other);
    CHECK(weight_of(other) == weight_of(engine));
  }
}

TEST_CASE("a save takes at most one bucket of host memory, and meta predicts the same bytes") {
  constexpr int64_t bucket = 129 * 4;  // the longest piece
  for (const Space space : {Space::device, Space::host, Space::file})
    for (const DType optimizer : {DType::f32, DType::bf16}) {
      INFO(name_of(space), ", ", name_of(optimizer));
      const Config config = {
          .compute = DType::bf16, .optimizer = optimizer, .offload = {.optimizer = space}};
      const TemporaryFolder folder, disk;
      const auto measured = [&](const Device& device) {
        const Toy toy;
        Engine engine(toy.store, device, config);
        if (device.type() != Device::Type::meta) train_step(engine, 0);
        const MemoryTracker& memory = device.memory();
        const int64_t host = memory.live(Space::host), here = memory.live(Space::device);
        const SwapCount before = swapped(device);
        device.memory().reset_peaks();
        CheckpointSave save(folder.path(), engine, {.steps = engine.steps()});
        const int64_t during = memory.live(Space::host) - host;
        CHECK(save.finish().failed_rank == -1);
        CHECK(memory.live(Space::host) == host);
        CHECK(memory.peak(Space::host) - host == during);
        CHECK(memory.peak(Space::device) - here <= arena_granule);  // the ranks' agreement
        return std::pair(during, swapped(device).read - before.read);
      };
      const auto run = measured(cpu_with_drive(disk));
      CHECK(run == measured(Device::meta(0, {.swap = {.directory = disk.path()}})));
      // Frozen values are bf16 in either case, and no longer than a bucket.
      const bool all_in_place = space != Space::file && optimizer == DType::f32;
      CHECK(run.first == arena_bytes(all_in_place ? 12 * 4 : bucket));
      CHECK((run.second > 0) == (space == Space::file));
    }
}

TEST_CASE_FIXTURE(ToyEngine, "a CheckpointSave that is destroyed while it writes leaves no files") {
  for (int i = 0; i < 20; ++i) CheckpointSave(folder.path(), engine, {});
  CHECK(std::filesystem::is_empty(folder.path()));
  train_step(engine, 0);
}

TEST_CASE("rank 0 commits a checkpoint once all ranks have written, without communication") {
  const TemporaryFolder folder;
  run_local(3, [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device, {.stage = 1});
    CheckpointSave save(folder.path(), engine, {});
    const WireCounts before = comm.wire();
    // Rank 1 hides its account until rank 0 has written and looked for it.
    const std::string account = zero::UnfinishedFolder::path_of(folder.path(), 0) + "/" +
                                zero::shard_name(comm.rank()) + ".pieces";
    const auto wait_for_account = [&] {
      while (!std::filesystem::exists(account)) std::this_thread::sleep_for(1ms);
    };
    if (comm.rank() == 1) {
      wait_for_account();
      std::filesystem::rename(account, account + ".hidden");
    }
    comm.wait(comm.barrier("hidden"));
    if (comm.rank() == 0) {
      wait_for_account();
      for (int look = 0; look < 50; ++look, std::this_thread::sleep_for(1ms))
        CHECK(!save.commit_if_written());
    }
    comm.wait(comm.barrier("looked"));
    if (comm.rank() == 1) std::filesystem::rename(account + ".hidden", account);
    if (comm.rank() == 0) {
      while (!save.commit_if_written()) std::this_thread::sleep_for(1ms);
      zero::verify_checkpoint(folder / "step_0");
    } else {
      CHECK(!save.commit_if_written());
    }
    CHECK(comm.wire()[0].calls == before[0].calls);
    CHECK(save.finish().failed_rank == -1);
  });
  zero::verify_checkpoint(folder / "step_0");
}
