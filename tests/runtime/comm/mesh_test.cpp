#include "zerograd/runtime/comm/mesh.h"

#include "tests/runtime/comm/mesh_checks.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

TEST_CASE(
    "each axis of a mesh groups the ranks that differ only in it, and stages send to neighbours") {
  for (const MeshShape shape :
       {MeshShape{1, 1, 1}, MeshShape{2, 1, 1}, MeshShape{1, 2, 1}, MeshShape{1, 4, 1},
        MeshShape{2, 2, 2}, MeshShape{2, 3, 1}, MeshShape{1, 2, 4}, MeshShape{3, 1, 2}}) {
    CAPTURE(shape.ranks());
    run_local(shape.ranks(),
              [&](Communicator& world, const Device& device) { check_mesh(world, shape, device); });
  }
}

TEST_CASE("ranks in a mesh are numbered first along the tensor axis, then data, then pipeline") {
  const MeshShape shape{.data = 2, .pipeline = 3, .tensor = 4};
  CHECK(shape.ranks() == 24);
  CHECK(shape.rank_of(0, 0, 3) == 3);
  CHECK(shape.rank_of(1, 0, 0) == 4);
  CHECK(shape.rank_of(0, 1, 0) == 8);
  CHECK(shape.rank_of(1, 2, 3) == 23);
}

TEST_CASE(
    "a mesh over counting communicators has each rank's groups and counts bytes between stages") {
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

TEST_CASE("a mesh refuses axes whose product is not the number of ranks") {
  const auto world = counting_communicator(0, 8);
  CHECK_THROWS_WITH_AS(Mesh(*world, {.data = 2, .pipeline = 3, .tensor = 1}),
                       "mesh: data 2 x pipeline 3 x tensor 1 expected to be the number of ranks, 8",
                       ConfigError);
  for (const MeshShape shape : {MeshShape{-8, -1, 1}, MeshShape{0, 1, 8}, MeshShape{1 << 30, 8, 4}})
    CHECK_THROWS_AS(Mesh(*world, shape), ConfigError);
}
