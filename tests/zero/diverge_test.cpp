// Two audited runs: the first step, unit, op and element that differ, and faults of one of them.
#include "zerograd/zero/diverge.h"

#include <atomic>
#include <bit>
#include <chrono>
#include <thread>

#include "tests/support/error_message.h"
#include "tests/zero/audited.h"

namespace zg::testing {
namespace {

using zero::AuditOptions;
using zero::Divergence;

/// A run of ten steps and what is wrong with it.
struct Side {
  std::string name;
  Job job;
  int64_t changed_sample = -1;  // whose datum 7 is another
  int64_t slope_step = -1;      // from this step on the code multiplies the loss by 1.0001
  bool multiplies_twice = false;
  int64_t flipped_step = -1;  // a bit of the last parameter flips before it
  bool flips_again = false;   // in a replay, too
  bool races = false;         // each run of step 3 has another result
  int late_rank = -1;         // computes after the others
};

struct Diverging : TenSteps {
  Side side(const std::string& name) {
    options.checkpoints = {.path = folder / (name + ".saved"), .keep = -1};
    options.save_interval = 2;
    return {.name = name, .job = {.options = options}};
  }

  void train(const Side& side, int64_t first, int64_t end, const AuditOptions& audit,
             bool is_replay) const {
    TrainerOptions of_run = side.job.options;
    if (is_replay) {
      of_run.checkpoints.reset();
      of_run.save_interval = 0;
      of_run.stop_interval = end;
    }
    of_run.audit = audit;
    run_ranks(side.job.world, [&](Communicator& ranks, const Device& device) {
      const Net net;
      zero::Engine engine(net.store, ranks, device, side.job.engine);
      TrainerTask task = task_of(net, device);
      const auto batch_of = task.batch;
      task.batch = [&, batch_of](const MicroBatch& batch) {
        std::vector<Tensor> tensors = batch_of(batch);
        for (int64_t row = 0; row < batch.samples; ++row)
          if (batch.first_sample + row == side.changed_sample)
            tensors[0].data<float>()[row * width + 7] += 1e-3f;
        return tensors;
      };
      const auto forward = task.forward;
      task.forward = [&, forward](Tape& tape, const MicroBatch& batch) {
        static std::atomic<int> races = 0;
        if (ranks.rank() == side.late_rank)
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        Var loss = forward(tape, batch);
        const bool is_changed = side.slope_step >= 0 && batch.step >= side.slope_step;
        if (side.multiplies_twice) loss = mul(loss, 1.0);
        loss = mul(loss, is_changed ? 1.0001 : 1.0);
        if (side.races && batch.step == 3) loss = mul(loss, 1.0 + 1e-3 * ++races);
        return loss;
      };
      TrainerHooks hooks;
      hooks.before_step = [&](int64_t step) {
        if ((is_replay && !side.flips_again) || step != side.flipped_step) return;
        std::vector<float> values = engine.read(*net.second, zero::Engine::State::master);
        values.back() = std::bit_cast<float>(std::bit_cast<uint32_t>(values.back()) ^ 1u << 24);
        engine.write(*net.second, zero::Engine::State::master, values);
      };
      Trainer trainer(engine, of_run, task, hooks);
      if (first > 0)
        trainer.resume(folder / (side.name + ".saved") + "/step_" + std::to_string(first));
      trainer.run();
    });
  }

  zero::AuditedRun audited(const Side& side, int64_t interval = 3, int64_t op_steps = 0,
                           const std::string& tensor = "") const {
    train(side, 0, 10,
          {.path = folder / side.name,
           .interval = interval,
           .end_op_step = op_steps,
           .tensor = tensor},
          false);
    return {.trail = zero::AuditTrail::read(folder / side.name),
            .checkpoints = {2, 4, 6, 8},
            .replay = [this, side](int64_t first, int64_t end, const AuditOptions& audit) {
              train(side, first, end, audit, true);
            }};
  }
  Divergence found(const Side& a, const Side& b) const { return diverge(audited(a), audited(b)); }
};

}  // namespace

TEST_CASE_FIXTURE(Diverging, "runs that do not part are equal") {
  const zero::AuditedRun one = audited(side("one"));
  Side other = side("other");
  SUBCASE("the same") {}
  SUBCASE("stage 3 on two ranks") {
    other.job.world = 2;
    other.job.engine.stage = 3;
    other.job.options.accumulation = 1;
  }
  SUBCASE("states on the host") { other.job.engine.offload.optimizer = Space::host; }
  const Divergence result = diverge(one, audited(other, /*interval=*/4));
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::equal);
  CHECK(result.steps == 10);
  CHECK_FALSE(contains(names_of(result.layout), "interval"));
}

TEST_CASE_FIXTURE(Diverging,
                  "the step, unit, output and element of a setting, a datum and a line") {
  const Side one = side("one");
  Side other = side("other");
  int64_t step = 0;
  std::string field, unit, output;
  SUBCASE("rate") {
    other.job.options.schedule.rate = 2e-2;
    field = "rate";
    output = " step low states: optimizer_update ";
  }
  SUBCASE("seed of the initial values") {
    other.job.engine.seed = 1;
    field = "units.low units.high";
    output = "0/masters/0 before the step low: first f32 [144]";
  }
  SUBCASE("a datum") {
    other.changed_sample = 19;
    step = 4;
    field = "data";
    output = " forward low: matmul ";
  }
  SUBCASE("a line of code") {
    other.slope_step = 5;
    step = 5;
    field = "loss";
    output = ": axpby ";
  }
  SUBCASE("the last element of a parameter") {
    other.flipped_step = step = 6;
    other.flips_again = true;
    field = "units.high";
    output = "0/masters/1 before the step high: second f32 [60]";
  }
  SUBCASE("weight decay, which the loss shows a step later") {
    other.job.engine.update.weight_decay = 0.5f;
    field = "units.high";
    output = " step low states: optimizer_update ";
  }
  const Divergence result = found(one, other);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::reproduced);
  CHECK(result.steps == step);
  const std::string fields = names_of(result.fields);
  CHECK(contains(fields, field));
  CHECK(fields.find("units.high") == fields.rfind("units.high"));  // before or after the step
  REQUIRE(result.op);
  CHECK(contains(result.op->field, output));
  REQUIRE(result.element);
  CHECK(result.element->first != result.element->second);
  CHECK(contains(result.text, " The first output that differs is on rank 0, "));
  CHECK(contains(result.text, result.element->first + " and " + result.element->second));
  if (other.flips_again) {
    const auto bits_of = [](const std::string& value) {
      return std::stoul(value.substr(value.find("(0x") + 3), nullptr, 16);
    };
    CHECK(result.element->index == 59);
    CHECK((bits_of(result.element->first) ^ bits_of(result.element->second)) == 1u << 24);
  }
  if (field == "data")
    CHECK(result.element->index / width == 1);  // the second row of a micro-batch
}

TEST_CASE_FIXTURE(Diverging, "an op that one run alone has is named with the other run's") {
  Side other = side("other");
  other.slope_step = 2;
  other.multiplies_twice = true;
  const zero::AuditedRun one = audited(side("one")), twice = audited(other);
  for (const bool is_first : {false, true}) {
    const Divergence result = is_first ? diverge(twice, one) : diverge(one, twice);
    CAPTURE(result.text);
    REQUIRE(result.op);
    CHECK((result.op->first == "-") == !is_first);
    CHECK((result.op->second == "-") == is_first);
    CHECK(contains(result.op->field, "forward: axpby y f32 []"));
    CHECK(contains(result.other_op, "backward"));
    CHECK(contains(result.text, ", of " + (folder / "other") + "; " + (folder / "one") + " has " +
                                    result.other_op + " there."));
  }
}

TEST_CASE_FIXTURE(Diverging, "outputs that one of two equal runs has more are no difference") {
  Side other = side("other");
  other.multiplies_twice = true;
  const zero::AuditedRun one = audited(side("one"), 3, 10), twice = audited(other, 3, 10);
  CHECK(diverge(one, twice).text ==
        "equal: 10 steps of " + (folder / "one") + " and " + (folder / "other") + ".");
  // Other values of such outputs are a difference, and so are bytes with another hash.
  const auto first_op = [&](const Side& changed, const std::string& tensor) {
    const std::vector<zero::AuditDifference> fields =
        compare(one.trail, audited(changed, 3, 10, tensor).trail).step;
    return fields.empty() ? "" : fields.front().field;
  };
  CHECK(first_op(side("bytes"), "0/compute/1") == "");
  Side flipped = side("flipped");
  flipped.flipped_step = 0;
  CHECK(contains(first_op(flipped, "0/masters/1"), "units.high"));
}

TEST_CASE_FIXTURE(Diverging,
                  "an output that no other field shows is a fault, and its op is named") {
  const zero::AuditedRun one = audited(side("one"), 3, 10);
  zero::AuditedRun other = audited(side("other"), 3, 10);
  std::string op;
  for (auto& record : other.trail.records)
    for (auto& [name, value] : record.fields)
      if (record.step == 4 && contains(name, "0/compute/2 ")) {
        op = name.substr(std::string("ops.").size());
        value[1] = value[1] == '0' ? '1' : '0';
      }
  Divergence result = diverge(one, other);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::fault);
  CHECK(result.steps == 4);
  CHECK(result.is_first == false);
  REQUIRE(result.op);
  CHECK(result.op->field == op);
  CHECK(contains(result.text, " on rank 0, " + op.substr(op.find(' ') + 1)));
  // Replays of another layout do not show it.
  other.replay = [&](int64_t first, int64_t end, const AuditOptions& audit) {
    Side staged = side("other");
    staged.job.engine.stage = 1;
    train(staged, first, end, audit, true);
  };
  result = diverge(one, other);
  CHECK(result.kind == Divergence::Kind::fault);
  CHECK_FALSE(result.is_first);
  CHECK(contains(result.text, "differ in step 4 of their records (ops." + op.substr(0, 20)));
  CHECK(contains(result.text, "no replay shows it"));
}

TEST_CASE_FIXTURE(Diverging, "a replay with other settings than its record says which") {
  Side other = side("other");
  other.flipped_step = 6;
  zero::AuditedRun changed = audited(other);
  Side now = other;
  now.job.engine.loss_scaling.window = 10;  // which f32 does not use
  changed.replay = [&](int64_t first, int64_t end, const AuditOptions& audit) {
    train(now, first, end, audit, true);
  };
  const Divergence result = diverge(audited(side("one")), changed);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::fault);
  CHECK(result.steps == 6);
  CHECK(names_of(result.replay_settings) == "settings.loss_scale ");
  CHECK(contains(result.text, "other has other settings than its record: settings.loss_scale: ["));
}

TEST_CASE_FIXTURE(Diverging, "an output that differs on all ranks is named on the lowest") {
  Side one = side("one"), other = side("other");
  for (Side* run : {&one, &other}) {
    run->job.world = 2;
    run->job.options.accumulation = 1;
    run->late_rank = 0;
  }
  other.slope_step = 1;
  const Divergence result = found(one, other);
  CAPTURE(result.text);
  CHECK(result.steps == 1);
  REQUIRE(result.op);
  CHECK(contains(result.op->field, "0/compute/"));
  CHECK(contains(result.op->field, ": axpby "));
}

TEST_CASE_FIXTURE(Diverging,
                  "of runs with different layouts the step and unit are found, not the op") {
  Side other = side("other");
  other.job.world = 2;
  other.job.engine = {.stage = 2, .clip_norm = 0.01f};
  other.job.options.accumulation = 1;
  const Divergence result = found(side("one"), other);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::reproduced);
  CHECK(result.steps == 0);
  CHECK(contains(names_of(result.fields), "units.high"));
  CHECK(names_of(result.layout) == "layout.data_ranks layout.stage ");
  CHECK_FALSE(result.op);
}

TEST_CASE_FIXTURE(Diverging, "a bit that flips in one run is a fault of that run") {
  Side other = side("other");
  other.flipped_step = 6;
  for (const bool is_first : {false, true}) {
    const zero::AuditedRun one = audited(side("one")), bad = audited(other, 3, /*op_steps=*/10);
    const Divergence result = is_first ? diverge(bad, one) : diverge(one, bad);
    CAPTURE(result.text);
    CHECK(result.kind == Divergence::Kind::fault);
    CHECK(result.steps == 6);
    CHECK(result.is_first == is_first);
    CHECK_FALSE(result.begins_apart);
    REQUIRE(result.op);
    CHECK(result.op->field == "0/masters/1 before the step high: second f32 [60]");
    CHECK(names_of(result.replay_settings) == "");
    CHECK(contains(result.text, "other has in step 6 what its replay has not"));
    CHECK(contains(result.text, "a transient fault, or a build or machine"));
  }
}

TEST_CASE_FIXTURE(Diverging, "a result that differs from run to run is found") {
  Side other = side("other");
  other.races = true;
  const Divergence result = found(side("one"), other);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::reproduced);
  CHECK(result.steps == 3);
  CHECK(contains(result.text, "other is not equal to its record either: its results change from"));
}

TEST_CASE_FIXTURE(Diverging, "a checkpoint that is not what its run had is a fault") {
  const Side one = side("one");
  Side other = side("other");
  const zero::AuditedRun good = audited(one), bad = audited(other);
  // The checkpoint of step 4 gets other parameters, and the run resumes from it.
  other.job.options.steps = 4;
  other.flipped_step = 3;
  train(other, 2, 4, {.path = folder / "unused"}, false);
  other.job.options.steps = 10;
  other.flipped_step = -1;
  train(other, 4, 10, {.path = folder / "other", .interval = 3}, false);
  zero::AuditedRun resumed = bad;
  resumed.trail = zero::AuditTrail::read(folder / "other");
  resumed.checkpoints = {2};
  const Divergence result = diverge(good, resumed);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::fault);
  CHECK(result.steps == 4);
  CHECK(result.begins_apart);
  CHECK(
      contains(result.text, "a checkpoint or a file of initial weights may have changed. Else it"));
  CHECK(contains(names_of(result.fields), "units.high "));
}

TEST_CASE_FIXTURE(Diverging, "a changed checkpoint explains an earlier step than the records do") {
  Side other = side("other");
  other.slope_step = 7;
  const zero::AuditedRun good = audited(side("one")), bad = audited(other);
  other.job.options.steps = 6;  // the checkpoint of step 6 gets other parameters
  other.flipped_step = 5;
  train(other, 4, 6, {.path = folder / "unused"}, false);
  const Divergence result = diverge(good, bad);
  CAPTURE(result.text);
  CHECK(result.kind == Divergence::Kind::fault);
  CHECK(result.steps == 6);
  CHECK(result.is_first == false);
}

TEST_CASE_FIXTURE(Diverging, "diverge refuses what it cannot find") {
  zero::AuditedRun one = audited(side("one")), late = one;
  std::erase_if(late.trail.records, [](const auto& record) { return record.step < 20; });
  CHECK_ERROR(ConfigError, "expected steps that", diverge(one, late));
  CHECK_ERROR(ConfigError, "a run without step 11", replayed(one, 3, 11));
}

}  // namespace zg::testing
