#pragma once

#include <string>
#include <vector>

#include "tests/runtime/comm/ranks.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg::testing {

/// The ranks of a group, by their number in it.
inline std::vector<int64_t> ranks_of(Communicator& group, int rank, const Device& device) {
  const Tensor own = Tensor::full({1}, rank, DType::i64, device);
  const Tensor all = Tensor::zeros({group.size()}, DType::i64, device);
  group.wait(group.all_gather(own, all, "ranks"));
  return all.to_host<int64_t>();
}

/// Checks that every group of a mesh has the right ranks and that data arrives.
inline void check_mesh(Communicator& world, const MeshShape& shape, const Device& device) {
  const Mesh mesh(world, shape);
  const int rank = world.rank();
  expect(shape.rank_of(mesh.data_rank, mesh.stage, mesh.tensor_rank) == rank, "place");
  expect(mesh.data->rank() == mesh.data_rank && mesh.data->size() == shape.data, "data");
  expect(mesh.tensor->rank() == mesh.tensor_rank && mesh.tensor->size() == shape.tensor, "tensor");
  expect(mesh.pipeline->rank() == mesh.stage && mesh.pipeline->size() == shape.pipeline, "stage");
  std::vector<int64_t> data, tensor, pipeline;
  for (int i = 0; i < shape.data; ++i)
    data.push_back(shape.rank_of(i, mesh.stage, mesh.tensor_rank));
  for (int i = 0; i < shape.tensor; ++i)
    tensor.push_back(shape.rank_of(mesh.data_rank, mesh.stage, i));
  for (int i = 0; i < shape.pipeline; ++i)
    pipeline.push_back(shape.rank_of(mesh.data_rank, i, mesh.tensor_rank));
  expect(ranks_of(*mesh.data, rank, device) == data, "data ranks");
  expect(ranks_of(*mesh.tensor, rank, device) == tensor, "tensor ranks");
  expect(ranks_of(*mesh.pipeline, rank, device) == pipeline, "stages");

  // Sends a number through the stages, each adds its own number, and back.
  const Tensor x = Tensor::full({2}, mesh.stage, DType::f32, device);
  const Tensor received = Tensor::zeros({2}, DType::f32, device);
  const auto pass = [&](Communicator* in, int sender, Communicator* out, int own, double number) {
    if (in) {
      in->wait(in->broadcast(received, sender, "activations"));
      number += received.to_doubles()[0];
    }
    const Tensor sent = Tensor::full({2}, number, DType::f32, device);
    if (out) out->wait(out->broadcast(sent, own, "activations"));
    return number;
  };
  const int stages = shape.pipeline;
  const double below = pass(mesh.previous.forward.get(), 0, mesh.next.forward.get(), 0, mesh.stage);
  const auto sum_below = [](int n) { return static_cast<double>(n * (n - 1)) / 2.0; };
  expect(below == sum_below(mesh.stage + 1), "forward");
  const double above =
      pass(mesh.next.backward.get(), 1, mesh.previous.backward.get(), 1, mesh.stage);
  expect(above == sum_below(stages) - sum_below(mesh.stage), "backward");
  expect(!mesh.previous.forward == mesh.is_first_stage(), "previous");
  expect(!mesh.previous.backward == mesh.is_first_stage(), "previous");
  expect(!mesh.next.forward == mesh.is_last_stage(), "next");
  expect(!mesh.next.backward == mesh.is_last_stage(), "next");
  const bool at_an_end = stages > 1 && (mesh.is_first_stage() || mesh.is_last_stage());
  expect(!mesh.ends == !at_an_end, "ends");
  if (mesh.ends)
    expect(ranks_of(*mesh.ends, rank, device) == std::vector{pipeline.front(), pipeline.back()},
           "end ranks");
}

}  // namespace zg::testing
