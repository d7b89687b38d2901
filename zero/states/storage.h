#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/partition.h"

namespace zg::zero {

/// A flat array of parameters: the whole array or, at stage 3 while it is not used, only this
/// rank's shard.
struct Values {
  FlatUnit flat;
  Tensor shard;  ///< a view of `whole` if `whole` is kept
  Tensor whole;  ///< absent while only the shard is held

  bool empty() const { return flat.pieces.empty(); }
};

/// The memory of one rank for a list of parameters, one flat buffer for each kind of data: the
/// parameters and, as far as the ZeRO stage assigns them to this rank, master weights, states of
/// the optimizer and gradient accumulators. A storage holds one unit, or at stage 3 all small
/// parameters of a store.
struct Storage {
  struct Placement {
    const Config& config;
    const Optimizers& optimizers;
    int rank, world;
    const Device& device;
    bool stays_whole;            ///< parameters are never evicted
    bool rounds_at_use;          ///< see Storage::rounds_at_use
    Space parameter, optimizer;  ///< location of the parameters; of the optimizer states
  };
  Storage(std::string name, std::span<const Parameter* const> parameters, const Placement& place);

  /// Initialises parameters and master weights from (seed, name, element), rounded to `load`, for
  /// the elements on this rank. States are already zero. No collective is needed.
  void initialise(uint64_t seed, DType load);

  /// Allocates the accumulators, if they are absent. Their elements are undefined, except that the
  /// padding between parameters is zero.
  void open_sums();
  /// Sets accumulators that got no gradient in this step to zero.
  void zero_unfolded(Stream& stream);

  /// Lends the accumulator memory of a piece, so that the first gradient of a step is computed in
  /// place. The memory is lent as long as a copy of the returned tensor exists. Absent if it is
  /// lent already, if a gradient was added to it, or if the accumulators are not f32 on the device.
  Tensor lend_sum(size_t piece);
  bool is_lent(size_t piece) const { return !lent[piece].expired(); }
  /// Moves the accumulators to new memory and leaves the old memory to the tensors it is lent to.
  /// Call it before anything else is written to a lent accumulator. Needed when a second tape runs
  /// backward before the first one has released its gradient memory.
  void leave_lent(Stream& stream);
  /// Releases accumulators on the device that hold no gradient and are not lent, so that
  /// activations may use their memory until the next gradient.
  void release_sums();
  void clear() {
    folded.assign(pieces.size(), false);
    updated = false;
  }

  /// With `rounds_at_use`: allocates the updated parameters and rounds the master weights to them,
  /// if they are absent; frees them.
  void open_values();
  void free_values();

  /// Rounds master weights [begin, end) to the compute dtype and stores them as parameters. Indices
  /// are those of the trainable flat array, inside the state's range. Does nothing if the
  /// parameters are the master weights, or absent.
  void round_masters(int64_t begin, int64_t end);
  /// The memory to which the optimizer writes the parameters of a range of the state. Absent if the
  /// parameters are the master weights, or absent.
  Tensor low_precision(int64_t begin, int64_t numel) const;

  /// A state of the optimizers, Optimizers::arrays(): of each element, in the flat array from
  /// `begin` on, or with shapes of its own.
  struct State {
    std::string name;
    Tensor tensor = {};  ///< absent: this rank has no element of it
    int64_t begin = 0;
    bool is_whole = false;  ///< all parameters of the storage have it
    /// With shapes of its own: the parameters that this rank has it of, their starts in `tensor`,
    /// which are multiples of the alignment, and the shapes.
    struct Part {
      int64_t begin;
      Shape shape;
    };
    std::map<const Parameter*, Part> parts = {};
  };
  /// A state with a shape of its own, in that shape. Absent if this rank has none.
  Tensor shaped(size_t state, const Parameter& parameter) const;
  /// Its index in `states`, for a parameter that is updated; states.size(): there is none.
  size_t index_of(const Parameter& parameter, std::string_view state) const;

  std::string name;
  Device device;
  DType compute;
  int rank;
  bool stays_whole;
  /// The updated parameters are absent from the last read in a step's last backward, or from its
  /// update, to the next use, which rounds the master weights again. So gradients can use their
  /// memory.
  bool rounds_at_use;
  bool values_are_masters;  ///< compute and optimizer dtypes are the same
  Values trainable, frozen;
  /// Master weights and states: range in the flat array.
  int64_t state_begin = 0, state_numel = 0;
  int64_t sums_begin = 0;  ///< `sums`: start in the flat array
  DType sums_dtype;
  Space sums_space;                     ///< device: also where `sums` is absent
  std::vector<FlatUnit::Piece> pieces;  ///< the pieces in this shard
  PieceIndex index_in_shard{pieces}, index_in_flat{trainable.flat.pieces};
  Tensor masters;             ///< optimizer dtype
  std::vector<State> states;  ///< by Optimizers::arrays()
  const Optimizers* optimizers;
  Tensor sums;                              ///< gradient accumulators; see release_sums()
  Tensor local_sums;                        ///< f32, whole; with reduce_at_boundary
  std::vector<bool> folded;                 ///< by piece: its accumulator holds a gradient
  bool summed = false;                      ///< all gradients of the current micro-batch are added
  bool updated = false;                     ///< by Speculation, in this step
  std::vector<std::weak_ptr<Buffer>> lent;  ///< by piece: the buffer that lend_sum() returned

 private:
  void add_shaped(State& state, size_t index, const Placement& place);
};

/// Returns a tensor in the memory of `place` with a buffer object of its own. So a tape can see
/// whether it is the only user and may add in place. `borrowed` expires when the last user releases
/// the tensor.
Tensor lend(const Tensor& place, const Shape& shape, std::weak_ptr<Buffer>& borrowed);

/// Decides in which space the parameters and states of each storage are stored: the space of the
/// config, except for the share that optimizer_ratio and parameters_on_host exclude. Call next()
/// for each storage, in the same order on every rank.
class Placements {
 public:
  Placements(const OffloadOptions& offload, const ParameterStore& store, int world);

  struct Placement {
    Space parameter, optimizer;
  };
  Placement next(std::span<const Parameter* const> parameters, bool stays_whole);

 private:
  const OffloadOptions& offload_;
  const int world_;
  double states_left_ = 0.0;  // elements whose states may still be stored in `optimizer`
  int64_t host_left_;  // elements of this rank's parameters that may still be stored on the host
};

}  // namespace zg::zero
