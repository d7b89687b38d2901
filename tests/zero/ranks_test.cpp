#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/zero/training_run.h"
#include "tests/zero/watching.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/checkpoint/snapshot.h"
#include "zerograd/zero/states/partition.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using State = zero::Engine::State;

namespace {

std::string setting_text(const Config& config, int ranks) {
  return "stage " + std::to_string(config.stage) + ", " + std::to_string(ranks) + " ranks, " +
         name_of(config.compute) + ", bucket " + std::to_string(config.reduce_bucket_size) +
         ", prefetch " + std::to_string(config.prefetch_bucket_size) + " in " +
         std::to_string(config.prefetch_units) + " units, persistence " +
         std::to_string(config.param_persistence_threshold) +
         (config.overlap_comm ? ", overlap" : "");
}

/// One micro-batch of the toy on `sample`; every unit is used twice, the first one at the end too.
double micro_batch(Engine& engine, uint64_t sample) {
  Tape tape = engine.tape();
  Var loss;
  for (int round = 0; round < 2; ++round)
    for (const auto& unit : engine.store().units()) {
      const Tape::Use use(tape, *unit);
      for (const Parameter* parameter : unit->parameters)
        loss = distance(tape, loss, *parameter, sample + 100 * static_cast<uint64_t>(round));
    }
  engine.backward(tape, loss);
  return loss.value().item();
}

TrainingOutcome train_ranks(const Config& config, int ranks) {
  return train_on_ranks(config, {.ranks = ranks, .micro_batches = 8}, micro_batch);
}

}  // namespace

TEST_CASE("every stage, world size, bucket, prefetch and persistence setting gives the same bits") {
  // In f16 the first step overflows and is skipped.
  const zero::LossScaleOptions scaling{.initial_scale_power = 14, .hysteresis = 1};
  for (const DType compute : {DType::f32, DType::bf16, DType::f16}) {
    const TrainingOutcome reference = train_ranks({.compute = compute, .loss_scaling = scaling}, 1);
    CHECK(std::isinf(reference.norms[0]) == (compute == DType::f16));
    CHECK(std::isfinite(reference.norms[2]));
    for (const int stage : {0, 1, 2, 3})
      for (const int ranks : {1, 2, 4, 8}) {
        const bool odd = (stage + ranks) % 3 == 0;
        const Config config{.stage = stage,
                            .compute = compute,
                            .loss_scaling = scaling,
                            .overlap_comm = ranks != 4,
                            .reduce_bucket_size = odd ? 100 : 500'000'000,
                            .allgather_bucket_size = odd ? 70 : 500'000'000,
                            .prefetch_bucket_size = stage == 3 && ranks == 8 ? 0 : 50'000'000,
                            .prefetch_units = ranks == 2 ? 1 : 3,
                            .param_persistence_threshold = ranks == 2   ? 100'000
                                                           : ranks == 4 ? 64
                                                                        : 0};
        CAPTURE(setting_text(config, ranks));
        CHECK(train_ranks(config, ranks) == reference);
      }
  }
}

TEST_CASE(
    "training gives the same bits for every offload of parameters, gradients, states and "
    "activations") {
  using enum Space;
  const zero::OffloadOptions places[] = {{.optimizer = host},
                                         {.gradient = host},
                                         {.activation = host},
                                         {.parameter = host},
                                         {host, host, host, host},
                                         {.optimizer = file, .sub_group_size = 64},
                                         {.parameter = file, .sub_group_size = 100},
                                         {.optimizer = host, .optimizer_ratio = 0.5},
                                         {.optimizer = file, .optimizer_ratio = 0.5},
                                         {.parameter = file, .parameters_on_host = 180},
                                         {.parameter = file, .parameter_buffer = 1},
                                         {.gradient = file, .sub_group_size = 70},
                                         {file, host, file, file, 1000},
                                         {file, file, file, file, 200}};
  const std::map<DType, TrainingOutcome> references = {
      {DType::f32, train_ranks({.compute = DType::f32}, 1)},
      {DType::bf16, train_ranks({.compute = DType::bf16}, 1)}};
  for_cover(
      [&](DType compute, int stage, int ranks, zero::OffloadOptions offload) {
        if (stage < 3) offload.parameter = device;
        const Config config{.stage = stage,
                            .compute = compute,
                            .offload = offload,
                            .overlap_comm = ranks != 2,
                            .param_persistence_threshold = ranks == 4 ? 64 : 0};
        CAPTURE(setting_text(config, ranks));
        CHECK(train_ranks(config, ranks) == references.at(compute));
      },
      std::vector{DType::f32, DType::bf16}, std::vector{0, 1, 2, 3}, std::vector{1, 2, 4}, places);
}

TEST_CASE("offloaded states use no device memory") {
  using enum Space;
  const auto bytes = [](const Device& device, Space space, Purpose purpose) {
    return device.memory().live_by_purpose(space)[static_cast<size_t>(purpose)];
  };
  for (const int ranks : {1, 2})
    run_local(ranks, [&](Communicator& comm, const Device& cpu) {
      const Toy toy;
      Engine engine(toy.store, comm, cpu,
                    {.stage = 3,
                     .compute = DType::bf16,
                     .offload = {host, host, host, host},
                     .param_persistence_threshold = 0});
      for (const Purpose purpose : {Purpose::parameter, Purpose::gradient, Purpose::optimizer}) {
        if (bytes(cpu, device, purpose) != 0) throw ShapeError("something stayed on the device");
        if (bytes(cpu, host, purpose) == 0) throw ShapeError("nothing came to the host");
      }
      Tape tape = engine.tape();
      Var loss;
      {
        const Tape::Use use(tape, toy.first);
        loss = distance(tape, loss, toy.weight, 7);
      }
      if (bytes(cpu, host, Purpose::activation) == 0) throw ShapeError("activations stayed");
      engine.backward(tape, loss);
      if (bytes(cpu, host, Purpose::activation) != 0) throw ShapeError("activations are kept");
      if (bytes(cpu, device, Purpose::activation) != arena_granule)  // the loss
        throw ShapeError("fetched activations are kept");
    });
}

TEST_CASE(
    "the first micro-batch of a step reads no gradient sums from disk, the next reads all of "
    "them") {
  for (const int ranks : {1, 2})
    run_local(ranks,
              [&](Communicator& comm, const Device& device) {
                const Toy toy;
                Engine engine(toy.store, comm, device,
                              {.compute = DType::bf16, .offload = {.gradient = Space::file}});
                const auto moved = [&](const std::function<void()>& run) {
                  const SwapCount before = swapped(device);
                  run();
                  const SwapCount after = swapped(device);
                  return SwapCount{after.read - before.read, after.written - before.written};
                };
                for (int step = 0; step < 2; ++step) {
                  const SwapCount first = moved([&] { micro_batch(engine, 1); });
                  const SwapCount second = moved([&] { micro_batch(engine, 2); });
                  if (first.read != 0 || first.written == 0) throw ShapeError("first fold");
                  if (second.read != second.written || second.written != first.written)
                    throw ShapeError("second fold");
                  if (moved([&] { engine.step(1e-2f); }).written != 0) throw ShapeError("step");
                }
                const auto resting = device.memory().live_by_purpose(Space::host);
                if (resting[static_cast<size_t>(Purpose::gradient)] != 0)
                  throw ShapeError("buffers are kept");
              },
              {.device = {.swap = {.directory = "/tmp"}}});
}

TEST_CASE(
    "one rank that sums gradients until the step boundary gives the same result as by default") {
  for (const DType compute : {DType::f32, DType::bf16})
    for (const int stage : {0, 1})
      CHECK(train_ranks({.stage = stage, .compute = compute, .reduce_at_boundary = true}, 1) ==
            train_ranks({.stage = stage, .compute = compute}, 1));
}

TEST_CASE(
    "gradient sums on disk that ranks reduce once a step give the same result as on the device") {
  for (const int stage : {0, 1})
    for (const int ranks : {1, 2}) {
      Config config{.stage = stage, .compute = DType::bf16, .reduce_at_boundary = true};
      const TrainingOutcome reference = train_ranks(config, ranks);
      config.offload.gradient = Space::file;
      CHECK(train_ranks(config, ranks) == reference);
    }
}

TEST_CASE(
    "bf16 gradient sums differ from f32 sums but give the same bits at every stage and world "
    "size") {
  const TrainingOutcome reference =
      train_ranks({.compute = DType::bf16, .grad_accum = DType::bf16}, 1);
  CHECK(reference.hash != train_ranks({.compute = DType::bf16}, 1).hash);
  for (const int stage : {0, 1, 3})
    CHECK(train_ranks({.stage = stage, .compute = DType::bf16, .grad_accum = DType::bf16}, 4) ==
          reference);
}

TEST_CASE(
    "a rank keeps only its shard between steps, and stage 3 gathers values when a unit is opened") {
  for (const int ranks : {2, 4}) {
    int64_t live[4] = {};
    for (const int stage : {0, 1, 2, 3})
      run_local(ranks, [&](Communicator& comm, const Device& device) {
        const Toy toy;
        Engine engine(toy.store, comm, device,
                      {.stage = stage, .compute = DType::bf16, .param_persistence_threshold = 0});
        const int64_t rest = device.memory().live();
        micro_batch(engine, 1);
        engine.step(1e-2f);
        if (device.memory().live() != rest)
          throw ShapeError("stage " + std::to_string(stage) + " rests on " +
                           std::to_string(device.memory().live()) + " after a step, before on " +
                           std::to_string(rest));
        if (comm.rank() == 0) live[stage] = rest;
        if (stage == 3) {
          Tape tape = engine.inference_tape();
          const int64_t before = device.memory().live();
          const Tape::Use use(tape, toy.first);
          if (device.memory().live() <= before) throw ShapeError("nothing was gathered");
          if (tape.parameter(toy.weight).value().numel() != 5 * 31) throw ShapeError("value");
        }
      });
    CHECK(live[0] > live[1]);
    CHECK(live[1] == live[2]);
    CHECK(live[2] > live[3]);
  }
}

TEST_CASE("a unit order that changes between steps gives the same bits on one and on two ranks") {
  const auto hash = [](int ranks) {
    std::string result;
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, {.stage = 3, .param_persistence_threshold = 0});
      for (int step = 0; step < 4; ++step) {
        std::vector<const Unit*> order = {&toy.first, &toy.second};
        if (step % 2 == 1) std::ranges::reverse(order);
        for (int g = comm.rank(); g < 2; g += ranks) {
          Tape tape = engine.tape();
          Var loss;
          for (const Unit* unit : order) {
            const Tape::Use use(tape, *unit);
            for (const Parameter* parameter : unit->parameters)
              loss = distance(tape, loss, *parameter, static_cast<uint64_t>(2 * step + g));
          }
          engine.backward(tape, loss);
        }
        engine.step(1e-2f);
      }
      const std::string here = engine.parameter_hash();
      if (comm.rank() == 0) result = here;
    });
    return result;
  };
  CHECK(hash(1) == hash(2));
}

TEST_CASE("engines of ranks with another seed, setting, name or shape are refused at every stage") {
  const auto said = [](const Config& config, const Config& of_last, const std::string& name,
                       const Shape& shape) {
    return message_of<CommError>([&] {
      run_local(3, [&](Communicator& comm, const Device& device) {
        const bool is_last = comm.rank() == 2;
        ParameterStore store;
        store.add(store.unit("unit"), is_last ? name : "weight", is_last ? shape : Shape{4, 5},
                  Init::ones());
        const Engine engine(store, comm, device, is_last ? of_last : config);
      });
    });
  };
  for (const int stage : {0, 1, 2, 3}) {
    const Config config{.stage = stage, .seed = 7};
    Config seed = config, decay = config, groups = config;
    seed.seed = 8;
    decay.update.weight_decay = 0.25f;
    groups.update.groups = {{.pattern = "w*", .rate = 0.5f}};
    const std::string who = "rank 2 calls barrier of 'the engine's ";
    const auto begins = [&](const std::string& text, const std::string& settings) {
      INFO("stage ", stage, ": ", text);
      CHECK(contains(text, who));
      CHECK(contains(text, settings));
    };
    begins(said(config, seed, "weight", {4, 5}), "settings: seed 8, stage ");
    begins(said(config, decay, "weight", {4, 5}), "decay 0.25");
    begins(said(config, groups, "weight", {4, 5}), "groups w*:rate=0.5");
    begins(said(config, config, "weights", {4, 5}), "parameters: 1 with 20 elements, checksum ");
    begins(said(config, config, "weight", {5, 4}), "parameters: 1 with 20 elements, checksum ");
    begins(said(config, config, "weight", {4, 6}), "parameters: 1 with 24 elements, checksum ");
  }
}

TEST_CASE("an infinite gradient on one rank skips the step on all, and names the tensor") {
  for (const int stage : {0, 1, 2, 3})
    run_local(2, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, {.stage = stage});
      const std::string before = engine.parameter_hash();
      Gradients gradients = random_gradients(toy.trainable(), 5);
      if (comm.rank() == 1) gradients[&toy.gain][128] = INFINITY;
      run_micro_batch(engine, gradients);
      const auto result = engine.step(1e-2f);
      if (!result.skipped || result.bad_tensor != "gain") throw ShapeError("not skipped");
      if (engine.parameter_hash() != before) throw ShapeError("parameters moved");
      run_micro_batch(engine, random_gradients(toy.trainable(), 6));
      if (engine.step(1e-2f).skipped) throw ShapeError("a good step was skipped");
    });
}

TEST_CASE("a skipped step does not change parameter values on disk") {
  for (const Space optimizer : {Space::device, Space::host, Space::file}) {
    const Toy toy;
    Engine engine(
        toy.store, Device::cpu(0, {.swap = {.directory = "/tmp"}}),
        {.stage = 3,
         .compute = DType::bf16,
         .offload = {.parameter = Space::file, .optimizer = optimizer, .sub_group_size = 64},
         .param_persistence_threshold = 0});
    const auto values = [&] {
      std::vector<std::vector<double>> all;
      Tape tape = engine.inference_tape();
      for (const auto& unit : toy.store.units()) {
        const Tape::Use use(tape, *unit);
        for (const Parameter* parameter : unit->parameters)
          all.push_back(tape.parameter(*parameter).value().to_doubles());
      }
      return all;
    };
    train_step(engine, 0);
    const auto before = values();
    Gradients gradients = random_gradients(toy.trainable(), 3);
    gradients[&toy.gain][128] = INFINITY;
    run_micro_batch(engine, gradients);
    CHECK(engine.step(1e-2f).skipped);
    CHECK(values() == before);
  }
}

TEST_CASE("the bytes that ranks communicate at stages 0 to 2 follow the formulas") {
  // P: padded elements. Per step and rank, a micro-batches: reduce-scatter a P (W-1)/W, and one
  // gather of P (W-1)/W at stages 0 to 2.
  const int ranks = 4, a = 3;
  for (const int stage : {0, 1, 2})
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, {.stage = stage, .compute = DType::bf16});
      int64_t padded = 0;
      for (const auto& unit : toy.store.units())
        padded +=
            zero::FlatUnit::of(unit->parameters, zero::FlatUnit::Part::trainable, ranks).padded;
      for (int i = 0; i < a; ++i) micro_batch(engine, static_cast<uint64_t>(i));
      engine.step(1e-2f);
      const WireCounts wire = comm.wire();
      const auto bytes = [&](Collective op) { return wire[static_cast<size_t>(op)].bytes; };
      const int64_t part = padded * (ranks - 1) / ranks;
      if (bytes(Collective::reduce_scatter) != a * part * 2) throw ShapeError("reduce_scatter");
      // Stage 0 gathers f32 sums, 1 and 2 bf16 values.
      if (bytes(Collective::all_gather) != part * (stage == 0 ? 4 : 2))
        throw ShapeError("all_gather");
    });
}

TEST_CASE("no communication call moves more elements than its bucket or than one unit") {
  const int64_t reduce_bucket = 100, allgather_bucket = 60;
  for (const bool at_boundary : {false, true})
    for (const int stage : {0, 1, 2, 3}) {
      if (at_boundary && stage > 1) continue;
      run_local(2, [&](Communicator& ranks, const Device& device) {
        const Toy toy;
        const auto largest_of = [&](int64_t reduce_size, int64_t allgather_size, Collective kind) {
          Watching comm(ranks);
          Engine engine(toy.store, comm, device,
                        {.stage = stage,
                         .overlap_comm = !at_boundary,
                         .reduce_at_boundary = at_boundary,
                         .reduce_bucket_size = reduce_size,
                         .allgather_bucket_size = allgather_size,
                         .param_persistence_threshold = 0});
          micro_batch(engine, 1);
          engine.step(1e-2f);
          int64_t largest = 0;
          for (const Watching::Call& call : comm.calls)
            if (call.kind == kind) largest = std::max(largest, call.elements);
          return largest;
        };
        int64_t unit = 0;
        for (const auto& u : toy.store.units())
          unit = std::max(
              unit, zero::FlatUnit::of(u->parameters, zero::FlatUnit::Part::trainable, 2).padded);
        const int64_t all = 500'000'000;
        if (largest_of(reduce_bucket, allgather_bucket, Collective::reduce_scatter) !=
                reduce_bucket ||
            largest_of(reduce_bucket, allgather_bucket, Collective::all_gather) != allgather_bucket)
          throw ShapeError("bucket");
        if (largest_of(all, all, Collective::reduce_scatter) != unit ||
            largest_of(all, all, Collective::all_gather) != unit)
          throw ShapeError("unit");
      });
    }
}

TEST_CASE("Engine::write, Engine::read and snapshot pieces agree at stages 0, 1 and 3") {
  for (const int stage : {0, 1, 3})
    run_local(3, [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device,
                    {.stage = stage, .compute = DType::bf16, .param_persistence_threshold = 20});
      for (const auto& parameter : toy.store.parameters()) {
        const std::vector<float> values = random_floats(parameter->shape.numel(), 77);
        engine.write(*parameter, State::master, values);
        std::vector<float> expected = values;
        if (!parameter->trainable)
          for (float& x : expected) x = static_cast<float>(bf16(x));
        if (engine.read(*parameter, State::master) != expected) throw ShapeError(parameter->name);
        Tape tape = engine.inference_tape();
        const Tape::Use use(tape, *parameter->unit);
        const std::vector<double> rounded = tape.parameter(*parameter).value().to_doubles();
        for (size_t i = 0; i < values.size(); ++i)
          if (rounded[i] != static_cast<double>(bf16(values[i])))
            throw ShapeError("value of " + parameter->name);
      }
      zero::Snapshot snapshot(engine);
      for (size_t i = 0; i < snapshot.pieces().size(); ++i) {
        const zero::Snapshot::Piece& piece = snapshot.pieces()[i];
        size_t count = 0;
        snapshot.read(i, [&](std::span<const float> part) { count += part.size(); });
        if (count != static_cast<size_t>(piece.numel))
          throw ShapeError("piece of " + piece.parameter->name);
      }
    });
}

TEST_CASE(
    "an open unit stays gathered while another opens and closes, and a closed unit is released") {
  run_local(2, [&](Communicator& comm, const Device& device) {
    const Toy toy;
    Engine engine(toy.store, comm, device,
                  {.stage = 3, .overlap_comm = false, .param_persistence_threshold = 0});
    const std::vector<float> values = random_floats(5 * 31, 9);
    engine.write(toy.weight, State::master, values);
    const int64_t rest = device.memory().live();
    int64_t second_alone = 0;
    {
      Tape tape = engine.inference_tape();
      const Tape::Use outer(tape, toy.first);
      const int64_t before = device.memory().live();
      {
        const Tape::Use inner(tape, toy.second);
        second_alone = device.memory().live() - before;
      }
      const std::vector<double> read = tape.parameter(toy.weight).value().to_doubles();
      if (read != std::vector<double>(values.begin(), values.end())) throw ShapeError("evicted");
    }
    Tape tape = engine.inference_tape();
    { const Tape::Use use(tape, toy.first); }
    const Tape::Use use(tape, toy.second);
    if (device.memory().live() - rest != second_alone) throw ShapeError("the first unit stayed");
  });
}
