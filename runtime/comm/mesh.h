#pragma once

#include <memory>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"

namespace zg {

/// The number of ranks on each axis. Rank r is tensor rank r % tensor, data rank r / tensor % data
/// and pipeline stage r / (tensor * data), as in DeepSpeed and Megatron: ranks that exchange most
/// have adjacent numbers.
struct MeshShape {
  int data = 1, pipeline = 1, tensor = 1;

  int ranks() const { return data * pipeline * tensor; }
  int rank_of(int data_rank, int stage, int tensor_rank) const {
    return (stage * data + data_rank) * tensor + tensor_rank;
  }
};

/// One rank's view of all ranks, arranged as data x pipeline x tensor. Each axis is a Communicator
/// of the ranks that differ only in their position on this axis. It is `world` itself if all ranks
/// are on one axis. Collectives on an axis with one rank send nothing: they use this rank's data
/// alone.
struct ZG_API Mesh {
  /// Collective. Throws ConfigError unless the product of the axes is the number of ranks.
  Mesh(Communicator& world, const MeshShape& shape);

  Communicator& world;
  MeshShape shape;
  int data_rank, stage, tensor_rank;
  Communicator *data = nullptr, *tensor = nullptr;
  Communicator* pipeline = nullptr;  ///< all stages, in order

  /// Two groups that connect this stage with a neighbour: one for activations (forward), one for
  /// gradients (backward), so that both can be sent at the same time. The lower stage is rank 0 in
  /// each. Absent at the ends of the pipeline.
  struct Link {
    std::unique_ptr<Communicator> forward, backward;
  };
  Link previous, next;
  /// Group of the first and the last stage, on these two stages only: for tied embeddings, which
  /// both stages have. Absent in a pipeline of one stage.
  std::unique_ptr<Communicator> ends;

  bool is_first_stage() const { return stage == 0; }
  bool is_last_stage() const { return stage + 1 == shape.pipeline; }

 private:
  std::vector<std::unique_ptr<Communicator>> axes_;
};

}  // namespace zg
