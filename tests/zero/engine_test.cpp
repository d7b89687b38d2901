#include "zerograd/zero/engine.h"

#include <atomic>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/zero/training_run.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/plan.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using State = zero::Engine::State;

TEST_CASE(
    "gradients of eight micro-batches are rounded once each and summed in order, as in a plain "
    "loop") {
  for (const Device& device : devices_at_every_level())
    for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
      INFO(level_of(device), ", ", name_of(compute));
      const Toy toy;
      Engine engine(toy.store, device, {.compute = compute, .loss_scaling = low_scale});
      const float scale = compute == DType::f16 ? 64.0f : 1.0f;
      for (int step = 0; step < 2; ++step) {  // the second step reuses the memory of the first
        std::map<const Parameter*, std::vector<float>> expected;
        for (uint64_t m = 0; m < 8; ++m) {
          Gradients gradients = random_gradients(toy.trainable(), m + 1);
          for (float& x : gradients[&toy.gain]) x = -0.0f;
          for (auto& [parameter, gradient] : gradients) {
            std::vector<float>& sum = expected[parameter];
            sum.resize(gradient.size(), 0.0f);
            for (size_t i = 0; i < sum.size(); ++i) sum[i] += rounded(gradient[i] * scale, compute);
          }
          run_micro_batch(engine, gradients);
        }
        CHECK(engine.micro_batches() == 8);
        for (const Parameter* parameter : toy.trainable())
          CHECK(same_bits(engine.read(*parameter, State::gradient), expected[parameter]));
        engine.step(1e-3f);
        CHECK(engine.micro_batches() == 0);
        for (const Parameter* parameter : toy.trainable())
          CHECK(same_bits(engine.read(*parameter, State::gradient),
                          std::vector<float>(static_cast<size_t>(parameter->shape.numel()), 0.0f)));
      }
    }
}

TEST_CASE("a step between forward and backward is an error if an op saved a parameter") {
  for (const int stage : {0, 1, 2, 3})
    for (const DType compute : {DType::f32, DType::bf16}) {
      const Toy toy;
      const Device device = Device::cpu();
      Config config{.stage = stage, .compute = compute, .param_persistence_threshold = 0};
      if (stage == 3) config.offload.parameter = Space::host;  // values are freed until backward
      Engine engine(toy.store, device, config);
      Tape tape = engine.tape();
      Var loss;
      {
        const Tape::Use use(tape, toy.first);
        const Var x = tape.variable(Tensor::full({1, 31}, 1.0, compute, device));
        loss = sum(linear(x, tape.parameter(toy.weight)));
      }
      run_micro_batch(engine, random_gradients(toy.trainable(), 1));
      engine.step(1e-1f);
      CHECK_ERROR(TapeError, "linear: backward needs parameter 'a.weight' as it was in forward",
                  engine.backward(tape, loss));
    }
}

TEST_CASE("an engine refuses to run backward on a tape that does not read it") {
  const Toy toy, other_toy;
  Engine engine(toy.store, Device::cpu()), other(other_toy.store, Device::cpu());
  Tape tape = other.tape();
  const Var loss = sum(tape.variable(Tensor::full({2}, 1.0, DType::f32, Device::cpu())));
  CHECK_ERROR(TapeError, "backward got a tape that does not read this engine",
              engine.backward(tape, loss));
  other.backward(tape, loss);
  CHECK(engine.micro_batches() == 0);
  CHECK(other.micro_batches() == 1);
}

TEST_CASE("a unit or parameter added to the store after the engine was made is refused by name") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  store.add(unit, "first", {4}, Init::ones());
  Engine engine(store, Device::cpu());
  engine.tape();
  const Unit& empty = store.unit("later");
  CHECK_ERROR(ConfigError, "tape: unit 'later' was added", engine.tape());
  store.add(empty, "second", {4}, Init::ones());
  const auto names_it = doctest::Contains("parameter 'second' was added to the store after");
  CHECK_THROWS_WITH_AS(engine.tape(), names_it, ConfigError);
  CHECK_THROWS_WITH_AS(engine.inference_tape(), names_it, ConfigError);
  CHECK_THROWS_WITH_AS(engine.step(1e-3f), names_it, ConfigError);
}

TEST_CASE("values are the masters rounded to the compute dtype, from the start and after a step") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const Toy toy;
    Engine engine(toy.store, Device::cpu(), {.compute = compute, .loss_scaling = low_scale});
    for (int step = 0; step < 3; ++step) {
      for (const auto& parameter : toy.store.parameters()) {
        Tape tape = engine.inference_tape();
        const Tape::Use use(tape, *parameter->unit);
        const Tensor value = tape.parameter(*parameter).value();
        CHECK(value.shape() == parameter->shape);
        CHECK(value.dtype() == compute);
        CHECK(value.buffer()->purpose() == Purpose::parameter);
        const std::vector<float> masters = engine.read(*parameter, State::master);
        const std::vector<double> values = value.to_doubles();
        for (size_t i = 0; i < masters.size(); ++i)
          CHECK(values[i] == rounded(masters[i], compute));
      }
      train_step(engine, step);
    }
  }
}

TEST_CASE("initial masters depend on seed, name and element, at any compute dtype") {
  const Toy toy;
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const Engine engine(toy.store, Device::cpu(), {.compute = compute, .seed = 11});
    for (const auto& parameter : toy.store.parameters()) {
      std::vector<float> expected(static_cast<size_t>(parameter->shape.numel()));
      initialise(parameter->init, 11, parameter->name, 0, expected);
      if (!parameter->trainable)  // no master: its value, widened
        for (float& x : expected) x = rounded(x, compute);
      CHECK(engine.read(*parameter, State::master) == expected);
    }
  }
}

TEST_CASE("ranks of any number begin with the same weights, orthogonal ones too") {
  struct Weights {
    ParameterStore store;
    const Unit& unit = store.unit("unit");
    const Parameter& odd = store.add(unit, "odd", {3}, Init::truncated_normal({}));
    const Parameter& square = store.add(unit, "square", {9, 9}, Init::orthogonal());
    const Parameter& kernel = store.add(unit, "kernel", {4, 3, 3}, Init::kaiming_uniform());
    const Parameter& gain = store.add(unit, "gain", {5, 7}, Init::xavier_normal(2));
  };
  const Weights whole;
  const Engine expected(whole.store, Device::cpu(), {.seed = 11});
  for (const auto& parameter : whole.store.parameters()) {
    std::vector<float> values(static_cast<size_t>(parameter->shape.numel()));
    initialise(*parameter, 11, 0, values);
    CHECK(expected.read(*parameter, State::master) == values);
  }
  for (const int ranks : {2, 3})
    for (const int stage : {0, 3}) {
      run_local(ranks, [&](Communicator& comm, const Device& device) {
        const Weights weights;
        const Engine engine(weights.store, comm, device, {.stage = stage, .seed = 11});
        if (engine.parameter_hash() != expected.parameter_hash()) throw Error("other weights");
      });
    }
}

TEST_CASE("a step with an infinite or NaN gradient changes nothing and names the tensor") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16})
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      const Toy toy;
      Engine engine(toy.store, Device::cpu(), {.compute = compute, .loss_scaling = low_scale});
      Engine untouched(toy.store, Device::cpu(), {.compute = compute, .loss_scaling = low_scale});
      train_step(engine, 0);
      train_step(untouched, 0);
      const std::string before = engine.parameter_hash();
      Gradients gradients = random_gradients(toy.trainable(), 3);
      gradients[&toy.matrix][64] = bad;  // the last parameter of its unit
      gradients[&toy.gain][128] = bad;   // earlier in the store
      run_micro_batch(engine, random_gradients(toy.trainable(), 2));
      run_micro_batch(engine, gradients);
      const zero::StepResult result = engine.step(1e-2f);
      CHECK(result.skipped);
      CHECK(result.bad_tensor == "gain");
      CHECK(std::isinf(result.gradient_norm));
      CHECK(engine.steps() == 2);
      CHECK(engine.skipped() == 1);
      CHECK(engine.micro_batches() == 0);
      CHECK(engine.parameter_hash() == before);
      // No state of it remains: both engines continue with equal results.
      for (int step = 1; step < 3; ++step)
        CHECK(train_step(engine, step) == train_step(untouched, step));
      CHECK(engine.parameter_hash() == untouched.parameter_hash());
      CHECK(engine.read(toy.gain, State::moment2) == untouched.read(toy.gain, State::moment2));
    }
}

TEST_CASE("a parameter that no micro-batch used is updated with a zero gradient") {
  for (const Space sums : {Space::device, Space::host, Space::file}) {
    CAPTURE(name_of(sums));
    const Toy toy;
    const zero::Config config{.offload = {.gradient = sums}};
    const auto cpu = [] { return Device::cpu(0, {.swap = {.directory = "/tmp"}}); };
    Engine left_out(toy.store, cpu(), config), zeros(toy.store, cpu(), config);
    for (uint64_t step = 1; step <= 3; ++step) {
      Gradients gradients = random_gradients(toy.trainable(), step);
      // It has a gradient in the first step, so its accumulator holds values that must not be
      // reused.
      if (step > 1) gradients[&toy.weight] = std::vector<float>(5 * 31, 0.0f);
      run_micro_batch(zeros, gradients);
      if (step > 1) gradients.erase(&toy.weight);
      run_micro_batch(left_out, gradients);
      CHECK(zeros.step(1e-2f).gradient_norm == left_out.step(1e-2f).gradient_norm);
    }
    CHECK(zeros.parameter_hash() == left_out.parameter_hash());
  }
}

TEST_CASE_FIXTURE(ToyEngine, "a frozen parameter keeps its value and has no optimizer state") {
  const std::vector<float> before = engine.read(toy.table, State::master);
  train_step(engine, 0);
  CHECK(engine.read(toy.table, State::master) == before);
  CHECK(engine.read(toy.table, State::moment1).empty());
  CHECK(engine.read(toy.table, State::gradient).empty());
}

TEST_CASE_FIXTURE(
    ToyEngine,
    "reading a value outside its unit is an error that names the parameter and the unit to open") {
  const char* message =
      "value: 'gain' is read outside its unit; expected unit 'second' to be open; open it with "
      "Tape::Use use(tape, unit)";
  CHECK_THROWS_WITH_AS(engine.value(toy.gain), message, NotResident);
  {
    Tape tape = engine.inference_tape();
    const Tape::Use outer(tape, toy.second);
    { const Tape::Use inner(tape, toy.second); }
    CHECK(engine.value(toy.gain).numel() == 129);
    CHECK_THROWS_AS(engine.value(toy.bias), NotResident);
  }
  CHECK_THROWS_WITH_AS(engine.value(toy.gain), message, NotResident);
}

TEST_CASE("Engine::write sets a state, updates the compute copy and refuses wrong sizes") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const Toy toy;
    Engine engine(toy.store, Device::cpu(), {.compute = compute, .loss_scaling = low_scale});
    const std::vector<float> before = engine.read(toy.gain, State::master);
    const std::vector<float> values = random_floats(65, 4);
    for (State state : {State::master, State::moment1, State::moment2}) {
      engine.write(toy.matrix, state, values);
      CHECK(engine.read(toy.matrix, state) == values);
    }
    CHECK(engine.read(toy.gain, State::master) == before);
    Tape tape = engine.inference_tape();
    const Tape::Use use(tape, toy.second);
    CHECK(engine.value(toy.matrix).to_doubles()[64] == rounded(values[64], compute));
    CHECK_THROWS_WITH_AS(engine.write(toy.gain, State::master, values),
                         "write: 'gain' takes 129 values, got 65", ShapeError);
    CHECK_THROWS_AS(engine.write(toy.matrix, State::gradient, values), ConfigError);
    CHECK_THROWS_AS(engine.write(toy.table, State::moment1, values), ShapeError);
  }
}

TEST_CASE("misuse of an engine is an error") {
  const Toy toy, other;
  Engine engine(toy.store, Device::cpu());
  CHECK_THROWS_WITH_AS(engine.step(1e-3f),
                       "step: no micro-batch since the last one; call backward first", ConfigError);
  run_micro_batch(engine, random_gradients(toy.trainable(), 1));
  CHECK_THROWS_AS(engine.step(NAN), ConfigError);
  CHECK_THROWS_AS(engine.read(other.gain, State::master), ConfigError);
  CHECK_THROWS_AS(engine.acquire(other.first, engine.device().compute()), ConfigError);
  CHECK_THROWS_AS(engine.set_steps(-1, 0), ConfigError);
  CHECK_THROWS_AS(Engine(toy.store, Device::cpu(), {.stage = 7}), ConfigError);
}

TEST_CASE("two engines in one process do not affect each other, in turns or in two threads") {
  const Toy toy;
  const auto hash_after = [&](uint64_t seed) {
    Engine engine(toy.store, Device::cpu(0, {.threads = 1, .separate = true}), {.seed = seed});
    for (int step = 0; step < 5; ++step) train_step(engine, step);
    return engine.parameter_hash();
  };
  const std::string alone1 = hash_after(1), alone2 = hash_after(2);
  CHECK(alone1 != alone2);

  Engine a(toy.store, Device::cpu(), {.seed = 1}), b(toy.store, Device::cpu(), {.seed = 2});
  for (int step = 0; step < 5; ++step) {
    train_step(a, step);
    train_step(b, step);
  }
  CHECK(a.parameter_hash() == alone1);
  CHECK(b.parameter_hash() == alone2);

  std::string threaded1, threaded2;
  std::thread first([&] { threaded1 = hash_after(1); });
  std::thread second([&] { threaded2 = hash_after(2); });
  first.join();
  second.join();
  CHECK(threaded1 == alone1);
  CHECK(threaded2 == alone2);
}

TEST_CASE("training gives the same bits at every SIMD level and thread count") {
  for (DType compute : {DType::f32, DType::bf16, DType::f16}) {
    std::string expected;
    for (int threads : {1, 2})
      for (const Device& device : devices_at_every_level(threads)) {
        const Toy toy;
        Engine engine(toy.store, device, {.compute = compute, .loss_scaling = low_scale});
        for (int step = 0; step < 3; ++step) train_step(engine, step);
        if (expected.empty()) expected = engine.parameter_hash();
        CHECK(engine.parameter_hash() == expected);
      }
  }
}

TEST_CASE("parameter_hash is XXH3-128 of the masters in byte order of names") {
  // Output of `xxhsum -H2` for the eight floats below in the order Z, a, b.
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  const Parameter& b = store.add(unit, "b", {3}, Init::ones());
  const Parameter& a = store.add(unit, "a", {2, 2}, Init::zeros(), {.decay = true});
  const Parameter& upper = store.add(unit, "Z", {1}, Init::ones(), {.trainable = false});
  Engine engine(store, Device::cpu());
  const std::string start = engine.parameter_hash();
  engine.write(upper, Engine::State::master, std::vector<float>{-2.0f});
  engine.write(a, Engine::State::master, std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f});
  engine.write(b, Engine::State::master, std::vector<float>{100.0f, 200.0f, 300.0f});
  CHECK(start != engine.parameter_hash());
  CHECK(engine.parameter_hash() == "6a490272ff0ed22127343d32cfb4d1a0");
}

TEST_CASE("two engines on one tape get their gradients and count a micro-batch each") {
  ParameterStore first, second;
  const Unit &a = first.unit("a"), &b = second.unit("b");
  const Parameter& w = first.add(a, "w", {2, 2}, Init::normal(0.5f));
  const Parameter& v = second.add(b, "v", {2, 2}, Init::normal(0.5f));
  const Device device = Device::cpu();
  const Tensor x = Tensor::from(std::vector<float>{1, -2, 3, 0.5f}, {2, 2}, device);
  Engine engine_a(first, device), engine_b(second, device);
  const auto layer = [](Tape& tape, const Unit& unit, const Parameter& weight, const Var& input) {
    const Tape::Use use(tape, unit);
    return linear(input, tape.parameter(weight));
  };
  Tape tape(device, {&engine_a, &engine_b});
  engine_a.backward(tape, sum(layer(tape, b, v, layer(tape, a, w, x))));
  CHECK(engine_a.micro_batches() == 1);
  CHECK(engine_b.micro_batches() == 1);
  // The same by two tapes.
  const auto gradient_a = engine_a.read(w, Engine::State::gradient),
             gradient_b = engine_b.read(v, Engine::State::gradient);
  engine_a.drop_gradients();
  engine_b.drop_gradients();
  Tape tape_a = engine_a.tape(), tape_b = engine_b.tape();
  const Var y = layer(tape_a, a, w, x), input = tape_b.variable(y.value());
  engine_b.backward(tape_b, sum(layer(tape_b, b, v, input)));
  const Tensor seed = tape_b.gradient(input);
  engine_a.backward(tape_a, {&y, 1}, {&seed, 1});
  CHECK(engine_a.read(w, Engine::State::gradient) == gradient_a);
  CHECK(engine_b.read(v, Engine::State::gradient) == gradient_b);
  engine_a.step(0.1f);
  engine_b.step(0.1f);
}

TEST_CASE("a state is read as a tensor of its own, in its shape and dtype") {
  for (const int stage : {0, 1, 3})
    run_local(2, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      zero::Engine engine(toy.store, comm, device, {.stage = stage, .compute = DType::bf16});
      train_step(engine, 0);
      for (const auto& parameter : toy.store.parameters())
        for (const State& state : engine.states(*parameter)) {
          const Tensor tensor = engine.tensor(*parameter, state);
          const std::vector<float> values = engine.read(*parameter, state);
          train_step(engine, 1);
          if (tensor.shape() != parameter->shape) throw ShapeError(parameter->name);
          const Tensor wide = Tensor::empty(tensor.shape(), DType::f32, device);
          kernels::cast({.x = tensor, .y = wide}, device.compute());
          if (wide.to_host<float>() != values) throw Error(parameter->name + " " + state.name);
        }
      if (engine.tensor(*toy.store.parameters().front(), {"none"})) throw Error("none");
    });
}

TEST_CASE("a run freezes a parameter by another engine, and trains it again with new states") {
  struct Phase {
    explicit Phase(bool trains_body)
        : body(store.add(store.unit("body"), "body", {70}, Init::normal(0.1f),
                         {.trainable = trains_body})) {}
    ParameterStore store;
    const Parameter& body;
    const Parameter& head = store.add(store.unit("head"), "head", {5}, Init::normal(0.1f));
  };
  const TemporaryFolder folder;
  std::vector<float> body, head;
  int64_t steps = 0;
  for (const bool trains : {true, false, true}) {
    CAPTURE(trains);
    const Phase phase(trains);
    zero::Engine engine(phase.store, Device::cpu());
    if (steps == 2) {
      CHECK(message_of<FileError>([&] { zero::load_checkpoint(folder.path(), engine); }) ==
            "checkpoint: " + (folder / "step_2") + ": has no moment1 of 'body'");
      zero::load_weights(folder / "step_2", engine);
    } else if (steps == 1) {
      zero::load_checkpoint(folder.path(), engine);
      CHECK(engine.read(phase.head, State::moment1) == head);
    }
    if (steps > 0) CHECK(engine.read(phase.body, State::master) == body);
    train_step(engine, steps);
    CHECK((engine.read(phase.body, State::master) != body) == trains);
    body = engine.read(phase.body, State::master);
    head = engine.read(phase.head, State::moment1);
    if (++steps < 3)
      zero::save_checkpoint(folder.path(), engine, {.steps = steps, .micro_batches = 2 * steps});
  }
}

TEST_CASE("every rank visits the frozen parameters that it has whole, and one of them is counted") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    std::atomic<int64_t> visited = 0, counted = 0;
    run_ranks(2, [&](Communicator& world, const Device& device) {
      const Toy toy;
      const Engine engine(toy.store, world, device,
                          {.stage = stage, .param_persistence_threshold = 0});
      engine.visit_masters(
          [&](const Parameter& parameter, int64_t, std::span<const float> x, bool is_counted) {
            if (&parameter != &toy.table) return;
            visited += std::ssize(x);
            if (is_counted) counted += std::ssize(x);
          });
    });
    CHECK(counted == 12);
    CHECK(visited == (stage < 3 ? 24 : 12));
  }
}
