#pragma once

#include <cstdint>

#include "zerograd/autograd/pipeline.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg::models {

struct GPTConfig;

/// Which part of a model a rank has: layers [first_layer, end_layer), with the embedding where they
/// begin and the head where they end, and of each layer what its tensor rank has.
struct GPTPart {
  const Mesh* mesh = nullptr;               ///< null: the whole model; it must outlive the model
  int64_t first_layer = 0, end_layer = -1;  ///< -1: to the last layer
  DType activations = DType::f32;           ///< dtype of what goes from stage to stage
  /// Between the split layers each tensor rank has its part of the tokens of loss().
  bool sequence_parallel = false;
};

/// The part of this rank of a mesh: stages that cost equally many operations, as near as whole
/// layers can. ConfigError when there are fewer layers than stages, or heads that tensor ranks
/// cannot share.
ZG_API GPTPart part_of(const Mesh& mesh, const GPTConfig& config, DType activations,
                       bool sequence_parallel = false);

/// Multiplications and additions of matrix products for one token, forward: of a layer with what
/// its attention does over half the block on average, and of the head.
ZG_API double layer_flops(const GPTConfig& config);
ZG_API double head_flops(const GPTConfig& config);

}  // namespace zg::models
