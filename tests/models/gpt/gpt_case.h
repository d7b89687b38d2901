#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tests/autograd/fake_source.h"
#include "tests/support/normal_weights.h"
#include "tests/support/op_case.h"
#include "zerograd/models/gpt/gpt.h"

// Shared by tests of models: a small GPT with its parameters.
namespace zg::testing {

inline models::GPTConfig tiny_config() {
  return {.layers = 2, .heads = 2, .width = 8, .vocabulary = 7, .block_size = 6};
}

/// A BLOOM whose number of heads is not a power of two.
inline models::GPTConfig tiny_bloom() {
  return {.layers = 2,
          .heads = 3,
          .width = 12,
          .vocabulary = 7,
          .block_size = 6,
          .tied = true,
          .family = models::Family::bloom,
          .position = models::Position::alibi,
          .embedding_norm = true};
}

/// Each family with its defaults, and with features of the other family.
inline std::vector<models::GPTConfig> tiny_decoders() {
  models::GPTConfig tied = tiny_config(), alibi = tiny_config(), learned = tiny_bloom();
  tied.tied = true;
  alibi.position = models::Position::alibi;
  learned.position = models::Position::learned;
  learned.embedding_norm = learned.tied = false;
  return {tiny_config(), tied, alibi, tiny_bloom(), learned};
}

/// The description of a config that a failed check prints.
inline std::string text_of(const models::GPTConfig& config) {
  return std::string(name_of(config.family)) + " " + name_of(config.position) +
         (config.tied ? " tied" : "");
}

/// A model with its parameters in plain memory.
template <class Model>
struct ModelCase {
  /// `arguments`: of Model, after the store.
  template <class... Arguments>
  explicit ModelCase(const Device& device, DType dtype, const Arguments&... arguments)
      : model(store, arguments...), source(store, device, dtype), device(device) {}

  Tape tape(TapeMode mode = TapeMode::record) { return Tape(device, &source, mode); }

  /// Multiplies the initial weights of linear layers and embeddings. A new model with small weights
  /// gives nearly equal outputs for all inputs.
  void spread(double factor) {
    for (const auto& parameter : store.parameters())
      if (parameter->init.kind == Init::Kind::normal)
        for (double& value : source.at_rest(*parameter)) value *= factor;
  }

  ParameterStore store;
  Model model;
  FakeSource source;
  Device device;
};

struct GPTCase : ModelCase<models::GPT> {
  explicit GPTCase(const models::GPTConfig& config, const Device& where = Device::cpu(),
                   DType dtype = DType::f32, double factor = 1.0,
                   const models::LoraConfig& lora = {})
      : ModelCase(where, dtype, config, models::GPTPart{}, lora) {
    spread(factor);
  }

  double loss(const Tensor& ids, const Tensor& targets, const models::ForwardPosition& place = {}) {
    Tape recording = tape();
    return gpt.loss(recording, ids, targets, place).value().item();
  }

  models::GPT& gpt = model;
};

/// Gives a model the weights of a folder.
template <class Model>
void load_weights(const WeightSource& weights, ModelCase<Model>& model) {
  for (const auto& parameter : model.store.parameters()) {
    const std::vector<float> values = weights.read(parameter->name);
    model.source.at_rest(*parameter).assign(values.begin(), values.end());
  }
}

/// The largest distance of every `stride`-th element of a gradient from the central difference of
/// `loss()`. A prime stride that divides no row length visits all columns.
template <class Loss>
double distance_from_slopes(std::vector<double>& values, const std::vector<double>& gradient,
                            size_t stride, const Loss& loss) {
  constexpr double h = 1e-5;
  double worst = gradient.size() == values.size() ? 0.0 : infinity;
  for (size_t i = 0; i < values.size(); i += stride) {
    const double value = values[i];
    values[i] = value + h;
    const double above = loss();
    values[i] = value - h;
    const double below = loss();
    values[i] = value;
    worst = std::max(worst, std::fabs((above - below) / (2 * h) - gradient[i]));
  }
  return worst;
}

/// Ids [B, T] below `vocabulary`, from a seed.
inline Tensor random_ids(int64_t B, int64_t T, int64_t vocabulary, const Device& device,
                         uint64_t seed) {
  return random_tensor({B, T}, DType::i32, device, seed, 0.0, static_cast<double>(vocabulary));
}

}  // namespace zg::testing
