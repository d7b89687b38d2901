#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/mesh.h"

// Exchanges between ranks that hold different parts of the model, as sums of integers. They are
// exact and of a fixed size.
namespace zg::zero {

/// Sums of i64 over the ranks of a mesh that differ from this one only in stage and tensor rank. On
/// a meta device the result is zeros, after the same exchanges.
std::vector<int64_t> sum_over_parts(std::span<const int64_t> own, const Mesh& mesh,
                                    const Device& device, const std::string& name);

/// Gradient summary of one part of the model (one pipeline stage and tensor rank).
struct PartSums {
  std::vector<int64_t> limbs;  ///< sum of squares of the gradients counted on this rank
  int index = -1;              ///< first parameter with a gradient that is not finite; -1: none
  std::string name;            ///< name of that parameter; at most 256 bytes are sent
};
struct MeshSums {
  std::vector<int64_t> limbs;
  std::optional<std::string> non_finite;  ///< the first such parameter of the lowest stage
};
MeshSums sum_over_parts(const PartSums& own, const Mesh& mesh, const Device& device);

}  // namespace zg::zero
