// The audit trail of a trainer: one for every layout; edits, resumes and differences are found.
#include "zerograd/zero/audit.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/audit_chain.h"
#include "tests/support/error_message.h"
#include "tests/support/file_limit.h"
#include "tests/zero/audited.h"
#include "tests/zero/mesh_toy.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg::testing {
namespace {

using Lines = std::vector<std::string>;

Lines lines_of(const std::string& path) {
  std::ifstream file(path);
  Lines lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string as_text(const Lines& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

void replace_in(std::string& line, const std::string& from, const std::string& to) {
  REQUIRE(line.find(from) != std::string::npos);
  line.replace(line.find(from), from.size(), to);
}

}  // namespace

TEST_CASE_FIXTURE(Audited, "an audit has a record for each step and units at the interval") {
  const AuditTrail trail = first();
  REQUIRE(trail.records.size() == 11);
  CHECK_FALSE(trail.records[0].is_step);
  for (int64_t step = 0; step < 10; ++step) {
    CAPTURE(step);
    const AuditTrail::Record* record = trail.step(step);
    REQUIRE(record);
    CHECK(record->line == step + 2);
    const bool has_units = step % 3 == 2 || step == 9;
    CHECK((record->fields.back().first == "units.high") == has_units);
    CHECK(record->fields.size() == (has_units ? 11 : 9));
  }
  CHECK_FALSE(trail.step(10));
  CHECK_FALSE(trail.step(-1));
}

TEST_CASE_FIXTURE(Audited, "one audit for every number of ranks, stage and offload") {
  const AuditTrail alone = first();
  using enum Space;
  for (const int stage : {0, 1, 2, 3})
    for (const Space space : {device, host, file}) {
      options.accumulation = 1;
      const zero::Config engine = {
          .stage = stage, .offload = {.gradient = space, .optimizer = space, .activation = space}};
      INFO("stage ", stage, ", states in ", name_of(space));
      const AuditTrail other = audit("other", {.world = 2, .engine = engine, .options = options});
      CHECK(text_of(compare(alone, other)) == "10 equal");
    }
}

TEST_CASE_FIXTURE(Audited, "a loop without a trainer has one audit for every mesh") {
  // Before step 1 elements 0 and `to` of unit.5.columns change places.
  const auto train = [&](const MeshShape& shape, const zero::Config& config, size_t to) {
    const std::string path = at("loop");
    run_local(shape.ranks(), [&](Communicator& world, const Device& device) {
      const Mesh mesh(world, shape);
      const MeshToy toy(mesh);
      zero::Engine engine(toy.store, mesh, device, config);
      zero::Audit audit(engine, {.path = path, .interval = 1});
      for (int64_t step = 0; step < 2; ++step) {
        if (step == 1 && to > 0) {
          const Parameter& columns = *toy.store.find("unit.5.columns");
          std::vector<float> values = engine.read(columns, zero::Engine::State::master);
          std::swap(values[0], values[to]);
          engine.write(columns, zero::Engine::State::master, values);
        }
        for (int g = 4 - shape.data + mesh.data_rank; g >= 0; g -= shape.data)
          audit.add({{samples(4 * step + g, 1, device)}}, 4 * step + g, 1);
        for (int g = mesh.data_rank; g < 4; g += shape.data)
          mesh_micro_batch(engine, static_cast<uint64_t>(step * 10 + g));
        engine.step(1e-2f);
      }
    });
    return AuditTrail::read(path);
  };
  for (const DType compute : {DType::f32, DType::bf16}) {
    const AuditTrail alone = train({}, {.compute = compute, .clip_norm = 0.0f}, 0);
    CHECK(value_of(*alone.step(1), "samples") == "[4,8]");
    int stage = 0;
    for (const MeshShape& shape : {MeshShape{2, 2, 2}, {1, 4, 2}, {2, 1, 4}, {4, 1, 1}}) {
      INFO(shape.data, " x ", shape.pipeline, " x ", shape.tensor, " ", name_of(compute));
      const zero::Config config{.stage = stage++,
                                .compute = compute,
                                .clip_norm = 0.0f,
                                .param_persistence_threshold = 40};
      const AuditComparison found = compare(alone, train(shape, config, 0));
      CHECK(text_of(found) == "2 equal");
      if (config.stage == 0)
        CHECK(names_of(found.layout) ==
              "layout.data_ranks layout.pipeline_stages layout.tensor_ranks ");
    }
    for (const size_t to : {1, 12}) {  // in a row, and of two rows
      const std::string moved =
          text_of(compare(alone, train({}, {.compute = compute, .clip_norm = 0.0f}, to)));
      CHECK(contains(moved, "step 1; squares"));
      CHECK(contains(moved, "units.unit.5"));
      CHECK_FALSE(contains(moved, "units.unit.4"));
    }
  }
}

TEST_CASE_FIXTURE(Audited, "a loop without a trainer has the audit of a trainer, by one line") {
  options.schedule = {.rate = 1e-2};
  options.steps = 3;
  const AuditTrail trained = audit("first", {.options = options}, 1);
  const Device device = Device::cpu();
  const auto loop = [&](const std::string& name, const zero::Config& config, bool adds_first) {
    const Net net;
    zero::Engine engine(net.store, device, config);
    zero::Audit audit(engine, {.path = at(name), .interval = 1});
    for (int64_t step = 0; step < 3; ++step) {
      if (step == 1) {  // a micro-batch that is dropped leaves nothing
        if (adds_first) audit.add({{samples(90, 2, device)}}, 90, 2);
        Tape tape = engine.tape();
        if (!adds_first) audit.add({{samples(90, 2, device)}}, 90, 2);
        engine.backward(tape, net.forward(tape, samples(0, 2, device), {}));
        engine.drop_gradients();
      }
      for (const int64_t first : {4 * step, 4 * step + 2}) {
        const Tensor x = samples(first, 2, device);
        if (adds_first) audit.add({{x}}, first, 2);
        Tape tape = engine.tape();
        if (!adds_first) audit.add({{x}}, first, 2);
        engine.backward(tape, net.forward(tape, x, {}));
      }
      engine.step(1e-2f);
    }
    return AuditTrail::read(at(name));
  };
  const AuditTrail own = loop("own", {}, false);
  for (const AuditTrail::Record& record : trained.records) {
    if (!record.is_step) continue;
    const auto found = zero::compare(record.fields, own.step(record.step)->fields);
    CHECK(names_of(found) == "");
  }
  CHECK(text_of(compare(own, loop("before", {}, true))) == "3 equal");
  const AuditComparison other =
      compare(own, loop("other", {.update = {.weight_decay = 0.5f}}, false));
  CHECK(contains(text_of(other), "step 0; units."));
  REQUIRE(other.settings.size() == 1);
  CHECK(other.settings[0].field == "settings.weight_decay");
}

TEST_CASE_FIXTURE(Audited, "an edited, removed, added or reordered record is named") {
  first();
  const Lines lines = lines_of(at("first"));
  const auto refused = [&](const std::string& text, const std::string& part) {
    write_file(at("changed"), text);
    CHECK_ERROR(FileError, part, AuditTrail::read(at("changed")));
  };
  Lines changed = lines;
  replace_in(changed[4], "\"skipped\":false", "\"skipped\":true");
  refused(as_text(changed), "changed: line 5, step 3: the record was changed: expected the hash");
  changed = lines;
  changed.erase(changed.begin() + 4);
  refused(as_text(changed),
          "changed: line 5, step 4: records before it were added, removed or replaced");
  changed = lines;
  changed.insert(changed.begin() + 4, changed[4]);
  refused(as_text(changed),
          "changed: line 6, step 3: records before it were added, removed or replaced");
  changed = lines;
  std::swap(changed[4], changed[5]);
  refused(as_text(changed), "changed: line 5, step 4: records before it");
  changed = lines;
  changed[0].pop_back();
  refused(as_text(changed), "changed:1:");
  changed = {lines[0]};
  replace_in(changed[0], "zerograd.audit/1", "zerograd.audit/2");
  refused(rebuilt_chain(as_text(changed)),
          "line 1: expected a run of \"zerograd.audit/1\", got \"zerograd.audit/2\": the ");
  changed = lines;
  replace_in(changed[3], "\"units\"", "\"unit\"");
  refused(rebuilt_chain(as_text(changed)),
          "line 4, step 2: the record was changed: expected hashes of units");
  refused(rebuilt_chain(as_text({lines[0], lines[1], lines[0]})), "line 3: expected step 1, got 0");
  refused("{\"loss\":1}\n", "line 1: expected a record of an audit trail, got an object without ");
  refused("not a record\n", "expected a record of an audit trail");
  CHECK_ERROR(FileError, "cannot be read", AuditTrail::read(at("nowhere")));
  write_file(at("changed"), read_file(at("first")) + "{\"step\":10,\"samp");
  const AuditTrail cut = AuditTrail::read(at("changed"));
  CHECK(cut.is_cut);
  CHECK(cut.records.size() == 11);
}

TEST_CASE_FIXTURE(Audited, "a chain of other values is read or refused as no audit") {
  first();
  const Lines lines = lines_of(at("first"));
  using Json = nlohmann::ordered_json;
  int refused = 0;
  for (const size_t line : {0, 3}) {
    const Json record = Json::parse(lines[line]);
    for (const auto& [name, value] : record.items())
      for (const char* other : {"null", "-1", "9223372036854775807", "18446744073709551615", "1e9",
                                "\"x\"", "[1]", "{\"schema\":1}", "{\"x\":{\"y\":2}}"})
        for (const bool is_first : {false, true}) {  // of the file
          CAPTURE(name);
          CAPTURE(other);
          Json changed = record;
          changed[name] = Json::parse(other);
          Lines all = lines;
          all[line] = changed.dump();
          all.erase(all.begin(), all.begin() + (is_first ? static_cast<ptrdiff_t>(line) : 0));
          write_file(at("changed"), rebuilt_chain(as_text(all)));
          try {
            const AuditTrail trail = AuditTrail::read(at("changed"));
            CHECK_FALSE(compare(trail, trail).differs_at);
          } catch (const FileError& error) {
            CHECK(contains(error.what(), at("changed")));
            ++refused;
          }
        }
  }
  CHECK(refused > 100);
}

TEST_CASE_FIXTURE(
    Audited, "builds are compared last, and a library that one process alone has loaded is not") {
  const AuditTrail one = first();
  AuditTrail other = one;
  other.records[0].fields.emplace_back("run.build.mca_plugin.so", "\"1\"");
  CHECK(compare(one, other).settings.empty());
  CHECK(compare(other, one).settings.empty());
  for (auto& [name, value] : other.records[0].fields)
    if (name.starts_with("run.build.libc.") || name == "settings.seed") value = "\"1\"";
  CHECK(names_of(compare(one, other).settings).starts_with("settings.seed run.build.libc."));
}

TEST_CASE_FIXTURE(Audited, "a resumed run goes on with the chain, after a crash too") {
  const AuditTrail straight = first();
  options.checkpoints = {.path = at("saved"), .keep = -1};
  options.save_interval = 3;
  options.steps = 8;
  audit("resumed", {.options = options});
  // The run crashed while it wrote the record of step 8.
  std::ofstream(at("resumed"), std::ios::app) << R"({"step":8,"samples":[32,)";
  options.steps = 10;
  options.accumulation = 1;
  const Job rest = {
      .world = 2, .engine = {.stage = 3}, .options = options, .resume = at("saved/step_6")};
  const AuditTrail resumed = audit("resumed", rest);
  CHECK(text_of(compare(straight, resumed)) == "10 equal");
  CHECK(names_of(compare(straight, resumed).layout) ==
        "layout.data_ranks layout.stage layout.param_persistence_threshold ");
  REQUIRE(resumed.records.size() == 12);
  CHECK_FALSE(resumed.records[7].is_step);
  CHECK(resumed.records[7].step == 6);
  CHECK(&resumed.run_of(5) == &resumed.records[0]);
  CHECK(&resumed.run_of(6) == &resumed.records[7]);
  CHECK(&resumed.run_of(8) == &resumed.records[7]);
  // A file without earlier records begins with the resumed step.
  const AuditTrail late = audit("late", rest);
  CHECK(late.records.front().step == 6);
  CHECK(text_of(compare(straight, late)) == "4 equal");
  CHECK(more_steps(straight, late) == at("first") + " has 6 more steps, 0 to 5");
  CHECK(more_steps(late, straight).empty());
  // An edited chain is not continued.
  Lines lines = lines_of(at("late"));
  replace_in(lines[1], "\"loss\":", "\"loss\":1");
  write_file(at("late"), as_text(lines));
  CHECK_ERROR(FileError, "late: line 2, step 6: the record was changed", audit("late", rest));
}

TEST_CASE_FIXTURE(
    Audited, "a trail that cannot be written any more is reported once, and training goes on") {
  const AuditTrail whole = first();
  std::vector<std::string> warnings;
  const Device device = Device::cpu();
  const Net net;
  zero::Engine engine(net.store, device);
  TrainerHooks hooks;
  hooks.warn = [&](const std::string& text) { warnings.push_back(text); };
  options.audit = {.path = at("cut")};
  {
    const FileLimit full(static_cast<rlim_t>(whole.records[4].begin + 20));
    Trainer trainer(engine, options, task_of(net, device), hooks);
    trainer.run();
    CHECK(trainer.audit_is_lost());
  }
  CHECK(engine.steps() == 10);
  REQUIRE(warnings.size() == 1);
  CHECK(contains(warnings[0], "audit: writing " + at("cut") + " failed: File too large; no more"));
  const AuditTrail cut = AuditTrail::read(at("cut"));
  CHECK(cut.is_cut);
  CHECK(text_of(compare(whole, cut)) == "3 equal");
  options.audit->path = "/proc/nowhere/audit";
  engine.set_steps(0, 0);
  CHECK_ERROR(FileError, "audit: /proc/nowhere/audit cannot be written",
              Trainer(engine, options, task_of(net, device), hooks).run());
  options.audit->interval = 0;
  CHECK_ERROR(ConfigError, "audit: interval: expected 1 or more steps, got 0",
              Trainer(engine, options, task_of(net, device), hooks));
}

}  // namespace zg::testing
