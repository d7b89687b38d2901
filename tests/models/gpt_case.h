#pragma once

#include <string>
#include <vector>

#include "models/gpt.h"
#include "tests/autograd/fake_source.h"
#include "tests/op_case.h"

// What tests of models share: a small GPT with parameters of its own.
namespace zg::testing {

inline models::GPTConfig tiny_config() {
  return {.layers = 2, .heads = 2, .width = 8, .vocabulary = 7, .block_size = 6};
}

/// Small weights let a fresh model answer nearly the same to everything; `spread` multiplies the
/// weights of linear layers and embeddings, so that what a test compares really differs.
struct GPTCase {
  explicit GPTCase(const models::GPTConfig& config, const Device& device = Device::cpu(),
                   DType dtype = DType::f32, double spread = 1.0)
      : gpt(store, config), source(store, device, dtype), device(device) {
    for (const auto& parameter : store.parameters())
      if (parameter->init.kind == Init::Kind::normal)
        for (double& value : source.at_rest(*parameter)) value *= spread;
  }

  Tape tape(TapeMode mode = TapeMode::record) { return Tape(device, &source, mode); }

  double loss(const Tensor& ids, const Tensor& targets, const models::ForwardPlace& place = {}) {
    Tape recording = tape();
    return gpt.loss(recording, ids, targets, place).value().item();
  }

  ParameterStore store;
  models::GPT gpt;
  FakeSource source;
  Device device;
};

/// Ids [B, T] below `vocabulary`, from a seed.
inline Tensor random_ids(int64_t B, int64_t T, int64_t vocabulary, const Device& device,
                         uint64_t seed) {
  return random_tensor({B, T}, DType::i32, device, seed, 0.0, static_cast<double>(vocabulary));
}

}  // namespace zg::testing
