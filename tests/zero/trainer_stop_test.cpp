// Stopping a trainer loses no step, and the checkpoint continues at the right position.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <mutex>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/support/file_limit.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/perceptron.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("a stop reason on one rank stops all ranks after the same step, and that step is saved") {
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

TEST_CASE_FIXTURE(TenSteps,
                  "a step dropped by the give_up hook leaves the engine as before the step") {
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

TEST_CASE_FIXTURE(TenSteps, "a hook that throws StopTraining ends the run, and the step is saved") {
  options.checkpoints = {.path = folder.path()};
  const Outcome outcome =
      run({.options = options, .hooks = {.after_step = [](const zero::TrainedStep& step) {
                                 if (step.step == 3) throw zero::StopTraining{};
                               }}});
  CHECK(outcome.end.reason == TrainingEnd::Reason::given_up);
  CHECK(zero::find_checkpoint(folder.path()) == folder / "step_4");
}

TEST_CASE_FIXTURE(
    TenSteps,
    "stop_interval splits a run into several, which together give the same hash as one run") {
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

TEST_CASE(
    "StopTraining thrown at any moment of a step discards the step or ends the run after it") {
  for (const int world : {1, 2}) {
    Job job{.world = world,
            .engine = {.stage = world == 1 ? 0 : 3, .param_persistence_threshold = 0},
            .options = ten_steps()};
    job.options.accumulation = 4 / world;
    job.options.steps = 5;
    const std::string expected = run(job).hash;
    for (int moment = 0; moment < 8; ++moment) {
      INFO("world ", world, ", moment ", moment);
      const TemporaryFolder folder;
      job.options.checkpoints = {.path = folder.path()};
      job.resume.clear();
      job.hooks.observe = [&](zero::TrainerMoment at, const MicroBatch& batch) {
        const bool in_batch = moment >= 1 && moment <= 4;
        if (static_cast<int>(at) == moment && batch.step == 3 && batch.index == (in_batch ? 1 : 0))
          throw zero::StopTraining{};
      };
      const Outcome stopped = run(job);
      const int64_t done = moment == 7 ? 4 : 3;
      CHECK(stopped.end.reason == TrainingEnd::Reason::given_up);
      CHECK(stopped.end.saved);
      CHECK(stopped.position.samples == 8 * done);
      CHECK(stopped.position.micro_batches == 4 * done);
      CHECK(zero::find_checkpoint(folder.path()) == folder / ("step_" + std::to_string(done)));
      job.hooks = {};
      job.resume = folder.path();
      CHECK(run(job).hash == expected);
    }
  }
}

TEST_CASE(
    "StopTraining thrown within a micro-batch of a pipeline is a ConfigError that names the step") {
  for (const bool within : {true, false}) {
    const auto program = [&](Communicator& ranks, const Device& device) {
      const Mesh mesh(ranks, {.pipeline = 2});
      const Net net(mesh.stage, 2);
      zero::Engine engine(net.store, mesh, device);
      const auto stops =
          within ? zero::TrainerMoment::forward_done : zero::TrainerMoment::gradients_ready;
      Trainer trainer(engine, ten_steps(), task_of(net, device),
                      {.observe = [&](zero::TrainerMoment moment, const MicroBatch& batch) {
                        if (moment == stops && batch.step == 3) throw zero::StopTraining{};
                      }});
      const TrainingEnd end = trainer.run();
      if (end.reason != TrainingEnd::Reason::given_up || trainer.position().samples != 12)
        throw Error("expected 12 samples of a run that was given up, got " +
                    std::to_string(trainer.position().samples));
    };
    if (within)
      CHECK_ERROR(ConfigError, "trainer: StopTraining was thrown within a micro-batch of step 3",
                  run_ranks(2, program));
    else
      run_ranks(2, program);
  }
}

TEST_CASE_FIXTURE(
    NetEngine,
    "after a failed step Trainer::run is refused until Engine::drop_gradients is called") {
  const std::string straight = run({.options = ten_steps()}).hash;
  bool fails = true;
  Trainer trainer(engine, ten_steps(), task_of(net, device),
                  {.observe = [&](zero::TrainerMoment, const MicroBatch& batch) {
                    if (fails && batch.step == 4 && batch.last) throw FileError("no data");
                  }});
  CHECK(message_of<FileError>([&] { trainer.run(); }) == "no data");
  CHECK(trainer.position().samples == 16);
  fails = false;
  CHECK(message_of<ConfigError>([&] { trainer.run(); }) ==
        "trainer: step 4: expected no gradients, got 1 micro-batches of a step that did not end; "
        "try Engine::drop_gradients()");
  engine.drop_gradients();
  CHECK(trainer.run().reason == TrainingEnd::Reason::finished);
  CHECK(engine.parameter_hash() == straight);
}

TEST_CASE("the smallest stop reason of all ranks counts, and reason 5 counts only on rank 0") {
  struct Case {
    std::vector<int> reasons;
    int expected;
  };
  for (const Case& c :
       {Case{{0, 4, 1}, 1}, Case{{2, 2, 0}, 2}, Case{{3, 3, 3}, 3}, Case{{4, 4, 0}, 4},
        Case{{0, 5, 5}, 0}, Case{{5, 0, 0}, 5}, Case{{5, 4, 5}, 4}}) {
    INFO(c.reasons[0], ", ", c.reasons[1], ", ", c.reasons[2]);
    std::vector<int> stops(3, -1);
    run_ranks(3, [&](Communicator& ranks, const Device& device) {
      const auto rank = static_cast<size_t>(ranks.rank());
      const Net net;
      zero::Engine engine(net.store, ranks, device);
      TrainerOptions options = ten_steps();
      options.steps = 2;
      Trainer trainer(engine, options, task_of(net, device),
                      {.stop = [&] { return c.reasons[rank]; }});
      stops[rank] = trainer.run().stop;
    });
    CHECK(stops == std::vector<int>(3, c.expected));
  }
}

TEST_CASE(
    "each step is saved once, and the step that a run continues from is not saved there again") {
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    const TemporaryFolder folder;
    std::vector<std::string> saved;
    Job job{.options = ten_steps(),
            .hooks = {.saved = [&](const std::string& step_n, const auto& result) {
              saved.push_back((result.failed_rank < 0 ? "" : "failed: ") +
                              step_n.substr(folder.path().size() + 1));
            }}};
    job.options.steps = 4;
    job.options.save_interval = 2;
    job.options.checkpoints = {.path = folder / "a", .in_background = in_background};
    run(job);
    CHECK(saved == std::vector<std::string>{"a/step_2", "a/step_4"});
    saved.clear();
    job.resume = folder / "a";
    CHECK(run(job).end.saved);
    CHECK(saved.empty());
    job.resume = folder / "a/../a/step_4/";
    CHECK(run(job).end.saved);
    CHECK(saved.empty());
    job.options.checkpoints->path = folder / "b";
    CHECK(run(job).end.saved);
    CHECK(saved == std::vector<std::string>{"b/step_4"});
  }
}

TEST_CASE(
    "the ended hook is called once before the save, and reports finished if an interval ends there "
    "too") {
  const TemporaryFolder folder;
  std::string order;
  Job job{.options = ten_steps(),
          .resume = folder.path(),
          .hooks = {.ended =
                        [&](const TrainingEnd& end) {
                          order += "ended " + std::to_string(static_cast<int>(end.reason)) + " ";
                        },
                    .saved = [&](const std::string&, const auto&) { order += "saved "; }}};
  job.options.steps = 4;
  job.options.stop_interval = 2;
  job.options.checkpoints = {.path = folder.path()};
  CHECK(run(job).end.reason == TrainingEnd::Reason::interval);
  CHECK(order == "ended 1 saved ");
  CHECK(run(job).end.reason == TrainingEnd::Reason::finished);
  CHECK(order == "ended 1 saved ended 0 saved ");
}

TEST_CASE("an error of one rank reaches the others with its rank, step and cause") {
  std::mutex mutex;
  std::string told;
  const auto program = [&](Communicator& ranks, const Device& device) {
    const Net net;
    zero::Engine engine(net.store, ranks, device, {.stage = 3});
    Trainer trainer(engine, ten_steps(), task_of(net, device),
                    {.after_step = [&](const zero::TrainedStep& step) {
                      if (ranks.rank() == 1 && step.step == 3) throw FileError("no metrics");
                    }});
    try {
      trainer.run();
    } catch (const CommError& error) {
      const std::lock_guard lock(mutex);
      told = error.what();
      throw;
    }
  };
  CHECK_ERROR(FileError, "no metrics", run_ranks(2, program));
  for (const char* part : {"rank 1 failed in step 3", "no metrics"}) CHECK(contains(told, part));
}

TEST_CASE(
    "a failed save does not end a trainer's run, is reported, and the next save tries again") {
  const std::string straight = run({.options = ten_steps()}).hash;
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    const TemporaryFolder folder;
    write_file(folder / "a", "no folder");
    TrainerOptions options = ten_steps();
    options.save_interval = 2;
    options.checkpoints = {.path = folder / "a", .in_background = in_background};
    const Outcome never = run({.options = options});
    CHECK(never.hash == straight);
    CHECK(never.end.reason == TrainingEnd::Reason::finished);
    CHECK_FALSE(never.end.saved);
    const Outcome later = run({.options = options, .hooks = {.before_step = [&](int64_t step) {
                                                     if (step == 5)
                                                       std::filesystem::remove(folder / "a");
                                                   }}});
    CHECK(later.end.saved);
    CHECK(zero::step_folders(folder / "a").size() == 3);
  }
}

TEST_CASE_FIXTURE(
    NetEngine,
    "Trainer::save returns false each time it fails and true once the cause is removed") {
  write_file(folder / "a", "no folder");
  options.checkpoints = {.path = folder / "a"};
  Trainer trainer(engine, options, task_of(net, device));
  trainer.step();
  CHECK_FALSE(trainer.save());
  CHECK_FALSE(trainer.save());
  std::filesystem::remove(folder / "a");
  CHECK(trainer.save());
  CHECK(zero::find_checkpoint(folder / "a") == folder / "a/step_1");
}

TEST_CASE_FIXTURE(
    NetEngine,
    "a failed background save is reported by the next Trainer::save, which saves the step again") {
  options.checkpoints = {.path = folder.path(), .in_background = true};
  std::vector<int> failed;
  Trainer trainer(engine, options, task_of(net, device),
                  {.saved = [&](const std::string&, const zero::CheckpointSave::Result& result) {
                    failed.push_back(result.failed_rank);
                  }});
  trainer.step();
  {
    const FileLimit limit(100);
    CHECK(trainer.save());  // the asynchronous save has started
    CHECK_FALSE(trainer.save());
    CHECK_FALSE(trainer.save());
  }
  trainer.step();
  trainer.save();  // the third save of step 1 may have failed or not
  CHECK(trainer.save());
  CHECK(failed.size() == 4);
  failed[2] = 0;
  CHECK(failed == std::vector<int>{0, 0, 0, -1});
  CHECK(zero::find_checkpoint(folder.path()) == folder / "step_2");
}

TEST_CASE_FIXTURE(TenSteps, "a background save is committed before the next save begins") {
  // A disk that is slow or busy is waited for: two minutes.
  options.steps = 1199;
  options.save_interval = 600;
  options.checkpoints = {.path = folder.path(), .in_background = true};
  bool there = false;
  run({.options = options,
       .hooks = {.after_step =
                     [&](const zero::TrainedStep& step) {
                       if (step.step >= 600 && !there)
                         std::this_thread::sleep_for(std::chrono::milliseconds(200));
                     },
                 .stop =
                     [&] {
                       there = there || std::filesystem::exists(folder / "step_600");
                       return 0;
                     }}});
  CHECK(there);
}

TEST_CASE_FIXTURE(
    TenSteps,
    "all ranks load the checkpoint that rank 0 chose, and a rank that does not have it throws") {
  options.accumulation = 1;
  options.steps = 4;
  options.save_interval = 2;
  options.checkpoints = {.path = folder / "0"};
  run({.world = 2, .options = options});
  std::filesystem::copy(folder / "0", folder / "1", std::filesystem::copy_options::recursive);
  zero::remove_checkpoint(folder / "0/step_4");  // rank 1 still sees it
  std::vector<int64_t> steps(2);
  const auto program = [&](Communicator& ranks, const Device& device) {
    const Net net;
    zero::Engine engine(net.store, ranks, device);
    Trainer trainer(engine, ten_steps(), task_of(net, device));
    trainer.resume(folder / std::to_string(ranks.rank()));
    steps[static_cast<size_t>(ranks.rank())] = engine.steps();
  };
  run_ranks(2, program);
  CHECK(steps == std::vector<int64_t>{2, 2});
  zero::remove_checkpoint(folder / "1/step_2");
  CHECK(message_of<FileError>([&] { run_ranks(2, program); }) ==
        "rank 1/2: resume: " + (folder / "1") +
            ": rank 0 chose the checkpoint of step 2, this rank finds that of step 4; expected a "
            "directory that all ranks see alike; try again, or give the path of one step_N");
}

TEST_CASE_FIXTURE(
    TenSteps,
    "without a saved hook, failed saves and damaged checkpoints are reported as warnings") {
  std::vector<std::string> warnings;
  options.steps = 2;
  options.checkpoints = {.path = folder / "a"};
  options.save_interval = 1;
  const TrainerHooks hooks{.warn = [&](const std::string& text) { warnings.push_back(text); }};
  run({.options = options, .hooks = hooks});
  CHECK(warnings.empty());

  const std::string shard = folder / "a/step_2/shard_00000.safetensors";
  std::string bytes = read_file(shard);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write_file(shard, bytes);
  const Outcome outcome = run({.options = options, .resume = folder / "a", .hooks = hooks});
  CHECK(outcome.resumed);
  CHECK(outcome.losses.size() == 1);  // from step_1
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "passed over " + folder / "a/step_2: "));

  warnings.clear();
  write_file(folder / "file", "no folder");
  options.checkpoints = {.path = folder / "file"};
  options.save_interval = 0;
  CHECK_FALSE(run({.options = options, .hooks = hooks}).end.saved);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "save failed: " + folder / "file/step_2: rank 0: "));
}

TEST_CASE_FIXTURE(
    NetEngine,
    "a trainer refuses a batch without tensors and a save_interval without a checkpoint "
    "directory") {
  TrainerTask task = task_of(net, device);
  task.batch = [](const MicroBatch&) { return std::vector<Tensor>{}; };
  CHECK(message_of<ConfigError>([&] { Trainer(engine, ten_steps(), task).run(); }) ==
        "trainer: batch: expected the tensors of samples 0 to 2, got none");
  options.save_interval = 2;
  CHECK_ERROR(ConfigError, "save_interval: expected TrainerOptions::checkpoints with it",
              Trainer(engine, options, task));
}

TEST_CASE("an error names the rank that returns early from a user's training loop, and the step") {
  const std::string message = message_of<CommError>([] {
    run_ranks(2, [](Communicator& ranks, const Device& device) {
      const Net net;
      zero::Engine engine(net.store, ranks, device);
      for (int64_t step = 0; step < 4; ++step) {
        if (ranks.rank() == 1 && step == 2) return;
        Tape tape = engine.tape();
        engine.backward(tape, net.forward(tape, samples(step, 2, device), {}));
        engine.step(1e-3f);
      }
    });
  });
  for (const char* part : {"rank 1 returned early", "in step 2"}) CHECK(contains(message, part));
}

TEST_CASE("a run checked against a plan that ran out of memory throws a PlanError that says so") {
  const auto program = [](Communicator&, const Device& device) {
    const Tensor small = Tensor::zeros({1000}, DType::f32, device);
    const Tensor large = Tensor::zeros({10'000'000}, DType::f32, device);
  };
  const Plan plan = plan_ranks(1, program, {.device = {.memory_limit = 8 << 20}});
  REQUIRE(plan.ranks[0].refused);
  CHECK_ERROR(PlanError, "plan: the plan ends out of memory after 2 events",
              run_ranks(1, program, {.expect = &plan}));
}
