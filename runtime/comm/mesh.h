#pragma once

#include <memory>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"

namespace zg {

/// How many ranks each axis has. Rank r is tensor rank r % tensor, data rank r / tensor % data and
/// stage r / (tensor * data): those that speak most sit side by side, as DeepSpeed and Megatron
/// place them.
struct MeshShape {
  int data = 1, pipeline = 1, tensor = 1;

  int ranks() const { return data * pipeline * tensor; }
  int rank_of(int data_rank, int stage, int tensor_rank) const {
    return (stage * data + data_rank) * tensor + tensor_rank;
  }
};

/// The ranks arranged as data x pipeline x tensor, seen from one of them; each axis is a
/// Communicator of the ranks that differ in nothing else: `world` itself where that is all. Axes of
/// one rank send nothing, and gather and fold what is its own.
struct ZG_API Mesh {
  /// Collective. ConfigError unless the axes multiply to the number of ranks.
  Mesh(Communicator& world, const MeshShape& shape);

  Communicator& world;
  MeshShape shape;
  int data_rank, stage, tensor_rank;
  Communicator *data = nullptr, *tensor = nullptr;
  Communicator* pipeline = nullptr;  ///< all stages, in their order

  /// Channels of two: the lower stage is rank 0 of each. Absent at the ends. What goes forward and
  /// what comes back run beside each other.
  struct Link {
    std::unique_ptr<Communicator> forward, backward;
  };
  Link previous, next;
  /// First and last stage, of a pipeline of two stages or more, on these two: for what they share.
  std::unique_ptr<Communicator> ends;

  bool is_first_stage() const { return stage == 0; }
  bool is_last_stage() const { return stage + 1 == shape.pipeline; }

 private:
  std::vector<std::unique_ptr<Communicator>> axes_;
};

}  // namespace zg
