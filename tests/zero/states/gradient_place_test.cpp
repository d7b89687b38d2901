#include <map>
#include <optional>

#include "tests/support/cover.h"
#include "tests/zero/training_run.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using State = zero::Engine::State;

namespace {

int64_t gradient_bytes_of(const Device& device, const std::string& phase) {
  for (const MemoryTracker::Row& row : device.memory().rows())
    if (row.phase == phase) return row.live[static_cast<size_t>(Purpose::gradient)];
  return -1;
}

int64_t live_gradient_bytes(const Device& device) {
  return device.memory().live_by_purpose()[static_cast<size_t>(Purpose::gradient)];
}

std::vector<double> sevens(const Parameter& parameter) {
  return std::vector<double>(static_cast<size_t>(parameter.shape.numel()), 7.0);
}

Tensor filled_place(Engine& engine, const Parameter& parameter) {
  const Tensor place = engine.gradient_place(parameter);
  REQUIRE(place);
  kernels::axpby({.x = Tensor::full(parameter.shape, 7, DType::f32, engine.device()),
                  .y = place,
                  .a = 1.0,
                  .b = 0.0},
                 engine.device().compute());
  return place;
}

/// A micro-batch that opens the first unit alone.
void run_first_unit(Engine& engine, const Toy& toy, uint64_t seed) {
  Tape tape = engine.tape();
  Var loss;
  {
    const Tape::Use use(tape, toy.first);
    for (const auto& [parameter, gradient] : random_gradients({&toy.bias, &toy.weight}, seed))
      loss = with_gradient(tape, loss, *parameter, gradient);
  }
  engine.backward(tape, loss);
}

/// A micro-batch whose backward ends while the gradient of `parameter` is in its place.
void fail(Engine& engine, Tape& tape, const Parameter& parameter) {
  Var loss;
  {
    const Tape::Use use(tape, *parameter.unit);
    loss = record("failing", {tape.parameter(parameter)},
                  Tensor::zeros({1}, DType::f32, tape.device()), {}, Nothing{},
                  [](const Nothing&, const BackwardPass& pass) {
                    const Tensor gradient = pass.make_gradient(0);
                    fill_zero(gradient, pass.stream());
                    pass.accumulate(0, gradient);
                    throw Error("failing: as the test wants it");
                  });
  }
  CHECK_THROWS_AS(engine.backward(tape, loss), Error);
}

/// A model of one matrix, which is its embedding and its head, too.
struct TiedMatrix {
  static constexpr int64_t rows = 12, width = 6, vocabulary = 70;
  ParameterStore store;
  const Unit& unit = store.unit("tied");
  const Parameter& wte = store.add(unit, "wte", {vocabulary, width}, Init::normal(0.5f));

  Var loss(Tape& tape, uint64_t sample) const {
    std::vector<int64_t> ids(rows + 1);
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = (static_cast<int64_t>(i * i) + 7 * static_cast<int64_t>(sample)) % vocabulary;
    const auto part = [&](size_t begin) {
      const auto from = ids.begin() + static_cast<std::ptrdiff_t>(begin);
      return Tensor::from(std::vector<int64_t>(from, from + rows), {1, rows}, tape.device());
    };
    const Tape::Use use(tape, unit);
    const Var x = embedding(part(0), tape.parameter(wte));
    return projection_cross_entropy(x, tape.parameter(wte), part(1));
  }
};

std::string train_tied(const Config& config, int ranks) {
  const auto micro_batch = [](Engine& engine, const TiedMatrix& model, uint64_t sample) {
    Tape tape = engine.tape();
    const Var loss = model.loss(tape, sample);
    engine.backward(tape, loss);
    return loss.value().item();
  };
  const TrainingRun run{.ranks = ranks, .end = 2, .micro_batches = 4};
  return train_on_ranks<TiedMatrix>(config, run, micro_batch).hash;
}

}  // namespace

TEST_CASE(
    "tied weights with a gradient computed in forward give the same bits on any ranks and stage") {
  std::map<DType, std::string> expected;
  for (const DType compute : {DType::f32, DType::bf16, DType::f16})
    expected[compute] = train_tied({.compute = compute, .loss_scaling = low_scale}, 1);
  for_cover(
      [&](DType compute, int stage, int ranks, Space activation, Space gradient) {
        INFO(name_of(compute), ", stage ", stage, ", ranks ", ranks);
        const Config config{.stage = stage,
                            .compute = compute,
                            .offload = {.gradient = gradient, .activation = activation},
                            .loss_scaling = low_scale};
        CHECK(train_tied(config, ranks) == expected.at(compute));
      },
      std::vector{DType::f32, DType::bf16, DType::f16}, std::vector{0, 1, 2, 3},
      std::vector{1, 2, 4}, std::vector{Space::device, Space::host},
      std::vector{Space::device, Space::host});
}

TEST_CASE(
    "a tape dropped or run late after forward computed a gradient changes no other tape's "
    "gradients") {
  const TiedMatrix model;
  Engine engine(model.store, Device::cpu()), alone(model.store, Device::cpu(0, {.separate = true}));
  const int64_t resting = engine.device().memory().live();
  {
    Tape dropped = engine.tape();
    model.loss(dropped, 9);
  }
  Tape late = engine.tape();
  const Var late_loss = model.loss(late, 1);
  for (Engine* each : {&engine, &alone}) {
    Tape tape = each->tape();
    each->backward(tape, model.loss(tape, 0));
  }
  engine.backward(late, late_loss);
  {
    Tape tape = alone.tape();
    alone.backward(tape, model.loss(tape, 1));
  }
  late = engine.tape();
  engine.step(1e-2f);
  alone.step(1e-2f);
  CHECK(engine.parameter_hash() == alone.parameter_hash());
  CHECK(engine.device().memory().live() == resting + arena_bytes(late_loss.value().bytes()));
}

TEST_CASE("the first micro-batch of a step takes no gradient memory beyond the gradient sums") {
  for (const Device& device : {Device::cpu(), Device::meta()})
    for (const DType compute : {DType::f32, DType::bf16, DType::f16})
      for (const int stage : {0, 3}) {
        const Toy toy;
        Engine engine(toy.store, device,
                      {.stage = stage, .compute = compute, .loss_scaling = low_scale});
        const Gradients gradients = random_gradients(toy.trainable(), 1);
        for (int step = 0; step < 2; ++step) {
          for (const bool first : {true, false}) {
            device.memory().reset_peaks();
            run_micro_batch(engine, gradients);
            const int64_t sums = live_gradient_bytes(device);
            CHECK(sums >= engine.resting_bytes().gradient);
            CHECK((gradient_bytes_of(device, "backward") <= sums) == first);
          }
          engine.step(1e-3f);
        }
      }
}

TEST_CASE(
    "on one rank gradient_place lends the f32 gradient sum on the device, to one user at a time") {
  const Toy toy;
  Engine engine(toy.store, Device::cpu(), {.compute = DType::bf16});
  {
    const Tensor place = engine.gradient_place(toy.weight);
    REQUIRE(place);
    CHECK(place.shape() == toy.weight.shape);
    CHECK(place.dtype() == DType::f32);
    CHECK(place.buffer()->purpose() == Purpose::gradient);
    CHECK_FALSE(engine.gradient_place(toy.weight));
    CHECK(engine.gradient_place(toy.bias));
  }
  CHECK(engine.gradient_place(toy.weight));
  run_micro_batch(engine, random_gradients({&toy.weight}, 1));
  CHECK_FALSE(engine.gradient_place(toy.weight));
  CHECK(engine.gradient_place(toy.bias));
  engine.step(1e-3f);
  CHECK(engine.gradient_place(toy.weight));
  CHECK_FALSE(engine.gradient_place(toy.table));  // frozen

  for (const Config& other :
       {Config{.compute = DType::bf16, .grad_accum = DType::bf16},
        Config{.offload = {.gradient = Space::host}}, Config{.reduce_at_boundary = true}})
    CHECK_FALSE(Engine(toy.store, Device::cpu(), other).gradient_place(toy.weight));
}

TEST_CASE(
    "on two ranks gradient_place lends an f32 place once at a time, and none with bf16 or disk "
    "sums") {
  const Toy toy;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw Error(std::string("gradient_place: ") + what);
  };
  const auto check = [&](Communicator& ranks, const Device& device) {
    Engine engine(toy.store, ranks, device, {.stage = 2});
    for (uint64_t m : {1, 2}) {
      {
        const Tensor place = engine.gradient_place(toy.weight);
        require(place && place.shape() == toy.weight.shape, "it has the parameter's shape");
        require(place.dtype() == DType::f32, "it is f32");
        require(place.buffer()->purpose() == Purpose::gradient, "it counts as gradient");
        require(!engine.gradient_place(toy.weight), "one at a time");
        require(!engine.gradient_place(toy.table), "not of what is frozen");
      }
      require(!!engine.gradient_place(toy.weight), "again when it is free");
      run_micro_batch(engine, random_gradients({&toy.weight}, m));
    }
    for (Config other : {Config{.compute = DType::bf16}, Config{.reduce_at_boundary = true},
                         Config{.offload = {.gradient = Space::file}}})
      require(!Engine(toy.store, ranks, device, other).gradient_place(toy.weight),
              "only where gradients are sent as they are made, to sums in memory");
  };
  run_local(2, check, {.device = {.swap = {.directory = "/tmp"}}});
}

TEST_CASE(
    "on two ranks an f32 micro-batch takes no gradient memory beyond the buffers that are sent") {
  for (const bool meta : {false, true}) {
    const Toy toy;
    int64_t taken = -1;
    const auto measure = [&](Communicator& ranks, const Device& device) {
      Engine engine(toy.store, ranks, device, {.stage = 2});
      const Gradients gradients = random_gradients(toy.trainable(), 1);
      run_micro_batch(engine, gradients);
      const int64_t sums = live_gradient_bytes(device);
      device.memory().reset_peaks();
      run_micro_batch(engine, gradients);
      if (ranks.rank() == 0) taken = gradient_bytes_of(device, "backward") - sums;
    };
    if (meta)
      measure(*counting_communicator(0, 2), Device::meta());
    else
      run_local(2, measure);
    // Most is taken when backward begins, in the unit of matrix and gain, which start at multiples
    // of 64 elements of a leaf for two ranks.
    CHECK(taken == arena_bytes(4 * (128 + 192 + 64)));
  }
}

TEST_CASE(
    "on two ranks only two gradient send buffers exist at a time, however many units there are") {
  ParameterStore store;
  for (const char* name : {"a", "b", "c", "d", "e"})
    store.add(store.unit(name), std::string(name) + ".weight", {256}, Init::zeros());
  int64_t taken = -1;
  run_local(2, [&](Communicator& ranks, const Device& device) {
    Engine engine(store, ranks, device, {.stage = 2});
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      const int64_t sums = live_gradient_bytes(device);
      device.memory().reset_peaks();
      Tape tape = engine.tape();
      Var loss;
      for (const auto& parameter : store.parameters()) {
        const Tape::Use use(tape, *parameter->unit);
        loss = record("zeros", {loss, tape.parameter(*parameter)},
                      Tensor::zeros({1}, DType::f32, device), {}, Nothing{},
                      [](const Nothing&, const BackwardPass& pass) {
                        if (pass.needs(0)) pass.accumulate(0, pass.gradient_of_output());
                        const Tensor gradient = pass.make_gradient(1);
                        fill_zero(gradient, pass.stream());
                        pass.accumulate(1, gradient);
                      });
      }
      engine.backward(tape, loss);
      if (ranks.rank() == 0) taken = gradient_bytes_of(device, "backward") - sums;
    }
  });
  CHECK(taken == 2 * 256 * 4);
}

TEST_CASE("on two ranks a tensor from gradient_place keeps its values while other tapes train") {
  const Toy toy;
  const auto train = [&](Engine& engine, int rank, int ranks) {
    for (uint64_t step : {0, 1}) {
      for (int g = rank; g < 4; g += ranks)
        run_micro_batch(engine, random_gradients(
                                    step == 0 ? toy.trainable() : std::vector{&toy.bias, &toy.gain},
                                    4 * step + static_cast<uint64_t>(g)));
      engine.step(1e-2f);
    }
    return engine.parameter_hash();
  };
  Engine alone(toy.store, Device::cpu());
  const std::string expected = train(alone, 0, 1);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    std::vector<std::string> hashes(2);
    std::vector<std::vector<double>> kept(2);
    std::vector<int64_t> left(2);
    run_local(2, [&](Communicator& ranks, const Device& device) {
      const auto rank = static_cast<size_t>(ranks.rank());
      Engine engine(toy.store, ranks, device, {.stage = stage});
      const int64_t resting = device.memory().live();
      {
        const Tensor waiting = filled_place(engine, toy.weight);
        hashes[rank] = train(engine, ranks.rank(), 2);
        kept[rank] = waiting.to_doubles();
      }
      left[rank] = device.memory().live() - resting;
    });
    for (size_t rank : {0, 1}) {
      CHECK(hashes[rank] == expected);
      CHECK(kept[rank] == sevens(toy.weight));
      CHECK(left[rank] == 0);
    }
  }
}

TEST_CASE(
    "on two ranks an unused parameter adds zero gradients, and its lent gradient_place is "
    "unchanged") {
  const Toy toy;
  const auto train = [&](Engine& engine, int rank, int ranks, const auto& between) {
    for (int g = rank; g < 4; g += ranks)
      run_micro_batch(engine, random_gradients(toy.trainable(), static_cast<uint64_t>(g)));
    engine.step(1e-2f);
    between([&] {
      for (int g = rank; g < 4; g += ranks)
        run_first_unit(engine, toy, 4 + static_cast<uint64_t>(g));
    });
    engine.step(1e-2f);
    return engine.parameter_hash();
  };
  Engine alone(toy.store, Device::cpu());
  const std::string expected = train(alone, 0, 1, [](const auto& run) { run(); });
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    std::vector<std::string> hashes(2);
    std::vector<std::vector<double>> kept(2);
    std::vector<char> offered(2);
    run_local(2, [&](Communicator& ranks, const Device& device) {
      const auto rank = static_cast<size_t>(ranks.rank());
      Engine engine(toy.store, ranks, device, {.stage = stage});
      hashes[rank] = train(engine, ranks.rank(), 2, [&](const auto& run) {
        const Tensor waiting = filled_place(engine, toy.gain);
        run();
        kept[rank] = waiting.to_doubles();
        offered[rank] = !!engine.gradient_place(toy.gain);
      });
    });
    for (size_t rank : {0, 1}) {
      CHECK(hashes[rank] == expected);
      CHECK(kept[rank] == sevens(toy.gain));
      // At stage 3 small parameters share a leaf, which has left without the one that waits.
      CHECK(offered[rank] == (stage == 3));
    }
  }
}

TEST_CASE(
    "on one rank a tensor from gradient_place keeps its values through other tapes and a step") {
  const Device device = Device::cpu();
  const Toy toy;
  Engine engine(toy.store, device), alone(toy.store, Device::cpu(0, {.separate = true}));
  const int64_t resting = device.memory().live();
  {
    const Tensor waiting = filled_place(engine, toy.weight);
    for (uint64_t m : {1, 2})
      for (Engine* each : {&engine, &alone})
        run_micro_batch(*each, random_gradients(toy.trainable(), m));
    CHECK(waiting.to_doubles() == sevens(toy.weight));
    for (const Parameter* parameter : toy.trainable())
      CHECK(engine.read(*parameter, State::gradient) == alone.read(*parameter, State::gradient));
    engine.step(1e-2f);
    alone.step(1e-2f);
    CHECK(engine.parameter_hash() == alone.parameter_hash());
    CHECK(waiting.to_doubles() == sevens(toy.weight));
    CHECK(engine.gradient_place(toy.weight));  // the sums are elsewhere now
  }
  {
    const Tensor waiting = filled_place(engine, toy.weight);  // and the parameter is not used
    for (Engine* each : {&engine, &alone}) {
      run_micro_batch(*each, random_gradients({&toy.bias}, 3));
      each->step(1e-2f);
    }
    CHECK(engine.parameter_hash() == alone.parameter_hash());
    CHECK(waiting.to_doubles() == sevens(toy.weight));
  }
  CHECK(device.memory().live() == resting);
}

TEST_CASE("a backward that fails while it uses a gradient_place has no effect on later steps") {
  for (const bool failed_lives_on : {true, false}) {
    CAPTURE(failed_lives_on);
    const Toy toy;
    Engine engine(toy.store, Device::cpu()), alone(toy.store, Device::cpu());
    std::optional<Tape> failed = engine.tape();
    fail(engine, *failed, toy.weight);
    if (!failed_lives_on) failed.reset();
    const Gradients gradients = random_gradients({&toy.bias, &toy.gain}, 1);
    for (Engine* each : {&engine, &alone}) {
      run_micro_batch(*each, gradients);
      each->step(1e-2f);
      train_step(*each, 1);
    }
    CHECK(engine.parameter_hash() == alone.parameter_hash());
  }
}
