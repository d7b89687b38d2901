#include "zerograd/zero/optimizer/update.h"

#include <cmath>
#include <mutex>
#include <tuple>

#include "tests/zero/toy.h"

using namespace zg;
using namespace zg::testing;
using zero::Config;
using zero::Engine;
using State = zero::Engine::State;

namespace {

/// torch.optim.AdamW, or Adam, with torch.nn.utils.clip_grad_norm_ before it, in double.
struct Reference {
  std::map<const Parameter*, std::vector<double>> value, moment1, moment2;
  int steps = 0;

  explicit Reference(const Engine& engine, const Toy& toy) {
    for (const Parameter* parameter : toy.trainable()) {
      const std::vector<float> masters = engine.read(*parameter, State::master);
      value[parameter].assign(masters.begin(), masters.end());
      moment1[parameter].resize(masters.size());
      moment2[parameter].resize(masters.size());
    }
  }

  /// Returns the norm before clipping.
  double step(std::map<const Parameter*, std::vector<double>> gradients, const Config& config,
              double rate) {
    double squares = 0.0;
    for (const auto& [parameter, gradient] : gradients)
      for (double g : gradient) squares += g * g;
    const double norm = std::sqrt(squares);
    const double clip =
        config.clip_norm > 0 ? std::min(1.0, config.clip_norm / (norm + 1e-6)) : 1.0;
    const double beta1 = config.update.beta1, beta2 = config.update.beta2;
    ++steps;
    for (const auto& [parameter, gradient] : gradients)
      for (size_t i = 0; i < gradient.size(); ++i) {
        double &p = value[parameter][i], &m = moment1[parameter][i], &v = moment2[parameter][i];
        double g = gradient[i] * clip;
        if (parameter->decay && config.update.decoupled) p -= rate * config.update.weight_decay * p;
        if (parameter->decay && !config.update.decoupled) g += config.update.weight_decay * p;
        m = beta1 * m + (1 - beta1) * g;
        v = beta2 * v + (1 - beta2) * g * g;
        const double root = std::sqrt(v / (1 - std::pow(beta2, steps))) + config.update.epsilon;
        p -= rate * (m / (1 - std::pow(beta1, steps))) / root;
      }
    return norm;
  }
};

}  // namespace

TEST_CASE(
    "Engine::step agrees with AdamW or Adam with gradient clipping computed in double precision") {
  for (const auto& [compute, clip, decoupled] :
       std::vector<std::tuple<DType, float, bool>>{{DType::f32, 0.0f, true},
                                                   {DType::f32, 1.0f, true},
                                                   {DType::f32, 1000.0f, true},
                                                   {DType::bf16, 1.0f, true},
                                                   {DType::bf16, 1000.0f, true},
                                                   {DType::f32, 1.0f, false}}) {
    INFO("clip ", clip, ", decoupled ", decoupled);
    const Toy toy;
    const Config config{.compute = compute,
                        .update = {.beta2 = 0.99f, .weight_decay = 0.3f, .decoupled = decoupled},
                        .clip_norm = clip};
    Engine engine(toy.store, Device::cpu(), config);
    Reference reference(engine, toy);
    for (uint64_t step = 1; step <= 5; ++step) {
      for (uint64_t m = 0; m < 3; ++m)
        run_micro_batch(engine, random_gradients(toy.trainable(), step * 10 + m));
      std::map<const Parameter*, std::vector<double>> mean;
      for (const Parameter* parameter : toy.trainable())
        for (float sum : engine.read(*parameter, State::gradient))
          mean[parameter].push_back(sum / 3.0);
      const double norm = reference.step(mean, config, 1e-2f);
      // Doubles all the way, 356 terms.
      CHECK(std::fabs(engine.step(1e-2f).gradient_norm - norm) < 356 * 0x1p-53 * norm);
    }
    double worst = 0.0;
    for (const Parameter* parameter : toy.trainable()) {
      const std::vector<float> masters = engine.read(*parameter, State::master);
      for (size_t i = 0; i < masters.size(); ++i)
        worst = std::max(worst, std::fabs(masters[i] - reference.value[parameter][i]));
    }
    // u = 2^-24, |p| < 2. A step rounds keep, keep * p and the sum: 6u. Its move is the rate 1e-2
    // times a ratio below sqrt(5), known to 80u (tests/kernels/optimizer/adam_test.cpp, and three
    // more roundings of the scaled gradient): below 2u. Five steps: 40u.
    CHECK(worst < 40 * 0x1p-24);
    CHECK(worst > 0.0);
  }
}

TEST_CASE(
    "Engine::step updates all units in one kernel call, or in one per unit if it gathers or "
    "streams") {
  static std::mutex mutex;
  static std::vector<size_t> calls;  // how many tensors each updates
  static const auto own = kernels::optimizer_update[Device::Type::cpu].function;
  const auto calls_of = [](const Config& config, int ranks) {
    calls.clear();
    const auto rank = [&](Communicator& comm, const Device& device) {
      const Toy toy;
      Engine engine(toy.store, comm, device, config);
      train_micro_batch(engine, static_cast<uint64_t>(comm.rank()));
      engine.step(1e-2f);
    };
    run_local(ranks, rank, {.device = {.swap = {.directory = "/tmp"}}});
    return calls;
  };
  kernels::optimizer_update[Device::Type::cpu].function = [](const OptimizerUpdate& a,
                                                             Workspace workspace, Stream& stream) {
    {
      const std::lock_guard lock(mutex);
      calls.push_back(a.tensors.size());
    }
    own(a, workspace, stream);
  };
  // Two units with two ranges of equal weight decay each.
  const std::vector<size_t> alone = calls_of({}, 1);
  const std::vector<size_t> sharded = calls_of({.stage = 3, .param_persistence_threshold = 0}, 2);
  const std::vector<size_t> gathered = calls_of({.stage = 2}, 2);
  const std::vector<size_t> everybodys = calls_of({.stage = 0}, 2);
  const std::vector<size_t> streamed = calls_of({.offload = {.optimizer = Space::file}}, 1);
  kernels::optimizer_update[Device::Type::cpu].function = own;
  CHECK(alone == std::vector<size_t>{4});
  CHECK(sharded.size() == 2);
  CHECK(gathered.size() == 4);
  CHECK(everybodys == std::vector<size_t>{2, 2, 2, 2});
  CHECK(streamed == std::vector<size_t>{2, 2});
}

TEST_CASE("betas passed to Engine::step act like betas of the engine's config") {
  const Toy toy;
  Engine moved(toy.store, Device::cpu(), {});
  Engine fixed(toy.store, Device::cpu(), {.update = {.beta1 = 0.7f, .beta2 = 0.97f}});
  for (uint64_t step = 1; step <= 2; ++step) {
    for (Engine* engine : {&moved, &fixed})
      run_micro_batch(*engine, random_gradients(toy.trainable(), step));
    moved.step(1e-2f, zero::Betas{0.7f, 0.97f});
    fixed.step(1e-2f);
    CHECK(moved.parameter_hash() == fixed.parameter_hash());
  }
  for (Engine* engine : {&moved, &fixed})
    run_micro_batch(*engine, random_gradients(toy.trainable(), 3));
  moved.step(1e-2f, zero::Betas{0.6f, 0.97f});
  fixed.step(1e-2f);
  CHECK(moved.parameter_hash() != fixed.parameter_hash());
}

TEST_CASE(
    "Clipping divides torch's clip factor, max_norm / (norm + 1e-6) up to 1, by the "
    "micro-batches") {
  CHECK(Clipping{1, 1.0f}.factor(0.5) == 1.0f);
  CHECK(Clipping{4, 1.0f}.factor(0.5) == 0.25f);
  CHECK(Clipping{1, 0.0f}.factor(8.0) == 1.0f);
  CHECK(Clipping{1, 1.0f}.factor(0.0) == 1.0f);
  CHECK(Clipping{2, 1.0f}.factor(8.0) == static_cast<float>(0.5 * (1.0 / (8.0 + 1e-6))));
  CHECK(Clipping{2, 0.0f, 4.0}.factor(8.0) == 0.125f);
}
