#pragma once

#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/mesh.h"
#include "zerograd/zero/storage.h"

namespace zg::zero {

/// Parameters that the first and the last stage of a pipeline share: tied embeddings. The first
/// stage owns them. The last one has mirrors, whose whole f32 gradient of each micro-batch joins
/// the owner's before that is rounded: on one stage the tape adds the two so, in either order the
/// same bits. In the channel Mesh::ends the two sides go through their parameters in order of
/// names.
///
/// The last stage is ahead of the first by stages - 1 backward passes at most, and keeps as many
/// gradients on their way rather than wait.
class Mirrors {
 public:
  /// Null: there is no mesh, and nothing is shared. ConfigError when the two ends differ in what
  /// they share. Collective.
  Mirrors(const ParameterStore& store, const Mesh* mesh, const Device& device);

  bool has(const Parameter& parameter) const { return parameters_.contains(parameter.name); }
  /// The whole gradient of this micro-batch, absent where none arose: until the end of it.
  void keep(const Parameter& parameter, Tensor gradient);
  struct Gradient {
    const Parameter* parameter;
    Tensor sum;  ///< f32
  };
  /// The end of a micro-batch. On the first stage, both stages' gradients of each parameter.
  std::vector<Gradient> exchange();
  /// What was sent has arrived.
  void finish();

  /// Values from the owner's: `whole` is the parameter's, in the compute dtype, on either side.
  bool is_owner() const { return owner_; }
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
  std::map<const Parameter*, Tensor> gradients_;  // of this micro-batch
  std::deque<Sent> sent_;
};

}  // namespace zg::zero
