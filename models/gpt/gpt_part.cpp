#include "zerograd/models/gpt/gpt_part.h"

#include <string>
#include <vector>

#include "zerograd/models/gpt/gpt.h"
#include "zerograd/runtime/error.h"

namespace zg::models {

double layer_flops(const GPTConfig& config) {
  const double C = static_cast<double>(config.width), T = static_cast<double>(config.block_size);
  return 2.0 * (12.0 * C * C + T * C);
}

double head_flops(const GPTConfig& config) {
  return 2.0 * static_cast<double>(config.vocabulary) * static_cast<double>(config.width);
}

GPTPart part_of(const Mesh& mesh, const GPTConfig& config, DType activations,
                bool sequence_parallel) {
  const int stages = mesh.shape.pipeline;
  if (config.layers < stages)
    throw ConfigError("gpt: pipeline: expected at most the model's " +
                      std::to_string(config.layers) + " layers, got " + std::to_string(stages) +
                      " stages");
  const std::vector<double> costs(static_cast<size_t>(config.layers), layer_flops(config));
  const std::vector<int64_t> borders =
      balanced_stages(costs, /*first=*/0.0, head_flops(config), stages);
  const auto stage = static_cast<size_t>(mesh.stage);
  return {.mesh = &mesh,
          .first_layer = borders[stage],
          .end_layer = borders[stage + 1],
          .activations = activations,
          .sequence_parallel = sequence_parallel};
}

}  // namespace zg::models
