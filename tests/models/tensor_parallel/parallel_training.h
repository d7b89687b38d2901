#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/autograd/fake_source.h"
#include "tests/autograd/on_ranks.h"
#include "zerograd/runtime/comm/mesh.h"

// Training on tensor ranks with plain gradient descent, assembled into the whole model's numbers.
namespace zg::testing {

using ParameterValues = std::map<std::string, std::vector<double>>;  // by the parameter's name

struct TrainingSetting {
  int ranks = 1;
  bool sequence = false;
  DType dtype = DType::f32;
  bool checkpointing = false;
  int steps = 20;
  /// Changes the initial weights; absent: they stay.
  std::function<void(const ParameterStore& store, FakeSource& source)> prepare = {};
  int groups = 0;  // TensorParallel::groups
};

/// The results of training, assembled from all ranks.
struct Training {
  std::vector<double> losses;
  ParameterValues gradients;  // after the first step
  ParameterValues weights;    // after the last one
  bool replicas_agree = true;
};

using LossOfStep = std::function<Var(Tape& tape, int step)>;
/// Describes a rank's slices of the model in a store.
using DescribeModel = std::function<LossOfStep(ParameterStore& store, const Mesh& mesh)>;

/// Copies a rank's slice into the whole. False: a replica's bits differ from the owner's.
inline bool place_slice(ParameterValues& wholes, const Parameter& parameter,
                        const std::vector<double>& part) {
  std::vector<double>& whole = wholes[parameter.name];
  if (parameter.copy == Copy::replica) return same_bits(whole, part);
  whole.resize(static_cast<size_t>(parameter.whole.numel()));
  for (size_t i = 0; i < part.size(); ++i)
    whole[static_cast<size_t>(parameter.slice.whole_index(static_cast<int64_t>(i)))] = part[i];
  return true;
}

/// Multiplies the initial weights, so that outputs differ.
inline void spread_weights(const ParameterStore& store, FakeSource& source, double factor) {
  for (const auto& parameter : store.parameters())
    if (parameter->init.kind == Init::Kind::normal)
      for (double& value : source.at_rest(*parameter)) value *= factor;
}

inline Training trained_on_ranks(const TrainingSetting& setting, const DescribeModel& describe) {
  struct OfRank {
    std::vector<double> losses;
    ParameterValues gradients, weights;
    std::unique_ptr<ParameterStore> store;
  };
  std::vector<OfRank> results(static_cast<size_t>(setting.ranks));
  run_local(setting.ranks, [&](Communicator& world, const Device& device) {
    const Mesh mesh(world, {.tensor = setting.ranks});
    OfRank& result = results[static_cast<size_t>(world.rank())];
    result.store = std::make_unique<ParameterStore>();
    const LossOfStep loss_of = describe(*result.store, mesh);
    FakeSource source(*result.store, device, setting.dtype);
    spread_weights(*result.store, source, 5.0);
    if (setting.prepare) setting.prepare(*result.store, source);
    for (int step = 0; step < setting.steps; ++step) {
      source.gradients.clear();
      Tape tape(device, &source);
      const Var loss = loss_of(tape, step);
      result.losses.push_back(loss.value().item());
      tape.backward(loss);
      for (const auto& parameter : result.store->parameters()) {
        if (!parameter->trainable) continue;
        const std::vector<double>& gradient = source.gradients[parameter.get()];
        std::vector<double>& value = source.at_rest(*parameter);
        for (size_t i = 0; i < value.size(); ++i) value[i] -= 0.1 * gradient[i];
        if (step == 0) result.gradients[parameter->name] = gradient;
        if (step == setting.steps - 1) result.weights[parameter->name] = value;
      }
    }
  });
  Training training{.losses = results[0].losses};
  for (const OfRank& result : results) {
    training.replicas_agree = training.replicas_agree && same_bits(result.losses, training.losses);
    for (const auto& parameter : result.store->parameters()) {
      if (!parameter->trainable) continue;
      const bool gradients =
          place_slice(training.gradients, *parameter, result.gradients.at(parameter->name));
      const bool weights =
          place_slice(training.weights, *parameter, result.weights.at(parameter->name));
      training.replicas_agree = training.replicas_agree && gradients && weights;
    }
  }
  return training;
}

inline double norm_of(const ParameterValues& a, const ParameterValues& b) {
  double squares = 0.0;
  for (const auto& [name, values] : a) {
    const std::vector<double>& others = b.at(name);
    REQUIRE(values.size() == others.size());
    for (size_t i = 0; i < values.size(); ++i)
      squares += (values[i] - others[i]) * (values[i] - others[i]);
  }
  return std::sqrt(squares);
}

inline double norm_of(const ParameterValues& a) {
  double squares = 0.0;
  for (const auto& [name, values] : a)
    for (double value : values) squares += value * value;
  return std::sqrt(squares);
}

/// `loss` and `gradient`: the largest relative difference of a loss, and of all gradients of the
/// first step together.
inline void check_near(const Training& training, const Training& whole, double loss,
                       double gradient) {
  CHECK(training.replicas_agree);
  REQUIRE(training.losses.size() == whole.losses.size());
  for (size_t step = 0; step < whole.losses.size(); ++step) {
    CAPTURE(step);
    CHECK(std::fabs(training.losses[step] - whole.losses[step]) <= loss * whole.losses[step]);
  }
  CHECK(norm_of(training.gradients, whole.gradients) <= gradient * norm_of(whole.gradients));
}

}  // namespace zg::testing
