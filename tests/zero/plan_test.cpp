// Programs that use the library, but not the zerograd command, are planned and run. The bytes of
// the plan and of the run must be equal for every rank, space, purpose and phase. So must the bytes
// that are communicated and the file I/O. If a program depends on values, the error must name the
// place.

#include "zerograd/runtime/plan.h"
#include "tests/support/error_message.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/checkpoint/checkpoint_file.h"
#include "zerograd/zero/engine.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// Pseudo-random floats that depend on the seed alone.
Tensor batch_of(const Shape& shape, uint64_t seed, const Device& device) {
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  uint64_t state = seed * 2654435761u + 1;
  for (float& value : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<int64_t>(state >> 40)) * 0x1p-24f - 0.5f;
  }
  return Tensor::from(values, shape, device);
}

/// Two perceptrons that share their first layer.
struct TwoPerceptrons {
  const Unit &shared, &left, &right;
  const Parameter &first, &first_bias, &to_left, &to_right;

  explicit TwoPerceptrons(ParameterStore& store)
      : shared(store.unit("shared")),
        left(store.unit("left")),
        right(store.unit("right")),
        first(store.add(shared, "first", {70, 33}, Init::normal(0.1f), {.decay = true})),
        first_bias(store.add(shared, "first.bias", {70}, Init::zeros())),
        to_left(store.add(left, "left", {5, 70}, Init::normal(0.1f), {.decay = true})),
        to_right(store.add(right, "right", {9, 70}, Init::normal(0.1f), {.decay = true})) {}

  Var hidden(Tape& tape, const Var& x) const {
    const Tape::Use use(tape, shared);
    const Var weight = tape.parameter(first);
    return relu(linear(cast(x, weight.value().dtype()), weight, tape.parameter(first_bias)));
  }
  Var loss(Tape& tape, const Device& device, uint64_t seed) const {
    const Var a = hidden(tape, batch_of({6, 33}, seed, device));
    Var sum;
    {
      const Tape::Use use(tape, left);
      sum = mean(linear(a, tape.parameter(to_left)) * 2);
    }
    const Var b = hidden(tape, batch_of({4, 33}, seed + 1, device));
    const Tape::Use use(tape, right);
    const Var out = linear(b, tape.parameter(to_right));
    return cast(sum, DType::f32) + cast(mean(out * out), DType::f32);
  }
};

struct TrainingSetting {
  zero::Config engine;
  int64_t steps = 3, micro_batches = 2;
};

/// A program of `steps` steps with `micro_batches` micro-batches each; each rank has its own data.
Program training_program(const TrainingSetting& setting) {
  return [setting](Communicator& ranks, const Device& device) {
    ParameterStore store;
    const TwoPerceptrons net(store);
    zero::Engine engine(store, ranks, device, setting.engine);
    for (int64_t step = 0; step < setting.steps; ++step) {
      for (int64_t i = 0; i < setting.micro_batches; ++i) {
        Tape tape = engine.tape();
        const auto seed = static_cast<uint64_t>(step * 100 + i * ranks.size() + ranks.rank());
        engine.backward(tape, net.loss(tape, device, seed));
      }
      engine.step(1e-3f);
    }
    engine.parameter_hash();
  };
}

/// The same for one step with a mesh of data ranks alone.
void train_on_data_axis(Communicator& ranks, const Device& device) {
  const Mesh mesh(ranks, {.data = ranks.size()});
  ParameterStore store;
  const TwoPerceptrons net(store);
  zero::Engine engine(store, mesh, device, {.stage = 1});
  Tape tape = engine.tape();
  engine.backward(tape, net.loss(tape, device, static_cast<uint64_t>(ranks.rank())));
  engine.step(1e-3f);
  engine.parameter_hash();
}

}  // namespace

TEST_CASE("a plan with a mesh of data ranks alone gives the bytes of its run") {
  check_planned(2, train_on_data_axis);
}

TEST_CASE("a plan equals its run for every stage and number of ranks") {
  for (int stage : {0, 1, 2, 3})
    for (int ranks : {1, 2, 3}) {
      INFO("stage ", stage, ", ranks ", ranks);
      check_planned(ranks, training_program({.engine = {.stage = stage}}));
      check_planned(ranks, training_program({.engine = {.stage = stage,
                                                        .compute = DType::bf16,
                                                        .param_persistence_threshold = 0}}));
    }
}

TEST_CASE(
    "a plan equals its run for shared weights at ZeRO-3 with host and disk offload on three "
    "ranks") {
  const TemporaryFolder folder;
  for (const Space parameter : {Space::host, Space::file})
    for (const Space optimizer : {Space::host, Space::file}) {
      zero::Config config{.stage = 3,
                          .compute = DType::bf16,
                          .offload = {.parameter = parameter,
                                      .gradient = Space::host,
                                      .optimizer = optimizer,
                                      .activation = Space::host,
                                      .sub_group_size = 1000},
                          .param_persistence_threshold = 0};
      check_planned(3, training_program({.engine = config}),
                    {.swap = {.directory = folder.path()}});
    }
}

TEST_CASE("a plan equals its run for a recurrent net whose length differs from step to step") {
  const Program program = [](Communicator& ranks, const Device& device) {
    ParameterStore store;
    const Unit& unit = store.unit("cell");
    const Parameter& input = store.add(unit, "input", {24, 7}, Init::normal(0.3f));
    const Parameter& state = store.add(unit, "state", {24, 24}, Init::normal(0.2f));
    const Parameter& out = store.add(unit, "out", {1, 24}, Init::normal(0.2f));
    zero::Engine engine(store, ranks, device, {.stage = 3, .param_persistence_threshold = 0});
    for (int64_t length : {3, 17, 1, 9}) {
      Tape tape = engine.tape();
      Var h = Tensor::zeros({5, 24}, DType::f32, device);
      for (int64_t t = 0; t < length; ++t) {
        const Tape::Use use(tape, unit);
        const Var x = batch_of({5, 7}, static_cast<uint64_t>(t), device);
        h = tanh(linear(x, tape.parameter(input)) + linear(h, tape.parameter(state)));
      }
      Var loss;
      {
        const Tape::Use use(tape, unit);
        const Var y = linear(h, tape.parameter(out));
        loss = mean(y * y);
      }
      engine.backward(tape, loss);
      engine.step(1e-2f);
    }
  };
  check_planned(1, program);
  check_planned(2, program);
}

TEST_CASE(
    "ranks that allocate differently and communicate in groups have a plan that equals the run") {
  const Program program = [](Communicator& ranks, const Device& device) {
    const Tensor own = Tensor::zeros({1000 * (ranks.rank() + 1)}, DType::f32, device);
    const std::vector<int> members =
        ranks.rank() % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    const auto half = ranks.group(members, ranks.rank() % 2 == 0 ? "even" : "odd");
    const PhaseScope phase(device, "exchange");
    const Tensor shard = Tensor::zeros({64}, DType::f32, device);
    const Tensor full = Tensor::empty({128}, DType::f32, device);
    half->wait(half->all_gather(shard, full, "halves"));
    const Tensor counts = Tensor::full({3}, ranks.rank(), DType::i64, device);
    ranks.wait(ranks.all_reduce(counts, "counts"));
    if (ranks.rank() == 2) const Tensor more = Tensor::empty({5000}, DType::f32, device);
  };
  const Plan plan = plan_ranks(4, program);
  CHECK(plan.ranks[0].peak[0] != plan.ranks[2].peak[0]);
  CHECK(plan.ranks[1].wire[static_cast<size_t>(Collective::all_gather)].bytes == 256);
  check_planned(4, program);
}

TEST_CASE("a plan equals its run for a program that saves and is resumed by a second engine") {
  for (const int stage : {1, 3}) {
    const TemporaryFolder run_folder;
    const Program program = [&](Communicator& ranks, const Device& device) {
      const zero::Config config{.stage = stage, .param_persistence_threshold = 0};
      std::string saved;
      {
        ParameterStore store;
        const TwoPerceptrons net(store);
        zero::Engine engine(store, ranks, device, config);
        Tape tape = engine.tape();
        engine.backward(tape, net.loss(tape, device, 1));
        engine.step(1e-2f);
        saved = zero::save_checkpoint(run_folder.path(), engine, {.steps = 1});
      }
      ParameterStore store;
      const TwoPerceptrons net(store);
      zero::Engine engine(store, ranks, device, config);
      zero::load_checkpoint(saved, engine);
      Tape tape = engine.tape();
      engine.backward(tape, net.loss(tape, device, 2));
      engine.step(1e-2f);
    };
    plan_ranks(2, program);
    CHECK(std::filesystem::is_empty(run_folder.path()));  // a plan writes nothing
    check_planned(2, program);
  }
}

TEST_CASE("planning the load of a checkpoint that was not saved is an error that names the path") {
  const Program program = [](Communicator& ranks, const Device& device) {
    ParameterStore store;
    const TwoPerceptrons net(store);
    zero::Engine engine(store, ranks, device, {});
    zero::load_checkpoint("nowhere/step_7", engine);
  };
  const std::string what = message_of<FileError>([&] { plan_ranks(2, program); });
  for (const char* part : {"rank 0/2: ", "nowhere/step_7"}) CHECK(contains(what, part));
}

TEST_CASE("a PlanError names the step at which a run ends early because of a loss value") {
  const Program program = [](Communicator& ranks, const Device& device) {
    ParameterStore store;
    const TwoPerceptrons net(store);
    zero::Engine engine(store, ranks, device, {});
    for (int step = 0; step < 5; ++step) {
      Tape tape = engine.tape();
      const Var loss = net.loss(tape, device, 3);
      engine.backward(tape, loss);
      engine.step(1e-2f);
      if (loss.value().item() != 0.0 && step == 2) break;  // in a plan the loss is 0
    }
  };
  const Plan plan = plan_ranks(2, program);
  CHECK(plan.events[0].reads >= 5);
  const std::string what = message_of<PlanError>([&] { run_ranks(2, program, {.expect = &plan}); });
  // An event is an allocation or a collective.
  for (const char* part : {"ended after event", "in step 3", "a branch on a value"})
    CHECK(contains(what, part));
}

TEST_CASE(
    "a PlanError names an allocation whose size depends on a value, with planned and actual "
    "bytes") {
  const Program program = [](Communicator&, const Device& device) {
    const Tensor count = Tensor::from(std::vector<int64_t>{3}, {1}, device);
    const NameScope name(device, "chosen rows");
    const Tensor rows =
        Tensor::empty({static_cast<int64_t>(count.item()) * 1000 + 1}, DType::f32, device);
  };
  const Plan plan = plan_ranks(1, program);
  const std::string what = message_of<PlanError>([&] { run_ranks(1, program, {.expect = &plan}); });
  CHECK(contains(what,
                 "plan: event 1 differs from the plan: expected an allocation of 256 bytes "
                 "of activation (device) for 'chosen rows' in step 0"));
  CHECK(contains(what, "got an allocation of 12032 bytes"));
}

TEST_CASE("a PlanError names a collective that depends on a value") {
  const Program program = [](Communicator& ranks, const Device& device) {
    const Tensor one = Tensor::full({1}, 1.0, DType::i64, device);
    ranks.wait(ranks.all_reduce(one, "votes"));
    if (one.item() > 0) ranks.wait(ranks.barrier("agreed"));
  };
  const Plan plan = plan_ranks(2, program);
  CHECK_ERROR(PlanError, "got the collective barrier of 0 bytes for 'agreed'",
              run_ranks(2, program, {.expect = &plan}));
}

TEST_CASE("planning a loop that ends on a loss value throws PlanError at max_steps or max_reads") {
  const Program steps = [](Communicator& ranks, const Device& device) {
    ParameterStore store;
    const TwoPerceptrons net(store);
    zero::Engine engine(store, ranks, device, {});
    for (double loss = 0.0; loss < 1.0;) {
      Tape tape = engine.tape();
      const Var value = net.loss(tape, device, 3);
      loss = value.value().item();
      engine.backward(tape, value);
      engine.step(1e-2f);
    }
  };
  const std::string what = message_of<PlanError>([&] { plan_ranks(1, steps, {.max_steps = 20}); });
  CHECK(contains(what, "plan: goes on after 20 steps"));
  CHECK(contains(what, "PlanOptions::steps"));

  const Plan first = plan_ranks(1, steps, {.steps = 4});
  CHECK_FALSE(first.complete);
  CHECK(first.ranks[0].steps == 4);

  const Program reads = [](Communicator&, const Device& device) {
    const Tensor zero = Tensor::full({1}, 1.0, DType::f32, device);
    while (zero.item() < 0.5) {
    }
  };
  CHECK_ERROR(PlanError, "plan: has read 1001 values", plan_ranks(1, reads, {.max_reads = 1000}));
}

TEST_CASE("a plan of the first steps agrees with a longer run") {
  const Program program = training_program({.engine = {.stage = 2}, .steps = 6});
  const Plan plan = plan_ranks(2, program, {.steps = 3});
  CHECK_FALSE(plan.complete);
  const MemoryReport run = run_ranks(2, program, {.expect = &plan});
  CHECK(run.ranks[0].steps == 6);
  CHECK(run.peaks() == plan.peaks());
}

TEST_CASE("Tensor::data() in a plan is refused, and the error suggests Tensor::from") {
  const Program by_pointer = [](Communicator&, const Device& device) {
    const Tensor x = Tensor::empty({4}, DType::f32, device);
    x.data<float>()[0] = 1.0f;
  };
  CHECK_ERROR(Unsupported, "Tensor::from(values, shape, device)", plan_ranks(1, by_pointer));
  check_planned(1, [](Communicator&, const Device& device) {
    const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4}, {4}, device);
    CHECK(x.to_host<float>().size() == 4);
  });
}

TEST_CASE(
    "a plan reports the rank, purpose, bytes and name of an allocation over the memory limit") {
  const Program program = training_program({.engine = {.stage = 0}});
  const Plan free = plan_ranks(2, program);
  const int64_t most = free.peaks()[0][0];
  const Plan fits = plan_ranks(2, program, {.device = {.memory_limit = most}});
  CHECK_FALSE(fits.ranks[0].refused);
  CHECK(fits.ranks == free.ranks);

  const Program large = [](Communicator& ranks, const Device& device) {
    const PurposeScope purpose(device, Purpose::optimizer);
    const NameScope name(device, "moments");
    const PhaseScope phase(device, "initialise");
    const Tensor own = Tensor::empty({(ranks.rank() == 1 ? 8 : 1) << 20}, DType::f32, device);
  };
  const Plan plan = plan_ranks(2, large, {.device = {.memory_limit = 8 << 20}});
  CHECK_FALSE(plan.ranks[0].refused);
  REQUIRE(plan.ranks[1].refused);
  CHECK(plan.ranks[1].refused->purpose == Purpose::optimizer);
  CHECK(plan.ranks[1].refused->bytes == 32 << 20);
  CHECK(plan.ranks[1].refused->name == "moments");
  CHECK(plan.ranks[1].refused->phase == "initialise");
  CHECK(contains(plan.table(), "out of memory"));
}

TEST_CASE(
    "plan_ranks plans chosen ranks, thread counts and device types, and refuses invalid ones") {
  const Program program =
      training_program({.engine = {.stage = 3, .param_persistence_threshold = 0}});
  const Plan all = plan_ranks(64, program, {.device = {.threads = 2}});
  PlanOptions two;
  two.device.threads = 2;
  two.ranks = {3, 63};
  const Plan some = plan_ranks(64, program, two);
  REQUIRE(some.ranks.size() == 2);
  CHECK(some.ranks[0] == all.ranks[3]);
  CHECK(some.ranks[1] == all.ranks[63]);
  CHECK(some.machine.threads == 2);
  const Plan cuda = plan_ranks(8, program, {.type = Device::Type::cuda});
  CHECK(cuda.machine.backend == Device::Type::cuda);
  PlanOptions beyond;
  beyond.ranks = {2};
  CHECK_ERROR(ConfigError, "expected ranks in [0, 2), got 2", plan_ranks(2, program, beyond));
  CHECK_ERROR(ConfigError, "got meta", plan_ranks(2, program, {.type = Device::Type::meta}));
  CHECK_ERROR(ConfigError, "expected a plan of 2 ranks, got one of 64",
              run_ranks(2, program, {.expect = &all}));
}

TEST_CASE("plan_ranks rethrows an exception of the program with its rank") {
  const Program program = [](Communicator& ranks, const Device& device) {
    if (ranks.rank() == 1)
      add(Tensor::zeros({2}, DType::f32, device), Tensor::zeros({3}, DType::f32, device));
  };
  CHECK_ERROR(ShapeError, "rank 1/3: add: cannot broadcast", plan_ranks(3, program));
}

TEST_CASE("parameter_hash of a pipeline is unsupported in a plan but works in a run") {
  const Program program = [](Communicator& ranks, const Device& device) {
    const Mesh mesh(ranks, {.pipeline = 2});
    ParameterStore store;
    const std::string name = "w" + std::to_string(mesh.stage);
    store.add(store.unit(name), name, {4}, Init::zeros());
    zero::Engine engine(store, mesh, device);
    engine.parameter_hash();
  };
  CHECK_ERROR(Unsupported, "parameter_hash: a plan", plan_ranks(2, program));
  CHECK(run_ranks(2, program).ranks.size() == 2);
}
