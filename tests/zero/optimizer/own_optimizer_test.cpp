// Optimizers outside the library: from what they declare follow partition, offload, plans,
// checkpoints and groups.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/cover.h"
#include "tests/support/error_message.h"
#include "tests/support/own_process.h"
#include "tests/support/planned.h"
#include "tests/support/temporary_folder.h"
#include "tests/zero/matrix_toy.h"
#include "tests/zero/one_hash.h"
#include "tests/zero/training_run.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/zero/checkpoint/checkpoint_reader.h"
#include "zerograd/zero/optimizer/elementwise.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using zero::Optimizer;
using zero::OptimizerRange;
using zero::OptimizerStep;
using State = Engine::State;

namespace {

void subtract(const Tensor& direction, const OptimizerRange& range, const OptimizerStep& step,
              Stream& stream) {
  const double rate = double{step.rate} * range.rate_factor;
  kernels::axpby(
      {.x = direction, .y = range.master, .a = -rate, .b = 1 - rate * range.weight_decay}, stream);
}

/// m = 0.9 m + 0.1 g; p = (1 - rate decay) p - rate sign(m).
class SignSgd : public Optimizer {
 public:
  explicit SignSgd(std::optional<DType> dtype = {}) : dtype_(dtype) {}
  std::string name() const override { return "signsgd"; }
  std::vector<State> states() const override { return {{.name = "momentum", .dtype = dtype_}}; }
  std::map<std::string, double> options() const override { return {{"momentum", 0.9}}; }
  void update(const OptimizerStep& step, std::span<const OptimizerRange> ranges,
              Stream& stream) const override {
    for (const OptimizerRange& range : ranges) {
      const Tensor sign = range.scratch();
      kernels::axpby({.x = range.gradient, .y = range["momentum"], .a = 0.1, .b = 0.9}, stream);
      kernels::axpby({.x = range["momentum"], .y = sign, .a = 1e30, .b = 0}, stream);
      kernels::unary({.op = UnaryOp::tanh, .x = sign, .y = sign}, stream);
      subtract(sign, range, step, stream);
    }
  }

 private:
  const std::optional<DType> dtype_;
};

/// Shampoo: Gupta et al. 2018, arXiv:1802.09568, algorithm 1: L = L + g g^T, R = R + g^T g,
/// p = p - rate L^(-1/4) g R^(-1/4). The roots by Newton's iteration for a matrix of norm 1, Guo,
/// Higham 2006, equation 1.3: with F = (5 I - M) / 4, W = F W and M = F^4 M. Adam updates vectors.
class Shampoo : public Optimizer {
 public:
  std::string name() const override { return "shampoo"; }
  bool needs_whole() const override { return true; }
  bool updates(const Parameter& parameter) const override { return parameter.shape.rank() == 2; }
  std::shared_ptr<const Optimizer> others() const override { return zero::adam(); }
  std::vector<State> states() const override {
    return {{.name = "left",
             .shape =
                 [](const Shape& s) {
                   return Shape{s[0], s[0]};
                 }},
            {.name = "right", .shape = [](const Shape& s) {
               return Shape{s[1], s[1]};
             }}};
  }
  void update(const OptimizerStep& step, std::span<const OptimizerRange> ranges,
              Stream& stream) const override {
    for (const OptimizerRange& range : ranges) {
      const Tensor &g = range.gradient, &left = range["left"], &right = range["right"];
      multiply(g, g, left, 1, {.transpose_b = true, .accumulate = true}, stream);
      multiply(g, g, right, 0, {.transpose_a = true, .accumulate = true}, stream);
      take_root(left, /*is_left=*/true, range, stream);
      take_root(right, /*is_left=*/false, range, stream);
      subtract(g, range, step, stream);
    }
  }

 private:
  static void multiply(const Tensor& a, const Tensor& b, const Tensor& c, int inner, Matmul args,
                       Stream& stream) {
    args.a = a, args.b = b, args.c = c;
    args.M = c.extent(0), args.N = c.extent(1), args.K = a.extent(inner);
    kernels::matmul(args, stream);
  }
  /// w = square^(-1/4) w, or w square^(-1/4), with w the gradient.
  static void take_root(const Tensor& square, bool is_left, const OptimizerRange& range,
                        Stream& stream) {
    const Tensor m = range.scratch(square.shape()), old = range.scratch(square.shape());
    const Tensor next = range.scratch(square.shape()), w = range.gradient, moved = range.scratch();
    const Tensor norm = range.scratch({1, 1});
    const auto divide = [&](const Tensor& x, const Tensor& y) {
      kernels::unary({.op = UnaryOp::sqrt, .x = norm, .y = norm}, stream);
      kernels::binary({BinaryOp::divide, x, norm, y}, stream);
    };
    kernels::binary({BinaryOp::multiply, square, square, m}, stream);
    kernels::reduce({.op = ReduceOp::sum, .x = m, .y = norm, .axes = 3}, stream);
    divide(square, m);
    for (int i = 0; i < 10; ++i) {
      multiply(is_left ? m : w, is_left ? w : m, moved, 1, {}, stream);
      kernels::axpby({.x = moved, .y = w, .a = -0.25, .b = 1.25}, stream);
      copy(m, old, stream);
      for (int k = 0; k < 4; ++k) {
        multiply(old, m, next, 1, {}, stream);
        kernels::axpby({.x = next, .y = m, .a = -0.25, .b = 1.25}, stream);
      }
    }
    kernels::unary({.op = UnaryOp::sqrt, .x = norm, .y = norm}, stream);
    divide(w, w);
  }
};

template <class Rule>
struct Counting final : Rule {
  int64_t last = std::numeric_limits<int64_t>::max();  ///< elements; the process is killed then
  mutable std::atomic<int64_t> updated = 0;            ///< elements
  void update(const OptimizerStep& step, std::span<const OptimizerRange> ranges,
              Stream& stream) const override {
    for (const OptimizerRange& range : ranges) updated += range.master.numel();
    Rule::update(step, ranges, stream);
    if (updated >= last) std::raise(SIGKILL);
  }
};

/// Sophia-G: Liu et al. 2023, arXiv:2305.14342, algorithm 3: h = 0.99 h + 0.01 g^2 of sampled
/// labels when they are observed, m = 0.96 m + 0.04 g, p = (1 - rate decay) p - rate clip(m / h,
/// 1).
class Sophia final : public Optimizer {
 public:
  std::string name() const override { return "sophia"; }
  std::vector<std::string> streams() const override { return {"sampled"}; }
  std::vector<State> states() const override {
    return {{.name = "momentum"}, {.name = "curvature"}};
  }
  void update(const OptimizerStep& step, std::span<const OptimizerRange> ranges,
              Stream& stream) const override {
    for (const OptimizerRange& range : ranges) {
      const Tensor &m = range["momentum"], &h = range["curvature"], &g = range.gradient;
      if (step.stream == "sampled") {
        kernels::binary({BinaryOp::multiply, g, g, g}, stream);
        kernels::axpby({.x = g, .y = h, .a = 0.01, .b = 0.99}, stream);
        continue;
      }
      // m / max(|m|, h) is m / h, limited to 1 and -1; m and h may be bf16.
      const Tensor ratio = range.scratch(), limit = range.scratch(), divisor = range.scratch();
      kernels::axpby({.x = g, .y = m, .a = 0.04, .b = 0.96}, stream);
      kernels::cast({.x = m, .y = ratio}, stream);
      kernels::cast({.x = h, .y = divisor}, stream);
      kernels::unary({.op = UnaryOp::abs, .x = ratio, .y = limit}, stream);
      kernels::binary({BinaryOp::maximum, limit, divisor, divisor}, stream);
      kernels::axpby({.x = ratio, .y = limit, .a = 0, .b = 0}, stream);
      kernels::unary({.op = UnaryOp::exp, .x = limit, .y = limit}, stream);
      kernels::axpby({.x = limit, .y = divisor, .a = 1e-12, .b = 1}, stream);  // no 0 / 0
      kernels::binary({BinaryOp::divide, ratio, divisor, ratio}, stream);
      subtract(ratio, range, step, stream);
    }
  }
};

zero::UpdateOptions with(std::shared_ptr<const Optimizer> optimizer) {
  return {.optimizer = std::move(optimizer)};
}

std::vector<Config> configs_of_own() {
  const auto sign = std::make_shared<SignSgd>(), narrow = std::make_shared<SignSgd>(DType::bf16);
  std::vector<Config> configs = {
      {.update = with(sign)},
      {.compute = DType::bf16, .update = with(narrow)},
      {.compute = DType::bf16,
       .optimizer = DType::bf16,
       .grad_accum = DType::bf16,
       .update = with(sign)},
      {.update = with(std::make_shared<Shampoo>())},
      {.compute = DType::bf16, .update = with(std::make_shared<Shampoo>())},
      {.compute = DType::f16,
       .update = {.groups = {{.pattern = "tall", .optimizer = sign},
                             {.pattern = "g*", .optimizer = zero::lion()}}}},
      {.update = {.rule = OptimizerRule::muon,
                  .groups = {{.pattern = "tall", .rate = 0.5f, .optimizer = sign}}}},
      {.update = with(std::make_shared<Sophia>())},
      {.compute = DType::bf16,
       .update = {.rule = OptimizerRule::muon,
                  .groups = {{.pattern = "?a*", .optimizer = std::make_shared<Sophia>()}}}}};
  configs[5].loss_scaling = low_scale;
  for (Config& config : configs) config.param_persistence_threshold = 160;
  return configs;
}

/// Whether some optimizer of the config observes sampled gradients.
bool observes(const Config& config) {
  const zero::Optimizers optimizers(config.update);
  return std::ranges::any_of(optimizers.all(),
                             [](const auto& entry) { return !entry.optimizer->streams().empty(); });
}

/// Trains as train_on_ranks does; every step begins with gradients that are observed.
TrainingOutcome train(const Config& config, const TrainingRun& run) {
  return train_on_ranks<MatrixToy>(config, run, [&](Engine& engine, uint64_t number) {
    const int micro_batches = run.micro_batches / run.ranks;
    if (observes(config) && engine.micro_batches() == 0) {
      for (int i = 0; i < micro_batches; ++i)
        train_micro_batch(engine, 10'000 + number + static_cast<uint64_t>(i * run.ranks));
      engine.observe("sampled");
    }
    return train_micro_batch(engine, number);
  });
}

}  // namespace

TEST_CASE(
    "an optimizer outside the library has one hash over stages, ranks, offload and restarts") {
  check_one_hash(configs_of_own(), train);
}

TEST_CASE("killed: run by the next test" * doctest::skip()) {
  // Two ranks at stage 2 save after each step, until some of the parameters have been updated.
  const char* const setting = std::getenv("ZG_KILLED");  // optimizer, elements, folder
  REQUIRE(setting);
  std::istringstream words(setting);
  std::string optimizer, folder;
  int64_t elements = 0;
  words >> optimizer >> elements >> folder;
  const auto killing = [&]<class Rule>(std::shared_ptr<Counting<Rule>> rule) {
    rule->last = elements;
    train_on_ranks<MatrixToy>(
        {.stage = 2, .update = with(rule)}, {.ranks = 2}, [&](Engine& engine, uint64_t number) {
          if (engine.micro_batches() == 0 && engine.steps() > 0)
            zero::save_checkpoint(folder, engine,
                                  {.steps = engine.steps(), .micro_batches = 12 * engine.steps()});
          return train_micro_batch(engine, number);
        });
  };
  if (optimizer == "signsgd")
    killing(std::make_shared<Counting<SignSgd>>());
  else
    killing(std::make_shared<Counting<Shampoo>>());
}

TEST_CASE(
    "a run that is killed in an update by an optimizer outside the library resumes on other "
    "ranks to the same hash") {
  const std::shared_ptr<const Optimizer> optimizers[] = {std::make_shared<SignSgd>(),
                                                         std::make_shared<Shampoo>()};
  for (const auto& optimizer : optimizers) {
    const std::string hash = train({.update = with(optimizer)}, {}).hash;
    for (const int step : {2, 3}) {
      INFO(optimizer->name(), " is killed in step ", step);
      const TemporaryFolder folder;
      // A step updates 1944 elements or, with padding, 2304.
      const int64_t elements = 2300 * step - 1900;
      const EndedTest ended = end_of_own_test(
          start_own_test("killed: run by the next test", "export ZG_KILLED='" + optimizer->name() +
                                                             " " + std::to_string(elements) + " " +
                                                             folder.path() + "' && exec"));
      CAPTURE(ended.text);
      REQUIRE(ended.status == -1);
      CHECK(ended.text.find("ERROR") == std::string::npos);
      const int saved =
          static_cast<int>(zero::open_checkpoint(folder.path())->manifest().info.steps);
      CHECK(saved == step - 1);
      const TrainingRun rest{.ranks = 5 - step, .first = saved, .directory = folder.path()};
      CHECK(train({.stage = step, .update = with(optimizer)}, rest).hash == hash);
    }
  }
}

TEST_CASE("a plan equals its run for optimizers outside the library, also with a skipped step") {
  for_cover(
      [](const Config& plain, int stage, Space space) {
        INFO(case_of(plain), ", stage ", stage, ", ", name_of(space));
        const Program program = [&](Communicator& ranks, const Device& device) {
          const MatrixToy toy;
          Config config = plain;
          config.stage = stage;
          config.offload = {.optimizer = space, .sub_group_size = 256};
          Engine engine(toy.store, ranks, device, config);
          for (int step = 0; step < 3; ++step) {
            Gradients gradients;
            for (const auto& parameter : toy.store.parameters())
              gradients[parameter.get()].assign(static_cast<size_t>(parameter->shape.numel()),
                                                step == 1 ? INFINITY : 0.5f);
            run_micro_batch(engine, gradients);
            if (observes(config)) {
              const bool skipped = engine.observe("sampled").skipped;
              if (device.type() != Device::Type::meta) CHECK(skipped == (step == 1));
              run_micro_batch(engine, gradients);
            }
            const zero::StepResult result = engine.step(1e-3f);
            if (device.type() != Device::Type::meta) CHECK(result.skipped == (step == 1));
          }
        };
        check_planned(3, program, {.swap = {.directory = "/tmp"}});
      },
      configs_of_own(), std::vector{0, 1, 3}, std::vector{Space::device, Space::host, Space::file});
}

TEST_CASE("a rank has and updates the whole parameters that it owns alone") {
  const int64_t matrices = 5 * 20 + 5 * 31 + 40 * 24 + 24 * 24 + 9 * 17;
  int64_t squares = 0;
  for (const int64_t side : {5, 20, 5, 31, 40, 24, 24, 24, 9, 17}) squares += side * side;
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    int64_t most_bytes = 0, most_updated = 0, all_bytes = 0, all_updated = 0;
    std::mutex mutex;
    run_local(ranks, [&](Communicator& comm, const Device& device) {
      const MatrixToy toy;
      const auto shampoo = std::make_shared<Counting<Shampoo>>();
      Engine engine(toy.store, comm, device, {.stage = 1, .update = with(shampoo)});
      train_step(engine, 0);
      const std::vector<float> left = engine.read(toy.tall, {"left"});
      const Tensor same = engine.tensor(toy.tall, {"left"});
      const Engine::Held held = engine.held(toy.tall, {"left"});
      const std::lock_guard lock(mutex);
      CHECK(left.size() == 40 * 40);
      CHECK(same.shape() == Shape{40, 40});
      CHECK(same.to_host<float>() == left);
      CHECK(left[0] > 0.0f);
      CHECK((held.end == 0 || held.end == 40 * 40));
      most_bytes = std::max(most_bytes, engine.resting_bytes().optimizer);
      most_updated = std::max(most_updated, shampoo->updated.load());
      all_bytes += engine.resting_bytes().optimizer;
      all_updated += shampoo->updated;
    });
    CHECK(all_bytes == 4 * (squares + 2 * (7 + 129)));  // adam has two moments of its vectors
    CHECK(all_updated == matrices);
    // Units begin with different ranks, and the third one fits into the padding of the second.
    if (ranks > 2) CHECK(most_updated == 5 * 20 + 40 * 24);
    if (ranks > 1) CHECK(most_updated < all_updated);
    if (ranks > 1) CHECK(most_bytes < all_bytes);
  }
}

TEST_CASE("the first step of Shampoo is an orthogonal matrix") {
  // With one gradient g = U S V^T, L^(-1/4) g R^(-1/4) = U V^T.
  const MatrixToy toy;
  Engine engine(toy.store, Device::cpu(),
                {.update = {.optimizer = std::make_shared<Shampoo>(), .weight_decay = 0.0f},
                 .clip_norm = 0.0f});
  const std::vector<float> before = engine.read(toy.wide, State::master);
  train_step(engine, 0);
  const std::vector<float> after = engine.read(toy.wide, State::master);
  for (size_t i = 0; i < 5; ++i)
    for (size_t j = 0; j < 5; ++j) {
      double product = 0;
      for (size_t k = 0; k < 31; ++k)
        product += (double{before[31 * i + k]} - after[31 * i + k]) *
                   (double{before[31 * j + k]} - after[31 * j + k]);
      INFO("rows ", i, " and ", j);
      CHECK(product == doctest::Approx(i == j ? 1e-4 : 0.0).epsilon(1e-2).scale(1e-4));
    }
}

TEST_CASE("a skipped step changes no state of an optimizer outside the library") {
  for (const Config& config : configs_of_own()) {
    CAPTURE(case_of(config));
    const MatrixToy toy;
    Engine engine(toy.store, Device::cpu(), config);
    train_step(engine, 0);
    const auto states = [&] {
      std::vector<std::vector<float>> all;
      for (const auto& parameter : toy.store.parameters())
        for (const State& state : engine.states(*parameter))
          all.push_back(engine.read(*parameter, state));
      return all;
    };
    const auto before = states();
    std::vector<float> gradient(5 * 31, 1.0f);
    gradient[3] = std::nanf("");
    run_micro_batch(engine, {{&toy.wide, gradient}});
    CHECK(engine.step(1e-2f).skipped);
    CHECK((states() == before));
  }
}

TEST_CASE("each optimizer of a run updates its own parameters as in a run of its own") {
  const auto after = [](const zero::UpdateOptions& update) {
    const MatrixToy toy;
    Engine engine(toy.store, Device::cpu(), {.update = update, .clip_norm = 0.0f});
    train_step(engine, 0);
    std::map<std::string, std::vector<float>> values;
    for (const auto& parameter : toy.store.parameters())
      values[parameter->name] = engine.read(*parameter, State::master);
    return values;
  };
  const auto sign = std::make_shared<SignSgd>();
  auto mixed = after({.groups = {{.pattern = "tall", .optimizer = sign},
                                 {.pattern = "wide", .optimizer = zero::sgd({.momentum = 0.5f})}}});
  auto signs = after(with(sign)), adams = after({}),
       sgds = after(with(zero::sgd({.momentum = 0.5f})));
  for (const auto& [name, values] : mixed) {
    CAPTURE(name);
    CHECK(values == (name == "tall" ? signs : name == "wide" ? sgds : adams).at(name));
    if (name == "tall") CHECK(values != adams.at(name));
  }
}

TEST_CASE("a checkpoint of an optimizer outside the library names it, its states and options") {
  const TemporaryFolder folder;
  const MatrixToy toy;
  Engine engine(toy.store, Device::cpu(), {.update = with(std::make_shared<SignSgd>())});
  train_step(engine, 0);
  zero::save_checkpoint(folder.path(), engine, {.steps = 1, .micro_batches = 2});
  const auto reader = zero::open_checkpoint(folder.path());
  CHECK(reader->damages().empty());
  CHECK(reader->manifest().optimizer == "signsgd");
  CHECK(reader->manifest().states == std::vector<std::string>{"momentum"});
  CHECK(reader->manifest().options == std::map<std::string, double>{{"momentum", 0.9}});
  CHECK(reader->read("tall", "momentum") == engine.read(toy.tall, {"momentum"}));
  Engine adam(toy.store, Device::cpu());
  CHECK(message_of<ConfigError>([&] { zero::load_checkpoint(folder.path(), adam); }) ==
        "load: " + (folder / "step_1") +
            " was saved by signsgd with momentum; expected adamw with moment1 and moment2, as this "
            "engine has; try the optimizer that saved it, or load its weights alone (--init)");
}

TEST_CASE("observed gradients change the states that read them, and no parameter or step") {
  const MatrixToy toy;
  Engine engine(
      toy.store, Device::cpu(),
      {.update = {.groups = {{.pattern = "tall", .optimizer = std::make_shared<Sophia>()}}}});
  const std::string before = engine.parameter_hash();
  Gradients gradients;
  for (const auto& parameter : toy.store.parameters())
    gradients[parameter.get()].assign(static_cast<size_t>(parameter->shape.numel()), 4.0f);
  run_micro_batch(engine, gradients);
  const zero::StepResult result = engine.observe("sampled");  // 4 is above the limit of the norm
  CHECK(!result.skipped);
  CHECK(engine.parameter_hash() == before);
  CHECK(engine.steps() == 0);
  CHECK(engine.micro_batches() == 0);
  CHECK(engine.read(toy.tall, {"curvature"}) == std::vector<float>(40 * 24, 0.16f));
  CHECK(engine.read(toy.tall, {"momentum"}) == std::vector<float>(40 * 24, 0.0f));
  CHECK(engine.read(toy.gain, State::moment1) == std::vector<float>(129, 0.0f));
  CHECK(message_of<ConfigError>([&] { engine.observe("sampled"); }) ==
        "observe: no micro-batch since the last one; call backward first");
  CHECK(message_of<ConfigError>([&] { engine.observe("other"); }) ==
        "observe: no optimizer declares the stream 'other'; expected a name of "
        "Optimizer::streams()");
  gradients[&toy.wide][7] = INFINITY;
  run_micro_batch(engine, gradients);
  CHECK(engine.observe("sampled").bad_tensor == "wide");
  CHECK(engine.read(toy.tall, {"curvature"}) == std::vector<float>(40 * 24, 0.16f));
  // Values in 16 bits exist while their unit is open, over an observation, too.
  Engine narrow(toy.store, Device::cpu(),
                {.compute = DType::bf16, .update = engine.config().update});
  run_micro_batch(narrow, gradients);
  const Tape tape = narrow.inference_tape();
  const Tape::Use use(tape, *toy.tall.unit);
  const std::vector<double> values = tape.parameter(toy.tall).value().to_doubles();
  narrow.observe("sampled");
  CHECK(tape.parameter(toy.tall).value().to_doubles() == values);
}
