// The records of an audit: settings, checksums of data and of units, ops.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/zero/audited.h"
#include "tests/zero/mesh_toy.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg::testing {
TEST_CASE_FIXTURE(Audited, "each setting of an engine that changes bits is recorded") {
  const auto begun = [&](const zero::Config& config) {
    const Net net;
    zero::Engine engine(net.store, Device::cpu(), config);
    zero::Audit audit(engine, {.path = at("begun")});
    engine.tape();
    return AuditTrail::read(at("begun"));
  };
  using enum DType;
  const zero::Config sgd = {.update = {.rule = OptimizerRule::sgd, .momentum = 0.9f}};
  const struct {
    std::string name;
    zero::Config config, base = {};
  } changed[] = {{"compute", {.compute = bf16}},
                 {"masters", {.compute = bf16, .optimizer = bf16}},
                 {"load", {.load = bf16}},
                 {"grad_accum", {.grad_accum = bf16}},
                 {"optimizer", {.update = {.rule = OptimizerRule::lion}}},
                 {"betas", {.update = {.beta1 = 0.8f}}},
                 {"betas", {.update = {.beta2 = 0.9f}}},
                 {"epsilon", {.update = {.epsilon = 1e-6f}}},
                 {"momentum", sgd},
                 {"momentum",
                  {.update = {.rule = OptimizerRule::sgd, .momentum = 0.9f, .dampening = 0.1f}},
                  sgd},
                 {"momentum",
                  {.update = {.rule = OptimizerRule::sgd, .momentum = 0.9f, .nesterov = true}},
                  sgd},
                 {"muon", {.update = {.muon = {.momentum = 0.9f}}}},
                 {"muon", {.update = {.muon = {.nesterov = false}}}},
                 {"muon", {.update = {.muon = {.rate = zero::MuonRate::original}}}},
                 {"muon", {.update = {.muon = {.adam_rate = 0.5f}}}},
                 {"adafactor", {.update = {.adafactor = {.beta2_decay = -0.7f}}}},
                 {"adafactor", {.update = {.adafactor = {.epsilon1 = 1e-3f}}}},
                 {"adafactor", {.update = {.adafactor = {.epsilon2 = 1e-2f}}}},
                 {"adafactor", {.update = {.adafactor = {.clip = 2.0f}}}},
                 {"weight_decay", {.update = {.weight_decay = 0.2f}}},
                 {"stochastic_rounding",
                  {.compute = bf16, .optimizer = bf16, .update = {.stochastic_rounding = true}},
                  {.compute = bf16, .optimizer = bf16}},
                 {"groups", {.update = {.groups = {{.pattern = "first", .rate = 0.5f}}}}},
                 {"clip_norm", {.clip_norm = 2.0f}},
                 {"loss_scale", {.loss_scaling = {.loss_scale = 8.0}}},
                 {"loss_scale", {.loss_scaling = {.initial_scale_power = 8}}},
                 {"loss_scale", {.loss_scaling = {.window = 10}}},
                 {"loss_scale", {.loss_scaling = {.hysteresis = 1}}},
                 {"loss_scale", {.loss_scaling = {.consecutive_hysteresis = true}}},
                 {"loss_scale", {.loss_scaling = {.min_loss_scale = 2.0}}},
                 {"reduce_at_boundary", {.reduce_at_boundary = true}},
                 {"nccl_reduce", {.nccl_reduce = true}},
                 {"seed", {.seed = 1}}};
  std::set<std::string> named;
  for (const auto& [name, config, base] : changed) {
    CAPTURE(name);
    const std::string field = "settings." + *named.insert(name).first;
    CHECK(contains(names_of(compare(begun(base), begun(config)).settings), field + " "));
  }
  const AuditTrail initial = begun({});
  for (const auto& [field, value] : initial.records[0].fields)
    if (field.starts_with("settings."))
      CHECK_MESSAGE(named.contains(field.substr(9)), field, " has no row above");
}

TEST_CASE_FIXTURE(Audited, "the checksum of data has tensor, sample, place and byte") {
  const Device device = Device::cpu();
  const std::vector<uint8_t> data = {1, 0, 0, 0, 2, 3, 0, 0, 0, 4}, none(10);
  std::set<std::string> seen;
  const auto note = [&](const std::vector<uint8_t>& a, const std::vector<uint8_t>& b, int64_t at) {
    const Net net;
    zero::Engine engine(net.store, device);
    zero::Audit audit(engine, {.path = this->at("data")});
    Tape tape = engine.tape();
    audit.add({{Tensor::from(a, {2, 5}, device), Tensor::from(b, {2, 5}, device)}}, at, 2);
    engine.backward(tape, net.forward(tape, samples(0, 2, device), {}));
    engine.step(1e-2f);
    const AuditTrail trail = AuditTrail::read(this->at("data"));
    for (const auto& [name, value] : trail.step(0)->fields)
      if (name == "data") seen.insert(value);
  };
  note(data, none, 0);
  note(none, data, 0);
  note(data, none, 1);
  note({3, 0, 0, 0, 4, 1, 0, 0, 0, 2}, none, 0);
  note({2, 0, 0, 0, 1, 3, 0, 0, 0, 4}, none, 0);
  note({1, 0, 0, 0, 2, 3, 0, 0, 0, 5}, none, 0);
  CHECK(seen.size() == 6);
}

TEST_CASE_FIXTURE(Audited,
                  "the checksum of a unit has names of parameters and indices of elements") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  for (const char* name : {"one", "other"})  // sliced by columns, as on tensor ranks
    store.add(unit, name, {3, 4}, Init::normal(0.3f),
              {.whole = {3, 4}, .slice = Slice{.outer = 3, .extent = 4, .rows = 4}});
  const Parameter& frozen = store.add(unit, "frozen", {1}, Init::ones(), {.trainable = false});
  zero::Engine engine(store, Device::cpu());
  const auto value_of = [&](const char* name) {
    return engine.read(*store.find(name), zero::Engine::State::master);
  };
  const std::vector<float> one = value_of("one"), other = value_of("other");
  std::set<std::string> seen;
  const auto note = [&](const std::vector<float>& of_one, const std::vector<float>& of_other) {
    engine.write(*store.find("one"), zero::Engine::State::master, of_one);
    engine.write(*store.find("other"), zero::Engine::State::master, of_other);
    zero::Audit audit(engine, {.path = at("units")});
    engine.tape();
    seen.insert(AuditTrail::read(at("units")).units_before(0).at(0).second);
  };
  note(one, other);
  note(other, one);
  for (const size_t to : {1, 4}) {  // in a row, and of two rows
    std::vector<float> swapped = one;
    std::swap(swapped[0], swapped[to]);
    note(swapped, other);
  }
  engine.write(frozen, zero::Engine::State::master, std::vector{2.0f});
  note(one, other);
  CHECK(seen.size() == 5);
}

TEST_CASE_FIXTURE(Audited, "numbers are the shortest texts that are read as the same float") {
  const Net net;
  zero::Engine engine(net.store, Device::cpu());
  write_file(at("numbers"), "another file, which the run replaces\n");
  zero::Audit audit(engine, {.path = at("numbers")});
  audit.begin_step();
  const std::pair<double, const char*> losses[] = {{0.1f, "0.10000000149011612"},
                                                   {-HUGE_VAL, "\"-inf\""},
                                                   {HUGE_VAL, "\"inf\""},
                                                   {-std::nan(""), "\"nan\""}};
  for (int64_t step = 0; step < 4; ++step)
    audit.write(
        {.step = step,
         .loss = losses[step].first,
         .rate = 0.01f,
         .result = {.skipped = step == 1, .loss_scale = 8, .square_limbs = {1, 255, 0, 16}}},
        false);
  const AuditTrail trail = AuditTrail::read(at("numbers"));
  for (int64_t step = 0; step < 4; ++step) {
    CHECK(value_of(*trail.step(step), "loss") == losses[step].second);
    CHECK(value_of(*trail.step(step), "rate") == "0.01");
    CHECK(value_of(*trail.step(step), "samples") == "null");
    CHECK(value_of(*trail.step(step), "squares") == "\"3:10 1:ff 0:1\"");
    CHECK(value_of(*trail.step(step), "loss_scale") == "8.0");
    CHECK(value_of(*trail.step(step), "skipped") == (step == 1 ? "true" : "false"));
  }
  CHECK(value_of(trail.records[0], "settings.betas") == "[0.9,0.95]");
  CHECK(value_of(trail.records[0], "settings.epsilon") == "1e-08");
}

/// Two steps of the toy on a mesh, with ops of step 1.
struct AuditedMesh : Audited {
  MeshShape shape = {2, 2, 2};
  int stage = 1, late_rank = -1;
  int changed_rank = -1;  // whose copy of unit.5.gain gets another last element before step 1
  int other_rank = -1;    // has another last sample, or another rate, in step 1
  bool is_other_rate = false;

  AuditTrail trained() const {
    run_local(shape.ranks(), [&](Communicator& world, const Device& device) {
      const Mesh mesh(world, shape);
      const MeshToy toy(mesh);
      zero::Engine engine(toy.store, mesh, device, {.stage = stage, .clip_norm = 0.0f});
      zero::Audit audit(engine,
                        {.path = at("mesh"), .interval = 1, .first_op_step = 1, .end_op_step = 2});
      for (int64_t step = 0; step < 2; ++step) {
        if (step == 1 && world.rank() == changed_rank) {
          const Parameter& gain = *toy.store.find("unit.5.gain");
          const auto held = engine.held(gain, zero::Engine::State::master);
          const float other = 7.0f;
          engine.write_held(gain, zero::Engine::State::master, {held.end - 1, held.end},
                            {&other, 1});
        }
        for (int g = mesh.data_rank; g < 4; g += shape.data) {
          if (world.rank() == late_rank) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          const bool is_other = step == 1 && world.rank() == other_rank && g >= 4 - shape.data;
          mesh_micro_batch(
              engine, static_cast<uint64_t>(step * 10 + g + (is_other && !is_other_rate ? 50 : 0)));
        }
        const bool is_other = step == 1 && world.rank() == other_rank && is_other_rate;
        engine.step(is_other ? 2e-2f : 1e-2f);
      }
    });
    return AuditTrail::read(at("mesh"));
  }
};

TEST_CASE_FIXTURE(AuditedMesh, "copies that differ are named with their ranks") {
  std::string ranks;
  SUBCASE("of tensor ranks") {
    changed_rank = 7;
    ranks = "6 7";
  }
  SUBCASE("of tensor ranks, one stage") {
    shape = {2, 1, 2};
    changed_rank = 3;
    ranks = "2 3";
  }
  SUBCASE("of data ranks in stage 0") {
    shape = {4, 1, 1};
    stage = 0;
    changed_rank = 2;
    ranks = "0 2";
  }
  const int changed = std::exchange(changed_rank, -1);
  const AuditTrail good = trained();
  for (const AuditTrail::Record& record : good.records)
    for (const auto& [name, value] : record.fields) CHECK_FALSE(name.starts_with("copies."));
  changed_rank = changed;
  const AuditComparison found = compare(good, trained());
  CHECK(found.differs_at == 1);
  const std::string fields = names_of(found.step), copy = "copies.unit.5.gain.rank_";
  CAPTURE(fields);
  CHECK(contains(fields, copy + ranks[0] + " " + copy + ranks[2] + " "));
  CHECK(fields.find(copy) == fields.rfind(copy + ranks[0]));
  // The first output that differs is the changed master.
  const size_t first = fields.find("ops.");
  REQUIRE(first != std::string::npos);
  CHECK(fields.substr(first + 4, 10) == std::to_string(changed) + "/masters/");
  CHECK(contains(fields.substr(first, 80), "before the step unit.5: unit.5.gain f32 ["));
}

TEST_CASE_FIXTURE(AuditedMesh,
                  "a rank that computes otherwise differs before all that it reaches") {
  const AuditTrail good = trained();
  for (is_other_rate = false;; is_other_rate = true) {
    for (other_rank = 0; other_rank < shape.ranks(); ++other_rank) {
      const std::string fields = names_of(compare(good, trained()).step);
      const size_t first = fields.find("ops.");
      REQUIRE(first != std::string::npos);
      CAPTURE(fields.substr(first, 80));
      CHECK(fields.substr(first, 14) == "ops." + std::to_string(other_rank) + "/compute/");
    }
    if (is_other_rate) break;
  }
}

TEST_CASE_FIXTURE(AuditedMesh, "ops have an order that only the program decides") {
  const AuditTrail one = trained();
  for (const int late : {0, 3, 7}) {
    late_rank = late;
    const AuditTrail other = trained();
    std::string names[2];
    for (const auto& [name, hash] : one.step(1)->fields) names[0] += name + "\n";
    for (const auto& [name, hash] : other.step(1)->fields) names[1] += name + "\n";
    CHECK(names[0] == names[1]);
  }
}

TEST_CASE_FIXTURE(Audited,
                  "ops have the outputs of two tapes that begin before the first backward") {
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine(net.store, device);
  zero::Audit audit(engine, {.path = at("ops"), .end_op_step = 1});
  Tape one = engine.tape();
  const Var loss = net.forward(one, samples(0, 2, device), {});
  Tape other = engine.tape();
  const Var other_loss = net.forward(other, samples(2, 2, device), {});
  engine.backward(one, loss);
  engine.backward(other, other_loss);
  engine.step(1e-2f);
  const AuditTrail trail = AuditTrail::read(at("ops"));
  CHECK(std::ranges::count_if(trail.step(0)->fields, [](const auto& field) {
          return contains(field.first, ": matmul c ");
        }) == 10);  // of each tape, two in forward and three in backward
  AuditTrail without = trail;
  std::erase_if(without.records[1].fields,
                [](const auto& field) { return field.first.starts_with("ops."); });
  CHECK(text_of(compare(trail, without)) == "1 equal");
  CHECK(text_of(compare(without, trail)) == "1 equal");
}

TEST_CASE_FIXTURE(Audited, "masters in ops are in the order of the model and of the ranks") {
  options.audit = {.path = at("ops"), .end_op_step = 1};
  options.accumulation = 1;
  Outcome outcome;
  const Job job = {.world = 2, .engine = {.stage = 3}, .options = options};
  run_ranks(2, program_of(job, outcome));
  const AuditTrail trail = AuditTrail::read(at("ops"));
  std::string masters;
  for (const auto& [name, hash] : trail.step(0)->fields)
    if (contains(name, "/masters/")) masters += name.substr(4, 11) + " ";
  CHECK(masters == "0/masters/0 1/masters/0 1/masters/1 ");  // rank 1 has the second unit
  // Ops of other layouts are not compared.
  options.audit->path = at("alone");
  options.accumulation = 2;
  run({.options = options});
  CHECK(text_of(compare(trail, AuditTrail::read(at("alone")))) == "10 equal");
}

}  // namespace zg::testing
