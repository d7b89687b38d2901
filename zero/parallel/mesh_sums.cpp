#include "zerograd/zero/parallel/mesh_sums.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace zg::zero {
namespace {

constexpr size_t name_bytes = 256;
constexpr size_t words = 1 + name_bytes / sizeof(int64_t);  // parameter index + 1, then its name

}  // namespace

std::vector<int64_t> sum_over_parts(std::span<const int64_t> own, const Mesh& mesh,
                                    const Device& device, const std::string& name) {
  std::vector<int64_t> values(own.begin(), own.end());
  const PurposeScope purpose(device, Purpose::comm);
  const Tensor sum = Tensor::from(values, {static_cast<int64_t>(values.size())}, device);
  if (mesh.shape.tensor > 1) mesh.tensor->wait(mesh.tensor->all_reduce(sum, name));
  if (mesh.shape.pipeline > 1) mesh.pipeline->wait(mesh.pipeline->all_reduce(sum, name));
  return sum.to_host<int64_t>();
}

MeshSums sum_over_parts(const PartSums& own, const Mesh& mesh, const Device& device) {
  const size_t parts = static_cast<size_t>(mesh.shape.pipeline * mesh.shape.tensor);
  const size_t limbs = own.limbs.size();
  std::vector<int64_t> values = own.limbs;
  values.resize(limbs + parts * words);
  if (own.index >= 0) {
    const int part = mesh.stage * mesh.shape.tensor + mesh.tensor_rank;
    int64_t* to = values.data() + limbs + static_cast<size_t>(part) * words;
    to[0] = own.index + 1;
    std::memcpy(to + 1, own.name.data(), std::min(own.name.size(), name_bytes));
  }
  values = sum_over_parts(values, mesh, device, "gradient norm of the parts");
  MeshSums sums{.limbs = {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(limbs)}};
  int64_t first = std::numeric_limits<int64_t>::max();
  for (size_t part = 0; part < parts; ++part) {
    const int64_t* from = values.data() + limbs + part * words;
    const size_t tensor = static_cast<size_t>(mesh.shape.tensor);
    if (part % tensor == 0 && sums.non_finite) break;  // a lower stage had one
    if (from[0] == 0 || from[0] >= first) continue;
    first = from[0];
    char name[name_bytes + 1] = {};
    std::memcpy(name, from + 1, name_bytes);
    sums.non_finite = name;
  }
  return sums;
}

}  // namespace zg::zero
