#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/zero/states/storage.h"

// Exchanges between ranks that hold different parts of the model: sums of integers, which are
// exact, and the gradients of parameters that two stages share. And the check that ranks agree on
// the model.
namespace zg::zero {

/// Throws CommError, with what each rank has, unless all ranks of `world` have the same settings
/// that decide over bits, and all ranks of `data` the same parameters. Collective.
void check_ranks_agree(const ParameterStore& store, const Config& config, Communicator& data,
                       Communicator& world);

/// Sums of i64 over the ranks of a mesh that differ from this one only in stage and tensor rank. On
/// a meta device the result is zeros, after the same exchanges.
std::vector<int64_t> sum_over_parts(std::span<const int64_t> own, const Mesh& mesh,
                                    const Device& device, const std::string& name);

/// The GradientSummary of one part of the model (one pipeline stage and tensor rank), as integers.
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

/// Parameters that the first and the last stage of a pipeline share: tied embeddings. The first
/// stage owns them. The last stage has mirrors. It sends its whole f32 gradient of each
/// micro-batch, which is added to the owner's gradient before the sum is rounded. Without a
/// pipeline the tape adds the same two gradients, so the bits are the same. Both stages use the
/// group Mesh::ends, in the order of the parameters' names.
///
/// The last stage is ahead of the first by at most stages - 1 backward passes. It has that many
/// gradients of each parameter in flight before it waits for the oldest.
class Mirrors {
 public:
  /// `mesh` may be null; then nothing is shared. Throws ConfigError if the two stages have
  /// different lists of shared parameters. Collective.
  Mirrors(const ParameterStore& store, const Mesh* mesh, const Device& device);

  bool has(const Parameter& parameter) const { return parameters_.contains(parameter.name); }
  /// Keeps a gradient until the end of the micro-batch. It is absent if backward computed none.
  void keep(const Parameter& parameter, Tensor gradient);
  struct Gradient {
    const Parameter* parameter;
    Tensor sum;  ///< f32
  };
  /// Ends a micro-batch. On the first stage it returns, for each parameter, the sum of both stages'
  /// gradients.
  std::vector<Gradient> exchange();
  /// Waits until the gradients that were sent have arrived.
  void finish();

  bool is_owner() const { return owner_; }
  /// Copies the owner's value to the mirror. `whole` is the parameter's whole value in the compute
  /// dtype, on the owner and on the mirror.
  void copy_value(const Parameter& parameter, const Tensor& whole) const;
  const std::map<std::string, const Parameter*>& parameters() const { return parameters_; }

 private:
  struct Sent {
    Tensor gradient;
    Communicator::Ticket ticket;
  };
  void check_ends(const Device& device) const;
  Communicator::Ticket broadcast(const Tensor& x, bool from_owner, const Parameter& parameter,
                                 const char* what) const;

  const Device device_;
  Communicator* ends_ = nullptr;
  bool owner_ = false;
  size_t most_on_their_way_ = 0;
  std::map<std::string, const Parameter*> parameters_;
  std::map<const Parameter*, Tensor> gradients_;  // by parameter, of this micro-batch
  std::deque<Sent> sent_;
};

}  // namespace zg::zero
