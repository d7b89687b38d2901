#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/mesh.h"

// What ranks that hold different parts of the model tell each other, as sums of integers: exact,
// and of the same size whatever they hold.
namespace zg::zero {

/// i64 sums over all ranks of a mesh that differ from this one in stage and tensor rank alone. On a
/// meta device zeros come back, after the same exchanges.
std::vector<int64_t> sum_over_parts(std::span<const int64_t> own, const Mesh& mesh,
                                    const Device& device, const std::string& name);

/// What one part of the model has to say of its gradients.
struct PartSums {
  std::vector<int64_t> limbs;  ///< of the squares that it answers for
  int index = -1;              ///< of its first parameter with a gradient that is not finite
  std::string name;            ///< of that; up to 256 bytes of it arrive
};
struct MeshSums {
  std::vector<int64_t> limbs;
  std::optional<std::string> non_finite;  ///< of the lowest stage, the first of that
};
MeshSums sum_over_parts(const PartSums& own, const Mesh& mesh, const Device& device);

}  // namespace zg::zero
