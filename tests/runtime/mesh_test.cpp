#include "runtime/mesh.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "runtime/error.h"

using namespace zg;

namespace {

void expect(bool holds, const std::string& what) {
  if (!holds) throw ShapeError(what);
}

/// The ranks of a group, by their number in it.
std::vector<int64_t> ranks_of(Communicator& group, int rank, const Device& device) {
  const Tensor own = Tensor::full({1}, rank, DType::i64, device);
  const Tensor all = Tensor::zeros({group.size()}, DType::i64, device);
  group.wait(group.all_gather(own, all, "ranks"));
  return all.to_host<int64_t>();
}

void check_axes(Communicator& world, const MeshShape& shape, const Device& device) {
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

  // Down the stages, each adding its number, and up again.
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
  expect(below == mesh.stage * (mesh.stage + 1) / 2, "forward");
  const double above =
      pass(mesh.next.backward.get(), 1, mesh.previous.backward.get(), 1, mesh.stage);
  expect(above == stages * (stages - 1) / 2 - mesh.stage * (mesh.stage - 1) / 2, "backward");
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

}  // namespace

TEST_CASE("each axis of a mesh holds the ranks that differ in nothing else, and stages reach on") {
  for (const MeshShape shape :
       {MeshShape{1, 1, 1}, MeshShape{2, 1, 1}, MeshShape{1, 2, 1}, MeshShape{1, 4, 1},
        MeshShape{2, 2, 2}, MeshShape{2, 3, 1}, MeshShape{1, 2, 4}, MeshShape{3, 1, 2}}) {
    CAPTURE(shape.ranks());
    run_local(shape.ranks(),
              [&](Communicator& world, const Device& device) { check_axes(world, shape, device); });
  }
}

TEST_CASE("ranks of one tensor group sit side by side, then those of one data group") {
  const MeshShape shape{.data = 2, .pipeline = 3, .tensor = 4};
  CHECK(shape.ranks() == 24);
  CHECK(shape.rank_of(0, 0, 3) == 3);
  CHECK(shape.rank_of(1, 0, 0) == 4);
  CHECK(shape.rank_of(0, 1, 0) == 8);
  CHECK(shape.rank_of(1, 2, 3) == 23);
}

TEST_CASE("a mesh of counting ranks is that of real ones") {
  const MeshShape shape{.data = 2, .pipeline = 2, .tensor = 2};
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto world = counting_communicator(rank, shape.ranks());
    const Mesh mesh(*world, shape);
    CHECK(mesh.data->rank() == mesh.data_rank);
    CHECK(mesh.tensor->rank() == mesh.tensor_rank);
    CHECK(mesh.pipeline->rank() == mesh.stage);
    const auto& link = mesh.is_first_stage() ? mesh.next : mesh.previous;
    CHECK(link.forward->rank() == mesh.stage);
    const Tensor x = Tensor::zeros({6}, DType::bf16, Device::meta(rank));
    link.forward->broadcast(x, 0, "activations");
    CHECK(link.forward->wire()[static_cast<size_t>(Collective::broadcast)].bytes ==
          (mesh.is_first_stage() ? 0 : 12));
  }
}

TEST_CASE("axes that do not multiply to the ranks are refused") {
  const auto world = counting_communicator(0, 8);
  CHECK_THROWS_WITH_AS(Mesh(*world, {.data = 2, .pipeline = 3, .tensor = 1}),
                       "mesh: data 2 x pipeline 3 x tensor 1 expected to be the number of ranks, 8",
                       ConfigError);
  for (const MeshShape shape : {MeshShape{-8, -1, 1}, MeshShape{0, 1, 8}, MeshShape{1 << 30, 8, 4}})
    CHECK_THROWS_AS(Mesh(*world, shape), ConfigError);
}
