// The records of an audit: settings, checksums of data and of units, ops.
#include <set>

#include "tests/support/error_message.h"
#include "tests/zero/audited.h"

namespace zg::testing {
namespace {

std::string fields_of(const std::vector<zero::AuditDifference>& differences) {
  std::string fields;
  for (const zero::AuditDifference& difference : differences) fields += difference.field + " ";
  return fields;
}

}  // namespace

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
    CHECK(contains(fields_of(compare(begun(base), begun(config)).settings), field + " "));
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

TEST_CASE_FIXTURE(Audited, "the checksum of a unit has the names of its parameters") {
  ParameterStore store;
  const Unit& unit = store.unit("unit");
  for (const char* name : {"one", "other"}) store.add(unit, name, {7}, Init::normal(0.3f));
  zero::Engine engine(store, Device::cpu());
  const auto units = [&] {
    zero::Audit audit(engine, {.path = at("units")});
    engine.tape();
    return AuditTrail::read(at("units")).units_before(0);
  };
  const AuditTrail::Fields before = units();
  const auto value_of = [&](const char* name) {
    return engine.read(*store.find(name), zero::Engine::State::master);
  };
  const std::vector<float> one = value_of("one"), other = value_of("other");
  engine.write(*store.find("one"), zero::Engine::State::master, other);
  engine.write(*store.find("other"), zero::Engine::State::master, one);
  REQUIRE(before.size() == 1);
  CHECK(before != units());
}

TEST_CASE_FIXTURE(Audited, "one changed datum is named, also in a row of another micro-batch") {
  const Device device = Device::cpu();
  const auto train = [&](int64_t changed, const std::string& name) {
    const Net net;
    zero::Engine engine(net.store, device);
    zero::TrainerTask task = task_of(net, device);
    task.batch = [&](const zero::MicroBatch& batch) {
      const Tensor x = samples(batch.first_sample, batch.samples, device);
      for (int64_t row = 0; row < batch.samples; ++row)
        if (batch.first_sample + row == changed) x.data<float>()[row * width + 7] += 1e-3f;
      return std::vector<Tensor>{x};
    };
    options.audit = {.path = at(name)};
    zero::Trainer(engine, options, task).run();
    return AuditTrail::read(at(name));
  };
  const AuditTrail one = train(-1, "one");
  CHECK(text_of(compare(one, train(-1, "other"))) == "10 equal");
  CHECK(contains(text_of(compare(one, train(19, "other"))), "step 4; data \""));
  // The data checksum does not depend on the division into micro-batches.
  options.micro_batch = 1;
  options.accumulation = 4;
  CHECK_FALSE(contains(text_of(compare(one, train(-1, "other"))), "data"));
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
}

}  // namespace zg::testing
