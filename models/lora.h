#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"

namespace zg::models {

/// Low-rank adaptation, LoRA: Hu et al. 2021, arXiv:2106.09685. A linear layer that a target names
/// gets two matrices, NAME.lora_A.weight [rank, in] and NAME.lora_B.weight [out, rank], and
/// computes y = x W^T + b + scale drop(x) A^T B^T. A starts as U(-1 / sqrt(in), 1 / sqrt(in)), B as
/// 0. They alone are trained. All other parameters are the base: frozen, in the compute dtype,
/// without gradients and optimizer states, and not in checkpoints (ParameterStore::Options::saved),
/// which name the place that the base is read from.
struct LoraConfig {
  int64_t rank = 0;      ///< 0: no adapters, the model is trained as a whole
  float alpha = 8.0f;    ///< scale = alpha / rank
  float dropout = 0.0f;  ///< on the input of A, in training
  bool rank_stabilised =
      false;  ///< scale = alpha / sqrt(rank). Kalajdzievski 2023, arXiv:2312.03732
  /// Names of linear layers, as PEFT's target_modules: "q_proj" names each layer whose name is that
  /// or ends with ".q_proj". "all-linear" names every one but the model's last.
  std::vector<std::string> targets = {};

  bool enabled() const { return rank > 0; }
  bool operator==(const LoraConfig&) const = default;
};

inline constexpr const char* all_linear = "all-linear";

ZG_API float lora_scale(const LoraConfig& config);

/// Throws ConfigError naming the field: a rank below 1, an alpha that is not above 0, a dropout
/// outside of [0, 1), no targets, or an empty one. Nothing is checked where rank is 0.
ZG_API void validate(const LoraConfig& config);

/// Whether a target names the linear layer. `hidden`: false for a model's last layer.
ZG_API bool is_target(const LoraConfig& config, const std::string& layer, bool hidden);

/// Throws ConfigError if a target names no linear layer of a whole model; the message lists the
/// names that there are. A model calls it when its parameters are described.
ZG_API void check_targets(const LoraConfig& config, const ParameterStore& store);

/// NAME.lora_A.weight and NAME.lora_B.weight of the layer NAME.
ZG_API std::string lora_a_name(const std::string& layer);
ZG_API std::string lora_b_name(const std::string& layer);
/// NAME, of the name of either matrix; empty: the parameter is of the base.
ZG_API std::string lora_layer(const std::string& parameter);

/// The base's weights with the adapters added to them: W + scale B A, in f32. `adapters` has the
/// matrices A and B (among others, maybe). Tensors are read on request. Throws FileError for a
/// matrix A without its B or its W, or of a shape that does not fit.
ZG_API WeightSource merged(const WeightSource& base, const WeightSource& adapters,
                           const LoraConfig& config);

/// The tensors of both. FileError if they share a name.
ZG_API WeightSource joined(const WeightSource& base, const WeightSource& adapters);

}  // namespace zg::models
