#include "zerograd/runtime/comm/mesh.h"

#include <string>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

MeshShape checked(const MeshShape& shape, int ranks) {
  const bool positive = shape.data > 0 && shape.pipeline > 0 && shape.tensor > 0;
  const auto product = static_cast<int64_t>(shape.data) * shape.pipeline;
  if (positive && product <= ranks && product * shape.tensor == ranks) return shape;
  raise<ConfigError>(
      "mesh: data {} x pipeline {} x tensor {} expected to be the number of ranks, {}", shape.data,
      shape.pipeline, shape.tensor, ranks);
}

}  // namespace

Mesh::Mesh(Communicator& all, const MeshShape& wanted)
    : world(all),
      shape(checked(wanted, all.size())),
      data_rank(all.rank() / shape.tensor % shape.data),
      stage(all.rank() / (shape.tensor * shape.data)),
      tensor_rank(all.rank() % shape.tensor) {
  const auto along = [&](int size, const auto& rank_of, const std::string& name) {
    if (size == shape.ranks()) return &world;
    std::vector<int> members;
    members.reserve(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) members.push_back(rank_of(i));
    axes_.push_back(world.group(members, name));
    return axes_.back().get();
  };
  const auto rank_of_stage = [&](int s) { return shape.rank_of(data_rank, s, tensor_rank); };
  tensor = along(
      shape.tensor, [&](int t) { return shape.rank_of(data_rank, stage, t); }, "tensor");
  data = along(
      shape.data, [&](int d) { return shape.rank_of(d, stage, tensor_rank); }, "data");
  pipeline = along(shape.pipeline, rank_of_stage, "pipeline");
  // Links are made in the order of stages, so a stage waits only for the previous stage.
  const auto link = [&](int from) {
    const int members[] = {rank_of_stage(from), rank_of_stage(from + 1)};
    const std::string lower = std::to_string(from), upper = std::to_string(from + 1);
    Link made;
    made.forward = world.group(members, fmt::format("stage {} to {}", lower, upper));
    made.backward = world.group(members, fmt::format("stage {} to {}", upper, lower));
    return made;
  };
  if (!is_first_stage()) previous = link(stage - 1);
  if (!is_last_stage()) next = link(stage);
  if (shape.pipeline == 1 || !(is_first_stage() || is_last_stage())) return;
  const int members[] = {rank_of_stage(0), rank_of_stage(shape.pipeline - 1)};
  ends = world.group(members, "first and last stage");
}

}  // namespace zg
