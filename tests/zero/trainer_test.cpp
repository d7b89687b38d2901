// A trainer gives the bits of the loop that a user would write; what stops it loses no step; a plan
// of it has the bytes of its run. The model is a perceptron of this file.
#include "zerograd/zero/trainer.h"

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <functional>
#include <mutex>

#include "tests/error_message.h"
#include "tests/temporary_folder.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/mesh.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/zero/checkpoint_reader.h"

using namespace zg;
using namespace zg::testing;
using zero::MicroBatch;
using zero::Trainer;
using zero::TrainerHooks;
using zero::TrainerOptions;
using zero::TrainerTask;
using zero::TrainingEnd;

namespace {

constexpr int64_t width = 12;

/// Sample `i` of the data: the same numbers on every rank.
Tensor samples(int64_t first, int64_t count, const Device& device) {
  std::vector<float> values(static_cast<size_t>(count * width));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(
        std::sin(0.37 * static_cast<double>(first * width + static_cast<int64_t>(i))));
  return Tensor::from(values, {count, width}, device);
}

/// Two layers; a stage of a pipeline has one of them.
struct Net {
  ParameterStore store;
  const Unit *low = nullptr, *high = nullptr;
  const Parameter *first = nullptr, *second = nullptr;

  explicit Net(int stage = 0, int stages = 1) {
    if (stage == 0) {
      low = &store.unit("low");
      first = &store.add(*low, "first", {width, width}, Init::normal(0.3f), {.decay = true});
    }
    if (stage + 1 == stages) {
      high = &store.unit("high");
      second = &store.add(*high, "second", {5, width}, Init::normal(0.3f), {.decay = true});
    }
  }
  Var forward(Tape& tape, const Tensor& x, const Var& input) const {
    Var hidden = input;
    if (low) {
      const Tape::Use use(tape, *low);
      const Var weight = tape.parameter(*first);
      hidden = tanh(linear(cast(x, weight.value().dtype()), weight));
    }
    if (!high) return hidden;
    const Tape::Use use(tape, *high);
    const Var out = linear(hidden, tape.parameter(*second));
    return mean(cast(out, DType::f32) * cast(out, DType::f32));
  }
};

TrainerTask task_of(const Net& net, const Device& device) {
  return {.batch =
              [device](const MicroBatch& batch) {
                return std::vector<Tensor>{samples(batch.first_sample, batch.samples, device)};
              },
          .forward =
              [&net](Tape& tape, const MicroBatch& batch) {
                return net.forward(tape, batch.tensors[0], batch.input);
              },
          .between =
              [](int64_t count) {
                return StageOutput{{count, width}, DType::f32};
              }};
}

struct Job {
  int world = 1;
  zero::Config engine = {};
  TrainerOptions options = {};
  std::string resume = {};
  TrainerHooks hooks = {};  // shared by the ranks
};

struct Outcome {
  std::string hash;
  TrainingEnd end;
  bool resumed = false;
  zero::TrainerPosition position;
  std::vector<double> losses;  // of rank 0
};

Program program_of(const Job& job, Outcome& outcome) {
  return [&job, &outcome](Communicator& ranks, const Device& device) {
    const Net net;
    zero::Engine engine(net.store, ranks, device, job.engine);
    TrainerHooks hooks = job.hooks;
    std::vector<double> losses;
    hooks.after_step = [&](const zero::TrainedStep& step) {
      losses.push_back(step.loss);
      if (job.hooks.after_step) job.hooks.after_step(step);
    };
    Trainer trainer(engine, job.options, task_of(net, device), hooks);
    const bool resumed = !job.resume.empty() && trainer.resume(job.resume);
    const TrainingEnd end = trainer.run();
    const std::string hash = engine.parameter_hash();
    if (ranks.rank() == 0) outcome = {hash, end, resumed, trainer.position(), losses};
  };
}

Outcome run(const Job& job) {
  Outcome outcome;
  run_ranks(job.world, program_of(job, outcome));
  return outcome;
}

TrainerOptions ten_steps() {
  return {.micro_batch = 2,
          .accumulation = 2,
          .steps = 10,
          .schedule = {.kind = zero::ScheduleKind::cosine,
                       .rate = 1e-2,
                       .warmup_num_steps = 3,
                       .total_num_steps = 10}};
}

}  // namespace

TEST_CASE("a trainer gives the bits of the loop that a user writes") {
  const TrainerOptions options = ten_steps();
  std::string expected;
  std::vector<double> losses;
  {
    const Device device = Device::cpu();
    const Net net;
    zero::Engine engine(net.store, device);
    const zero::Schedule schedule(options.schedule);
    int64_t sample = 0;
    for (int64_t step = 0; step < options.steps; ++step) {
      double sum = 0.0;
      for (int64_t i = 0; i < options.accumulation; ++i) {
        Tape tape = engine.tape();
        const Var loss = net.forward(tape, samples(sample, 2, device), {});
        sum += loss.value().item();
        engine.backward(tape, loss);
        sample += 2;
      }
      losses.push_back(sum / 2);
      engine.step(static_cast<float>(schedule.rate(step)));
    }
    expected = engine.parameter_hash();
  }
  const Outcome outcome = run({.options = options});
  CHECK(outcome.hash == expected);
  CHECK(outcome.losses == losses);
  CHECK(outcome.position.samples == 40);
  CHECK(outcome.position.micro_batches == 20);
  CHECK(outcome.position.score == losses.back());
}

TEST_CASE("a trainer gives the same bits for every number of ranks and stage") {
  const std::string expected = run({.options = ten_steps()}).hash;
  for (const int stage : {0, 2, 3}) {
    CAPTURE(stage);
    TrainerOptions options = ten_steps();
    options.accumulation = 1;
    CHECK(run({.world = 2, .engine = {.stage = stage}, .options = options}).hash == expected);
  }
}

TEST_CASE("a resumed trainer goes on with the same bits, also on other ranks") {
  for (const bool behind : {false, true}) {
    CAPTURE(behind);
    const TemporaryFolder folder;
    TrainerOptions options = ten_steps();
    options.rampup = {.start = 4, .increment = 4, .samples = 24};
    options.accumulation = 4;
    const Outcome straight = run({.options = options});
    CHECK(straight.position.samples == 6 * 4 + 4 * 8);
    options.checkpoints = {.path = folder / "a", .behind = behind};
    options.save_interval = 3;
    options.steps = 5;
    const Outcome half = run({.options = options});
    CHECK(half.end.saved);
    CHECK(zero::find_checkpoint(folder / "a") == folder / "a/step_5");
    options.steps = 10;
    Outcome rest = run({.options = options, .resume = folder / "a"});
    CHECK(rest.resumed);
    CHECK(rest.hash == straight.hash);
    CHECK(rest.losses.size() == 5);
    CHECK(rest.position.samples == straight.position.samples);
    options.accumulation = 2;  // of two ranks
    rest = run(
        {.world = 2, .engine = {.stage = 3}, .options = options, .resume = folder / "a/step_3"});
    CHECK(rest.hash == straight.hash);
    CHECK(rest.losses.size() == 7);
  }
}

TEST_CASE("a directory without checkpoints resumes nothing") {
  const TemporaryFolder folder;
  TrainerOptions options = ten_steps();
  options.steps = 1;
  CHECK_FALSE(run({.options = options, .resume = folder / "nowhere"}).resumed);
  CHECK_FALSE(run({.world = 2, .options = options, .resume = folder.path()}).resumed);
}

TEST_CASE("retention keeps the best and the newest, by loss or by a score") {
  const TemporaryFolder folder;
  TrainerOptions options = ten_steps();
  options.steps = 6;
  options.checkpoints = {.path = folder.path(), .keep = 1};
  options.save_interval = 1;
  // Scores 5, 4, 1, 2, 3, 9: step 3 is the best.
  const double scores[] = {5, 4, 1, 2, 3, 9};
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine(net.store, device);
  Trainer* self = nullptr;
  Trainer trainer(
      engine, options, task_of(net, device),
      {.after_step = [&](const zero::TrainedStep& step) { self->set_score(scores[step.step]); }});
  self = &trainer;
  trainer.run();
  std::vector<int64_t> kept;
  for (const zero::StepFolder& step : zero::step_folders(folder.path())) kept.push_back(step.steps);
  CHECK(kept == std::vector<int64_t>{6, 3});
}

TEST_CASE("one rank's reason to stop ends all ranks after the same step, which is saved") {
  for (const int reason : {1, 4}) {
    CAPTURE(reason);
    const TemporaryFolder folder;
    std::atomic<int> asked = 0;
    TrainerOptions options = ten_steps();
    options.checkpoints = {.path = folder.path()};
    Outcome outcome;
    const Job job{.world = 3, .options = options};
    run_ranks(3, [&](Communicator& ranks, const Device& device) {
      Job own = job;
      own.hooks.stop = [&, rank = ranks.rank()] {
        ++asked;
        return rank == 2 && asked > 6 ? reason : 0;  // in its third step or later
      };
      Outcome mine;
      program_of(own, mine)(ranks, device);
      if (ranks.rank() == 0) outcome = mine;
    });
    CHECK(outcome.end.reason == TrainingEnd::Reason::stopped);
    CHECK(outcome.end.stop == reason);
    CHECK(outcome.end.saved);
    CHECK(zero::find_checkpoint(folder.path()) ==
          folder / ("step_" + std::to_string(outcome.losses.size())));
    CHECK(outcome.losses.size() >= 3);
    CHECK(outcome.losses.size() < 10);
  }
}

TEST_CASE("a step that is given up leaves the engine as it was") {
  const TemporaryFolder folder;
  TrainerOptions options = ten_steps();
  const Outcome three = [&] {
    TrainerOptions shorter = options;
    shorter.steps = 3;
    return run({.options = shorter});
  }();
  options.checkpoints = {.path = folder.path()};
  int asked = 0;  // twice a step
  const Outcome outcome =
      run({.options = options, .hooks = {.give_up = [&] { return ++asked == 8; }}});
  CHECK(outcome.end.reason == TrainingEnd::Reason::given_up);
  CHECK(outcome.hash == three.hash);
  CHECK(outcome.position.samples == 12);
  CHECK(zero::find_checkpoint(folder.path()) == folder / "step_3");
}

TEST_CASE("a hook that throws StopTraining ends the run, and the step is saved") {
  const TemporaryFolder folder;
  TrainerOptions options = ten_steps();
  options.checkpoints = {.path = folder.path()};
  const Outcome outcome =
      run({.options = options, .hooks = {.after_step = [](const zero::TrainedStep& step) {
                                 if (step.step == 3) throw zero::StopTraining{};
                               }}});
  CHECK(outcome.end.reason == TrainingEnd::Reason::given_up);
  CHECK(zero::find_checkpoint(folder.path()) == folder / "step_4");
}

TEST_CASE("a stop interval ends a run that then goes on") {
  const TemporaryFolder folder;
  TrainerOptions options = ten_steps();
  const std::string expected = run({.options = options}).hash;
  options.stop_interval = 4;
  options.checkpoints = {.path = folder.path()};
  std::vector<size_t> lengths;
  Outcome outcome;
  for (int i = 0; i < 3; ++i) {
    outcome = run({.options = options, .resume = folder.path()});
    lengths.push_back(outcome.losses.size());
  }
  CHECK(lengths == std::vector<size_t>{4, 4, 2});
  CHECK(outcome.end.reason == TrainingEnd::Reason::finished);
  CHECK(outcome.hash == expected);
}

TEST_CASE("a pipeline of two stages gives the bits of one") {
  const std::string expected = run({.options = ten_steps()}).hash;
  for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe}) {
    std::string hash;
    const auto program = [&](Communicator& ranks, const Device& device) {
      const Mesh mesh(ranks, {.pipeline = 2});
      const Net net(mesh.stage, 2);
      zero::Engine engine(net.store, mesh, device);
      TrainerOptions options = ten_steps();
      options.pipeline = schedule;
      Trainer trainer(engine, options, task_of(net, device));
      trainer.run();
      const std::string own = engine.parameter_hash();
      if (ranks.rank() == 0) hash = own;
    };
    run_ranks(2, program);
    CHECK(hash == expected);
  }
}

TEST_CASE("a plan of a trainer has the bytes of its run: saves, a resume, ranks, offload") {
  for (const bool behind : {false, true}) {
    CAPTURE(behind);
    const TemporaryFolder folder, disk;
    const auto program = [&](const std::string& directory) {
      return [&, directory](Communicator& ranks, const Device& device) {
        for (const int64_t steps : {3, 5}) {  // the second goes on from the first's checkpoint
          const Net net;
          zero::Config config{.stage = 3,
                              .compute = DType::bf16,
                              .offload = {.optimizer = Space::file},
                              .param_persistence_threshold = 0};
          zero::Engine engine(net.store, ranks, device, config);
          TrainerOptions options = ten_steps();
          options.steps = steps;
          options.checkpoints = {.path = directory, .behind = behind};
          options.save_interval = 2;
          Trainer trainer(engine, options, task_of(net, device), {.stop = [] { return 0; }});
          const bool resumed = trainer.resume(directory);
          if (resumed != (steps == 5)) throw Error("resumed: expected the second run alone");
          trainer.run();
        }
      };
    };
    const DeviceOptions device{.swap = {.directory = disk.path()}};
    const Plan plan = plan_ranks(3, program(folder / "run"), {.device = device});
    CHECK_FALSE(std::filesystem::exists(folder / "run"));
    const MemoryReport report =
        run_ranks(3, program(folder / "run"), {.local = {.device = device}, .expect = &plan});
    CHECK((report == plan));
    CHECK(report.table() == plan.table());
    CHECK(plan.ranks[2].steps == 5);
  }
}

TEST_CASE("the moments of a step come in their order, those of a micro-batch for each") {
  std::string order;
  TrainerOptions options = ten_steps();
  options.steps = 1;
  run({.options = options,
       .hooks = {.observe = [&](zero::TrainerMoment moment, const MicroBatch& batch) {
         order += std::to_string(static_cast<int>(moment)) + (batch.last ? "' " : " ");
       }}});
  CHECK(order == "0 1 2 3 4 1' 2' 3' 4' 5 6 7 ");
}

TEST_CASE("an infinite gradient is skipped: the rate and the samples of the schedule stand still") {
  TrainerOptions options = ten_steps();
  options.steps = 4;
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine(net.store, device,
                      {.compute = DType::f16, .loss_scaling = {.initial_scale_power = 40}});
  std::vector<double> rates;
  Trainer trainer(engine, options, task_of(net, device),
                  {.after_step = [&](const zero::TrainedStep& step) {
                    rates.push_back(step.rate);
                    CHECK(step.result.skipped);
                  }});
  trainer.run();
  CHECK(trainer.position().skipped_samples == 16);
  CHECK(rates == std::vector<double>(4, rates[0]));
}

TEST_CASE("options that do not go together are refused by name") {
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine(net.store, device);
  const auto refusal = [&](TrainerOptions options, bool with_forward = true,
                           TrainerHooks hooks = {}) {
    TrainerTask task = task_of(net, device);
    if (!with_forward) task.forward = {};
    return message_of<ConfigError>([&] { Trainer(engine, options, task, hooks); });
  };
  CHECK(refusal({.micro_batch = 0}) == "trainer: micro_batch: expected 1 or more, got 0");
  CHECK(refusal({.accumulation = -1}) == "trainer: accumulation: expected 1 or more, got -1");
  CHECK(refusal({.steps = -1}) == "trainer: steps: expected 0 or more, got -1");
  CHECK(contains(refusal({}, false), "trainer: forward: expected a function"));
  CHECK(contains(refusal({.micro_batch = 2,
                          .accumulation = 2,
                          .rampup = {.start = 3, .increment = 1, .samples = 10}}),
                 "rampup: expected steps from 3 by 1 that end at the batch of 4"));
  CHECK(contains(
      refusal({}, true,
              {.describe = [](const zero::TrainerPosition&) { return zero::CheckpointInfo{}; }}),
      "both describe and position_of"));
  Trainer trainer(engine, {.steps = 1}, task_of(net, device));
  CHECK(contains(message_of<ConfigError>([&] { trainer.save(); }), "TrainerOptions::checkpoints"));
  CHECK(contains(
      message_of<ConfigError>([&] {
        Trainer(engine, {.steps = 1}, task_of(net, device), {.stop = [] { return 6; }}).run();
      }),
      "stop: expected 0 to 5, got 6"));
}

TEST_CASE("a checkpoint of another program is refused by name") {
  const TemporaryFolder folder;
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine(net.store, device);
  for (const char* config : {R"({"mine":1})", R"({"schema":"zerograd.trainer/1","samples":-4})"}) {
    zero::save_checkpoint(folder.path(), engine, {.config_json = config});
    Trainer trainer(engine, {.steps = 1}, task_of(net, device));
    const std::string message = message_of<FileError>([&] { trainer.resume(folder.path()); });
    CHECK(contains(message, "step_0"));
    CHECK(contains(message, "expected a checkpoint of zero::Trainer"));
  }
}
