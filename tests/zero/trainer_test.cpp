// A trainer gives the bits of the loop that a user would write; a plan of it has the bytes of its
// run.
#include "zerograd/zero/trainer.h"

#include <filesystem>
#include <mutex>

#include "tests/support/error_message.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/perceptron.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE("a trainer gives the same bits as a training loop written by hand") {
  TrainerOptions options = ten_steps();
  SUBCASE("a schedule of the rate") {}
  SUBCASE("a schedule of the rate and the betas") {
    options.schedule = {.kind = zero::ScheduleKind::one_cycle, .rate = 1e-2};
    options.schedule.one_cycle.cycle_first_step_size = 4;
  }
  SUBCASE("a schedule of one's own") {
    options.schedule = {
        .function = [](int64_t k) { return 1e-2 / (1.0 + static_cast<double>(k)); }};
  }
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
      engine.step(static_cast<float>(schedule.rate(step)), schedule.betas(step));
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
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    const TemporaryFolder folder;
    TrainerOptions options = ten_steps();
    options.rampup = {.start = 4, .increment = 4, .samples = 24};
    options.accumulation = 4;
    const Outcome straight = run({.options = options});
    CHECK(straight.position.samples == 6 * 4 + 4 * 8);
    options.checkpoints = {.path = folder / "a", .in_background = in_background};
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
    options.accumulation = 2;  // 2 ranks need half the micro-batches per rank
    rest = run(
        {.world = 2, .engine = {.stage = 3}, .options = options, .resume = folder / "a/step_3"});
    CHECK(rest.hash == straight.hash);
    CHECK(rest.losses.size() == 7);
  }
}

TEST_CASE_FIXTURE(TenSteps, "a directory without checkpoints resumes nothing") {
  options.steps = 1;
  CHECK_FALSE(run({.options = options, .resume = folder / "nowhere"}).resumed);
  CHECK_FALSE(run({.world = 2, .options = options, .resume = folder.path()}).resumed);
}

TEST_CASE_FIXTURE(NetEngine,
                  "retention keeps the checkpoint with the lowest score and the newest one") {
  options.steps = 6;
  options.checkpoints = {.path = folder.path(), .keep = 1};
  options.save_interval = 1;
  // A score counts until the next one is set: the checkpoints 2 and 3 have -1, the later ones 5.
  Trainer* self = nullptr;
  Trainer trainer(engine, options, task_of(net, device),
                  {.after_step = [&](const zero::TrainedStep& step) {
                    if (step.step == 1) self->set_score(-1.0);
                    if (step.step == 3) self->set_score(5.0);
                  }});
  self = &trainer;
  trainer.run();
  std::vector<int64_t> kept;
  for (const zero::StepFolder& step : zero::step_folders(folder.path())) kept.push_back(step.steps);
  CHECK(kept == std::vector<int64_t>{6, 3});
}

TEST_CASE(
    "a trainer with two pipeline stages gives the same bits as with one, with 1F1B and GPipe") {
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

TEST_CASE("a plan of a trainer equals its run with saves, a resume, three ranks and disk offload") {
  for (const bool in_background : {false, true}) {
    CAPTURE(in_background);
    const TemporaryFolder folder, disk;
    const auto program = [&](const std::string& directory) {
      return [&, directory](Communicator& ranks, const Device& device) {
        for (const int64_t steps : {3, 5, 5}) {  // each goes on from the checkpoint before
          const Net net;
          zero::Config config{.stage = 3,
                              .compute = DType::bf16,
                              .offload = {.optimizer = Space::file},
                              .param_persistence_threshold = 0};
          zero::Engine engine(net.store, ranks, device, config);
          TrainerOptions options = ten_steps();
          options.steps = steps;
          options.checkpoints = {.path = directory, .in_background = in_background};
          options.save_interval = 2;
          Trainer trainer(engine, options, task_of(net, device), {.stop = [] { return 0; }});
          const bool resumed = trainer.resume(directory);
          if (resumed != (steps == 5)) throw Error("resumed: expected all but the first run");
          trainer.run();
        }
      };
    };
    const DeviceOptions device{.swap = {.directory = disk.path()}};
    plan_ranks(3, program(folder / "run"), {.device = device});
    CHECK_FALSE(std::filesystem::exists(folder / "run"));
    CHECK(check_planned(3, program(folder / "run"), device).ranks[2].steps == 5);
  }
}

TEST_CASE("a plan of a trainer equals its run with a pipeline, batch ramp-up and skipped steps") {
  for (const PipelineSchedule schedule : {PipelineSchedule::one_f_one_b, PipelineSchedule::gpipe}) {
    CAPTURE(static_cast<int>(schedule));
    const TemporaryFolder folder;
    const auto program = [&](Communicator& ranks, const Device& device) {
      const Mesh mesh(ranks, {.data = 2, .pipeline = 2});
      const Net net(mesh.stage, 2);
      zero::Engine engine(net.store, mesh, device, {.stage = 1});
      TrainerOptions options = ten_steps();
      options.accumulation = 3;
      options.rampup = {.start = 4, .increment = 4, .samples = 24};
      options.steps = 7;
      options.pipeline = schedule;
      options.checkpoints = {.path = folder / "run", .keep = 1, .in_background = true};
      options.save_interval = 2;
      Trainer(engine, options, task_of(net, device)).run();
    };
    CHECK(check_planned(4, program).ranks[3].steps == 7);
  }
  const TemporaryFolder folder;
  const auto program = [&](Communicator& ranks, const Device& device) {
    const Net net;
    zero::Engine engine(
        net.store, ranks, device,
        {.stage = 2, .compute = DType::f16, .loss_scaling = {.initial_scale_power = 40}});
    TrainerOptions options = ten_steps();
    options.steps = 3;
    options.checkpoints = {.path = folder / "run", .keep = 1};
    options.save_interval = 1;
    Trainer(engine, options, task_of(net, device)).run();
    if (device.type() != Device::Type::meta && engine.skipped() != 3)
      throw Error("expected 3 skipped steps, got " + std::to_string(engine.skipped()));
  };
  check_planned(2, program);
}

TEST_CASE_FIXTURE(NetEngine,
                  "TrainerHooks::observe is called at each moment of a training step, in order") {
  options.steps = 1;
  // With one stage a micro-batch is done before the next one begins, whatever the schedule.
  SUBCASE("1F1B") { options.pipeline = PipelineSchedule::one_f_one_b; }
  SUBCASE("GPipe") { options.pipeline = PipelineSchedule::gpipe; }
  int64_t forwards = 0;
  TrainerTask task = task_of(net, device);
  task.forward = [&, forward = task.forward](Tape& tape, const MicroBatch& batch) {
    ++forwards;
    return forward(tape, batch);
  };
  std::string order;  // moment:forwards,backwards,steps
  Trainer(engine, options, task,
          {.observe =
               [&](zero::TrainerMoment moment, const MicroBatch& batch) {
                 order += std::to_string(static_cast<int>(moment)) + (batch.last ? "':" : ":") +
                          std::to_string(forwards) + "," + std::to_string(engine.micro_batches()) +
                          "," + std::to_string(engine.steps()) + " ";
               }})
      .run();
  CHECK(order ==
        "0:0,0,0 1:0,0,0 2:1,0,0 3:1,0,0 4:1,1,0 1':1,1,0 2':2,1,0 3':2,1,0 4':2,2,0 5:2,2,0 "
        "6:2,2,0 7:2,0,1 ");
}

TEST_CASE("a trainer's trace has the steps from trace_first to before trace_end and no others") {
  TrainerOptions options = ten_steps();
  options.steps = 6;
  options.trace = std::make_shared<Trace>();
  options.trace_first = 2;
  options.trace_end = 4;
  run({.options = options});
  std::vector<int64_t> steps;
  for (const Trace::Span& span : options.trace->spans())
    if (const Trace::Value* step = span.name == "step" ? span.find("step") : nullptr)
      steps.push_back(std::get<int64_t>(*step));
  CHECK(steps == std::vector<int64_t>{2, 3});
}

TEST_CASE(
    "steps skipped for infinite gradients do not advance the rate schedule and count as skipped "
    "samples") {
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

TEST_CASE(
    "a run continued from any step equals the whole run, with skipped steps, loss scale and "
    "ramp-up") {
  const TemporaryFolder folder;
  struct Steps {
    std::string hash;
    std::vector<double> rates, scales, losses;
    zero::TrainerPosition position;
  };
  const auto train = [&](int world, const std::string& resume) {
    Steps outcome;
    run_ranks(world, [&](Communicator& ranks, const Device& device) {
      const Net net;
      zero::Engine engine(
          net.store, ranks, device,
          {.stage = world == 1 ? 0 : 3,
           .compute = DType::f16,
           .loss_scaling = {.initial_scale_power = 19, .window = 2, .hysteresis = 2}});
      TrainerOptions options = {.micro_batch = 2,
                                .accumulation = 4 / world,
                                .rampup = {.start = 4, .increment = 4, .samples = 24},
                                .steps = 10,
                                .schedule = {.kind = zero::ScheduleKind::annealing, .rate = 1e-2}};
      options.schedule.annealing = {.lr_warmup_samples = 9, .lr_decay_samples = 40};
      if (resume.empty()) options.checkpoints = {.path = folder.path()};
      if (options.checkpoints) options.save_interval = 1;
      Steps own;
      Trainer trainer(engine, options, task_of(net, device),
                      {.after_step = [&](const zero::TrainedStep& step) {
                        own.rates.push_back(step.rate);
                        own.scales.push_back(step.result.loss_scale);
                        own.losses.push_back(step.loss);
                      }});
      if (!resume.empty()) trainer.resume(resume);
      trainer.run();
      own.hash = engine.parameter_hash();
      own.position = trainer.position();
      if (ranks.rank() == 0) outcome = own;
    });
    return outcome;
  };
  const Steps straight = train(1, "");
  CHECK(straight.position.samples == 6 * 4 + 4 * 8);
  CHECK(straight.position.skipped_samples == 2 * 4 + 4 + 8);  // also where the scale had doubled
  for (int64_t step = 1; step <= 10; ++step) {
    CAPTURE(step);
    Steps rest = straight;
    for (std::vector<double>* values : {&rest.rates, &rest.scales, &rest.losses})
      values->erase(values->begin(), values->begin() + step);
    for (const int world : {1, 2}) {
      const Steps resumed = train(world, folder / ("step_" + std::to_string(step)));
      CHECK(resumed.hash == rest.hash);
      CHECK(resumed.rates == rest.rates);
      CHECK(resumed.scales == rest.scales);
      CHECK(resumed.losses == rest.losses);
      CHECK(resumed.position.samples == rest.position.samples);
      CHECK(resumed.position.skipped_samples == rest.position.skipped_samples);
      CHECK(resumed.position.micro_batches == rest.position.micro_batches);
      CHECK(resumed.position.score == rest.position.score);
    }
  }
}

TEST_CASE_FIXTURE(
    NetEngine, "invalid or contradictory trainer options are refused with the name of the option") {
  const auto refusal = [&](TrainerOptions invalid, bool with_forward = true,
                           TrainerHooks hooks = {}) {
    TrainerTask task = task_of(net, device);
    if (!with_forward) task.forward = {};
    return message_of<ConfigError>([&] { Trainer(engine, invalid, task, hooks); });
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
  CHECK_ERROR(ConfigError, "TrainerOptions::checkpoints", trainer.save());
  CHECK_ERROR(
      ConfigError, "stop: expected 0 to 5, got 6",
      Trainer(engine, {.steps = 1}, task_of(net, device), {.stop = [] { return 6; }}).run());
}

TEST_CASE("a run whose steps are all bad ends on every rank, and saves nothing in that row") {
  for (const int world : {1, 3}) {
    CAPTURE(world);
    const TemporaryFolder folder;
    TrainerOptions options = ten_steps();
    // The first update makes weights near 3e38, whose products are infinite.
    options.schedule = {.rate = 3e38};
    options.checkpoints = {.path = folder.path(), .keep = -1};
    options.save_interval = 1;
    options.max_bad_steps = 4;
    std::vector<double> losses;
    const auto bad_run = [&](const std::string& resume) {
      return message_of<Error>([&] {
        losses.clear();
        run({.world = world,
             .options = options,
             .resume = resume,
             .hooks = {.after_step = [&losses, mutex = std::make_shared<std::mutex>()](
                                         const zero::TrainedStep& step) {
               const std::lock_guard lock(*mutex);
               losses.push_back(step.loss);
             }}});
      });
    };
    const std::string error = bad_run("");
    CHECK(contains(
        error, "4 steps in a row taught nothing: the gradient of first of step 1 is not finite"));
    CHECK(losses.size() == static_cast<size_t>(5 * world));  // the first step was good
    CHECK(zero::find_checkpoint(folder.path()) == folder / "step_1");
    CHECK(contains(bad_run(folder.path()), "4 steps in a row"));  // the row is counted again
    CHECK(zero::find_checkpoint(folder.path()) == folder / "step_1");
    options.max_bad_steps = 0;
    CHECK(run({.world = world, .options = options, .resume = folder.path()}).end.saved);
    CHECK(zero::find_checkpoint(folder.path()) == folder / "step_10");
  }
}

TEST_CASE_FIXTURE(NetEngine,
                  "a trainer refuses a checkpoint of another program and names its step folder") {
  for (const char* config : {R"({"mine":1})", R"({"schema":"zerograd.trainer/1","samples":-4})"}) {
    zero::save_checkpoint(folder.path(), engine, {.config_json = config});
    Trainer trainer(engine, {.steps = 1}, task_of(net, device));
    const std::string message = message_of<FileError>([&] { trainer.resume(folder.path()); });
    CHECK(contains(message, "step_0"));
    CHECK(contains(message, "expected a checkpoint of zero::Trainer"));
  }
}
