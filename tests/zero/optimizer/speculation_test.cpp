// Offloaded states that are updated during backward, before the norm is known: the bits, the plans
// and the saves are those of steps without speculation, whether steps are redone or not.

#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/file_limit.h"
#include "tests/support/planned.h"
#include "tests/zero/training_run.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/checkpoint/snapshot.h"
#include "zerograd/zero/states/transfer.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;

namespace {

constexpr int64_t all_shadows = 1 << 20;
constexpr float always_clips = 1e-3f, never_clips = 1e6f;

/// A run and how often it redid a step.
struct SpeculatedRun {
  TrainingOutcome outcome;
  int64_t redone = -1;
};

SpeculatedRun train_speculating(const Config& config, const TrainingRun& run) {
  SpeculatedRun result;
  std::mutex mutex;
  const auto rank = [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device, config);
    if (run.first > 0) zero::load_checkpoint(run.directory, engine);
    const TrainingOutcome own = take_steps(engine, run, train_micro_batch);
    if (!run.directory.empty() && run.first == 0)
      zero::save_checkpoint(run.directory, engine, {.steps = run.end, .skipped = engine.skipped()});
    const std::lock_guard lock(mutex);
    if (comm.rank() == 0)
      result = {own, engine.speculated().value_or(Engine::Speculated{.redone = -1}).redone};
  };
  run_local(run.ranks, rank, {.device = {.swap = {.directory = "/tmp"}}});
  return result;
}

/// States in a file at stage 3, whose values are there, too.
Config speculating_on_disk(float clip_norm = never_clips) {
  return {.stage = 3,
          .compute = DType::bf16,
          .clip_norm = clip_norm,
          .offload = {.parameter = Space::file,
                      .optimizer = Space::file,
                      .sub_group_size = 64,
                      .speculation = all_shadows},
          .param_persistence_threshold = 0};
}

struct SpeculatingEngine {
  explicit SpeculatingEngine(const Config& config)
      : device(Device::cpu(0, {.swap = {.directory = "/tmp"}})),
        engine(toy.store, device, config) {}
  void step(uint64_t number, double size = 1.0) {
    engine.expect_step(1, 1e-2f);
    run_micro_batch(engine, random_gradients(toy.trainable(), number, size));
    engine.step(1e-2f);
  }
  const Toy toy;
  const Device device;
  Engine engine;
};

/// Steps of two micro-batches, the program of plans.
Program announced_steps(const Config& config, int64_t* redone = nullptr) {
  return [=](Communicator& ranks, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, ranks, device, config);
    for (uint64_t step = 0; step < 6; ++step) {
      engine.expect_step(2, 1e-2f);
      for (uint64_t i = 0; i < 2; ++i)
        run_micro_batch(engine, random_gradients(toy.trainable(), 10 * step + i));
      engine.step(1e-2f);
    }
    if (redone && ranks.rank() == 0 && device.type() == Device::Type::cpu)
      *redone = engine.speculated()->redone;
  };
}

}  // namespace

TEST_CASE("speculation gives the bits of steps without it, redone or not") {
  using enum Space;
  const std::pair<DType, DType> dtypes[] = {{DType::f32, DType::f32},
                                            {DType::bf16, DType::f32},
                                            {DType::bf16, DType::bf16},
                                            {DType::f16, DType::f32}};
  const zero::OffloadOptions places[] = {{.optimizer = host},
                                         {.optimizer = file, .sub_group_size = 64},
                                         {.optimizer = file, .optimizer_ratio = 0.5},
                                         {.gradient = file, .optimizer = file},
                                         {.parameter = host, .optimizer = file},
                                         {file, host, file, device, 128}};
  const OptimizerRule rules[] = {OptimizerRule::adam, OptimizerRule::sgd, OptimizerRule::muon,
                                 OptimizerRule::adafactor};
  for_cover(
      [&](int stage, int ranks, const std::pair<DType, DType>& types, zero::OffloadOptions places,
          OptimizerRule rule, float clip_norm, int64_t bytes) {
        if (stage < 3) places.parameter = device;
        Config config{.stage = stage,
                      .compute = types.first,
                      .optimizer = types.second,
                      .update = {.rule = rule,
                                 .momentum = rule == OptimizerRule::sgd ? 0.9f : 0.0f,
                                 .stochastic_rounding = types.second == DType::bf16},
                      .clip_norm = clip_norm,
                      .offload = {},
                      // The first steps overflow.
                      .loss_scaling = {.initial_scale_power = 18, .hysteresis = 1},
                      .param_persistence_threshold = ranks == 2 ? 64 : 0};
        const TrainingOutcome plain = train_speculating(config, {.end = 6}).outcome;
        config.offload = places;
        config.offload.speculation = bytes;
        const auto [outcome, redone] = train_speculating(config, {.ranks = ranks, .end = 6});
        INFO("stage ", stage, ", ranks ", ranks, ", ", name_of(types.first), ", ",
             zero::optimizer_name(config.update), ", states in ", name_of(places.optimizer),
             ", gradients in ", name_of(places.gradient), ", clip ", clip_norm, ", ", bytes,
             " bytes");
        CHECK(outcome == plain);
        if (types.first == DType::f16) CHECK(outcome.skipped > 0);
        const bool may = rule != OptimizerRule::adafactor && places.gradient != file &&
                         (stage > 0 || ranks == 1) && bytes == all_shadows;
        if (!may) return;
        // Redone are 0, 1, 4 of the steps; 2 and 3 are paused.
        if (clip_norm == always_clips) CHECK(redone == 3);
        if (clip_norm == never_clips && types.first != DType::f16) CHECK(redone == 0);
      },
      std::vector{0, 1, 2, 3}, std::vector{1, 2, 3, 4}, dtypes, places, rules,
      std::vector{always_clips, never_clips}, std::vector{all_shadows, int64_t{10000}});
}

TEST_CASE("a run that speculates resumes on other ranks with the bits of one without") {
  for (const float clip_norm : {always_clips, never_clips}) {
    const Config config = speculating_on_disk(clip_norm);
    const TemporaryFolder folder;
    Config plain = config;
    plain.offload.speculation = 0;
    train_speculating(config, {.ranks = 3, .end = 3, .directory = folder.path()});
    const TrainingRun rest{.ranks = 2, .first = 3, .end = 6, .directory = folder.path()};
    CHECK(train_speculating(config, rest).outcome.hash ==
          train_speculating(plain, {.end = 6}).outcome.hash);
  }
}

TEST_CASE("after two redone steps in a row speculation pauses for 2, 4, 8 steps") {
  // Steps of these sizes of gradients; those of size 1 are clipped. Returns the redone steps so
  // far.
  const auto redone = [](const std::vector<double>& sizes) {
    std::vector<int64_t> redone;
    std::string hashes[2];
    for (const int64_t shadows : {int64_t{0}, all_shadows}) {
      Config config = speculating_on_disk(1.0f);
      config.offload.speculation = shadows;
      SpeculatingEngine run(config);
      for (size_t step = 0; step < sizes.size(); ++step) {
        run.step(step, sizes[step]);
        if (shadows > 0) redone.push_back(run.engine.speculated()->redone);
      }
      hashes[shadows > 0] = run.engine.parameter_hash();
    }
    CHECK(hashes[0] == hashes[1]);
    return redone;
  };
  CHECK(redone(std::vector<double>(19, 1.0)) ==
        std::vector<int64_t>{1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5});
  constexpr double small = 0.01;
  CHECK(redone({1, small, 1, small, 1, 1, 1, 1, small, 1, 1, 1}) ==
        std::vector<int64_t>{1, 1, 2, 2, 3, 4, 4, 4, 4, 5, 6, 6});
  // At last one of 1025 steps is redone: 0, 1, 4, 9, 18, 35, ... 1032, 2057, 3082.
  SpeculatingEngine clipped({.clip_norm = always_clips,
                             .offload = {.optimizer = Space::host, .speculation = all_shadows}});
  for (int step = 0; step < 3083; ++step) clipped.step(7);
  CHECK(clipped.engine.speculated()->redone == 13);
  // The step after a skipped one has its number.
  SpeculatingEngine run(speculating_on_disk());
  for (const double size : {1.0, double{INFINITY}, 1.0, 1.0, 1.0}) run.step(7, size);
  CHECK(run.engine.skipped() == 1);
  CHECK(run.engine.speculated()->redone == 1);
}

TEST_CASE(
    "until backward ends speculation reads and writes what a step without it does at its end") {
  Config config = speculating_on_disk();
  const auto moved = [](const Config& config) {
    SpeculatingEngine run(config);
    std::vector<int64_t> bytes;
    run.engine.expect_step(1, 1e-2f);
    const SwapCount begin = swapped(run.device);
    run.engine.tape();
    const int64_t before = swapped(run.device).read - begin.read;
    run_micro_batch(run.engine, random_gradients(run.toy.trainable(), 1));
    const SwapCount between = swapped(run.device);
    run.engine.step(1e-2f);
    const SwapCount end = swapped(run.device);
    const SwapCount redo = run.engine.speculated().value_or(Engine::Speculated{}).redo_io;
    return std::vector<int64_t>{between.read - begin.read,
                                between.written - begin.written,
                                end.read - between.read,
                                end.written - between.written,
                                before,
                                redo.read,
                                redo.written};
  };
  const std::vector<int64_t> early = moved(config);
  config.offload.speculation = 0;
  const std::vector<int64_t> late = moved(config);
  CHECK(late[1] == 0);
  CHECK(late[2] > 0);
  CHECK(early[2] == 0);
  CHECK(early[3] == 0);
  CHECK(early[0] == late[0] + late[2]);
  CHECK(early[1] == late[3]);
  CHECK(early[5] == late[2]);  // a step that is redone reads and writes all of it again
  CHECK(early[6] == late[3]);
  // Two of its chunks of 64 elements are read before forward: masters and two moments, in blocks.
  CHECK(late[4] == 0);
  CHECK(early[4] == 6 * 4096);
}

TEST_CASE(
    "a plan has the memory and the bytes of runs that speculate, without those of redone steps") {
  const DeviceOptions disk{.swap = {.directory = "/tmp"}};
  for_cover(
      [&](int stage, int ranks, float clip_norm, Space states, DType compute) {
        INFO("stage ", stage, ", ranks ", ranks, ", clip ", clip_norm, ", ", name_of(states));
        Config config = speculating_on_disk(clip_norm);
        config.stage = stage;
        config.compute = compute;
        config.offload.optimizer = states;
        if (stage < 3) config.offload.parameter = Space::device;
        int64_t redone = -1;
        check_planned(ranks, announced_steps(config, &redone), disk);
        CHECK(redone == (clip_norm == always_clips && (stage > 0 || ranks == 1) ? 3 : 0));
      },
      std::vector{0, 1, 2, 3}, std::vector{1, 2, 3}, std::vector{always_clips, never_clips},
      std::vector{Space::host, Space::file}, std::vector{DType::f32, DType::bf16});
}

TEST_CASE("a step that is not the one announced is redone, with its own bits") {
  enum Case { rate, betas, more, less, dropped, written, unused, scaled, cases };
  const auto hash = [](const Config& config, int which) {
    SpeculatingEngine run(config);
    Engine& engine = run.engine;
    for (int i = 0; i < 2; ++i) {
      engine.expect_step(which == less ? 2 : 1, 1e-2f);
      const std::vector<const Parameter*> some = {&run.toy.bias, &run.toy.matrix};
      if (which == scaled)
        engine.set_loss_scaler(zero::LossScaler::State{.scale = engine.loss_scale() / 2.0});
      // In the second step the accumulators of an unused parameter have gradients of the first.
      const bool all = which != unused || i == 0;
      run_micro_batch(engine, random_gradients(all ? run.toy.trainable() : some, 7));
      if (which == dropped) engine.drop_gradients();
      if (which == dropped || which == more || which == scaled)
        run_micro_batch(engine, random_gradients(run.toy.trainable(), 8));
      if (which == written)
        engine.write(run.toy.gain, Engine::State::moment1, random_floats(129, 3));
      engine.step(which == rate ? 2e-2f : 1e-2f,
                  which == betas ? std::optional(zero::Betas{0.5f, 0.6f}) : std::nullopt);
    }
    return engine.parameter_hash();
  };
  for (int which = 0; which < cases; ++which)
    for (const Space states : {Space::host, Space::file}) {
      INFO("case ", which, ", states in ", name_of(states));
      Config config = speculating_on_disk();
      config.offload.optimizer = states;
      if (which == scaled) {
        config.compute = DType::f16;
        config.loss_scaling.initial_scale_power = 8;
      }
      const std::string speculated = hash(config, which);
      config.offload.speculation = 0;
      CHECK(speculated == hash(config, which));
    }
}

TEST_CASE(
    "random programs of two engines on one device have the bits of those without speculation") {
  // It announces other steps than it takes.
  const auto hashes = [](uint64_t seed, int64_t shadows) {
    std::mt19937_64 draw(seed);
    const auto one_of = [&](uint64_t n) { return draw() % n; };
    Config config = speculating_on_disk(one_of(2) ? 12.0f : never_clips);
    config.stage = static_cast<int>(one_of(4));
    if (config.stage < 3 || one_of(2)) config.offload.parameter = Space::device;
    if (one_of(2)) config.offload.optimizer = Space::host;
    if (one_of(3) == 0) config.compute = DType::f16;
    config.loss_scaling.initial_scale_power = 8;
    config.offload.speculation = std::min(shadows, int64_t{8192} << one_of(4));
    const Device device = Device::cpu(0, {.swap = {.directory = "/tmp"}});
    const Toy toy;
    Engine engines[] = {{toy.store, device, config}, {toy.store, device, config}};
    std::string hashes;
    for (int i = 0; i < 40; ++i) {
      Engine& engine = engines[one_of(2)];
      const uint64_t action = one_of(16), count = 1 + one_of(3);
      const float rate = one_of(4) ? 1e-2f : 2e-2f;
      if (action == 0) engine.drop_gradients();
      if (action == 1)
        engine.set_loss_scaler(zero::LossScaler::State{.scale = one_of(2) ? 128.0 : 1e30});
      if (action == 2) engine.write(toy.gain, Engine::State::moment1, random_floats(129, draw()));
      if (action == 3) engine.tape();
      if (action == 4) hashes += engine.parameter_hash();
      if (action == 5) engine.set_steps(engine.steps() - engine.skipped() + 1, engine.skipped());
      if (action > 5 || one_of(2)) engine.expect_step(static_cast<int64_t>(count), rate);
      const uint64_t run = one_of(4) ? count : one_of(4);
      for (uint64_t k = 0; k < run; ++k)
        run_micro_batch(engine, random_gradients(toy.trainable(), draw()));
      if (engine.micro_batches() > 0 && one_of(8)) engine.step(one_of(8) ? rate : 3e-2f);
    }
    return hashes + engines[0].parameter_hash() + engines[1].parameter_hash();
  };
  for (uint64_t seed = 0; seed < 8; ++seed) {
    INFO("seed ", seed);
    CHECK(hashes(seed, all_shadows) == hashes(seed, 0));
  }
}

TEST_CASE("small parameters are updated when the gradients of all their units are complete") {
  const auto hash = [](int64_t shadows) {
    Config config = speculating_on_disk();
    config.param_persistence_threshold = 1000;  // all of the toy
    config.offload.optimizer = Space::host;     // it has not to wait for a disk
    config.offload.speculation = shadows;
    SpeculatingEngine run(config);
    for (uint64_t step = 0; step < 3; ++step) run.step(step);
    CHECK(run.engine.speculated().value_or(Engine::Speculated{}).redone == 0);
    return run.engine.parameter_hash();
  };
  CHECK(hash(all_shadows) == hash(0));
}

TEST_CASE("a save has the states from when it began, while speculation exchanges them twice") {
  for (const Space states : {Space::host, Space::file})
    for (const int stage : {0, 3}) {
      INFO("stage ", stage, ", states in ", name_of(states));
      Config config = speculating_on_disk();
      config.compute = DType::f32;
      config.stage = stage;
      config.offload.optimizer = states;
      config.offload.parameter = stage == 3 ? states : Space::device;
      SpeculatingEngine run(config);
      run.step(0);
      zero::Snapshot snapshot(run.engine);
      std::vector<std::vector<float>> before, read;
      for (const zero::Snapshot::Piece& piece : snapshot.pieces())
        before.push_back(run.engine.read(*piece.parameter, piece.state));
      std::thread reader([&] {
        for (size_t i = 0; i < snapshot.pieces().size(); ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          std::vector<float>& all = read.emplace_back();
          snapshot.read(i, [&](std::span<const float> values) {
            all.insert(all.end(), values.begin(), values.end());
          });
        }
      });
      for (uint64_t number = 1; number < 5; ++number) run.step(number);
      reader.join();
      CHECK(read == before);
      CHECK(run.engine.speculated()->redone == 0);
    }
}

TEST_CASE(
    "a write that the disk refuses is an error of the next step at the latest, and of a save") {
  for (const bool saves : {false, true}) {
    const TemporaryFolder folder;
    SpeculatingEngine run(speculating_on_disk());
    run.step(0);
    CHECK_ERROR(FileError, "cannot be written: File too large", {
      {
        const FileLimit limit(0);
        run.step(1);
      }
      if (saves) zero::save_checkpoint(folder.path(), run.engine, {.steps = 2});
      run.step(2);
    });
    CHECK(!std::filesystem::exists(folder.path() + "/manifest.json"));
  }
}

TEST_CASE("shared buffers are not overwritten or replaced until the disk has read them") {
  const Device device = Device::cpu(0, {.swap = {.directory = "/tmp"}});
  const int64_t numel = int64_t{8} << 20;  // 32 MiB, which take the disk some time
  for (const int64_t next_numel : {numel, 2 * numel}) {
    CAPTURE(next_numel);
    const auto lane = [&](int64_t count) {
      return zero::Streaming::Lane{
          .tensor = Tensor::empty({count}, DType::f32, device, Space::file), .loads = false};
    };
    const zero::Streaming::Part part{lane(numel)}, next_part{lane(next_numel)};
    const auto buffers = std::make_shared<zero::StreamingBuffers>(device);
    zero::Streaming first({part}, device, buffers);
    fill_zero(first.next()[0], device.compute());
    first.keep();
    const SwapTicket written = buffers->last;
    zero::Streaming second({next_part}, device, buffers);
    if (next_numel == numel) second.next();
    CHECK(is_swapped(device, written));
  }
}

TEST_CASE("shadows are states at rest, of as many units as fit into the limit") {
  const auto bytes = [](int64_t limit) {
    Config config = speculating_on_disk();
    config.offload.speculation = limit;
    SpeculatingEngine run(config);
    return run.engine.resting_bytes().optimizer;
  };
  // Elements with padding: 128 + 192 of the first unit, 128 + 192 of the second. Each array of a
  // unit takes a block of 4096 bytes in the file.
  CHECK(bytes(16383) == bytes(0));
  CHECK(bytes(16384) - bytes(0) == (64 + 192 + 64) * 14);
  CHECK(bytes(32767) == bytes(16384));
  CHECK(bytes(32768) > bytes(16384));
}

TEST_CASE("speculation is refused where it cannot be") {
  Config config = speculating_on_disk();
  config.offload.speculation = -1;
  CHECK(contains(message_of<ConfigError>([&] { zero::validate(config); }),
                 "offload.speculation is -1.000000; expected 0 or more"));
  config = {.offload = {.optimizer = Space::host, .speculation = 1}, .reduce_at_boundary = true};
  CHECK(contains(message_of<ConfigError>([&] { zero::validate(config); }),
                 "expected 0, or reduce_at_boundary off"));
  config.reduce_at_boundary = false;
  CHECK(contains(message_of<Unsupported>(
                     [&] { plan_ranks(1, announced_steps(config), {.type = Device::Type::cuda}); }),
                 "offload.speculation is for CPU devices"));
}

TEST_CASE("a step is announced for 1 or more micro-batches, which all ranks together can count") {
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  run_local(2, [](Communicator& ranks, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, ranks, device,
                  {.offload = {.optimizer = Space::host, .speculation = 1}});
    engine.expect_step(most / 2, 1e-2f);
    for (const int64_t count : {most / 2 + 1, most, int64_t{0}, int64_t{-1}})
      CHECK_THROWS_WITH_AS(engine.expect_step(count, 1e-2f),
                           doctest::Contains("expected 1 to 4611686018427387903"), ConfigError);
  });
}
