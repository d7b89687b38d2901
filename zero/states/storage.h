#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/tensor.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/partition.h"

namespace zg::zero {

/// One flat array of parameter values: the whole array, or only this rank's shard while it is not
/// used.
struct Values {
  FlatUnit flat;
  Tensor shard;  ///< a view of `whole` if `whole` is kept
  Tensor whole;  ///< absent while only the shard is held

  bool empty() const { return flat.pieces.empty(); }
};

/// The memory of one rank for some parameters, one flat buffer for each kind: the values and, as
/// far as the ZeRO stage assigns them to this rank, master weights, moments and gradient
/// accumulators. A storage holds one unit, or at stage 3 all small parameters of a store.
struct Storage {
  struct Placement {
    const Config& config;
    int rank, world;
    const Device& device;
    bool stays_whole;            ///< values are never evicted
    Space parameter, optimizer;  ///< location of the values; of the optimizer states
  };
  Storage(std::string name, std::span<const Parameter* const> parameters, const Placement& place);

  /// Initialises values and masters from (seed, name, element), rounded to `load`, for the elements
  /// held here. Moments and accumulators are already zero. Each rank computes whole values locally,
  /// without an exchange.
  void initialise(uint64_t seed, DType load);

  /// Zeroes the accumulators without a gradient in this step: their memory is undefined until then.
  void zero_unfolded(Stream& stream);

  /// Lends the accumulator memory of a piece, so that the first gradient of a step is computed in
  /// place. It is lent while a copy of the tensor lives. Absent if it is lent already, if a
  /// gradient was folded into it, and unless the accumulators are f32 on the device.
  Tensor lend_sum(size_t piece);
  bool is_lent(size_t piece) const { return !lent[piece].expired(); }
  /// Moves the accumulators to new memory and leaves the old memory to the tensors it is lent to.
  /// Call it before anything else is written to a lent accumulator. Needed when a second tape runs
  /// backward before the first one has released its gradient memory.
  void leave_lent(Stream& stream);
  void clear() { folded.assign(pieces.size(), false); }

  /// Rounds masters [begin, end) to the compute dtype and stores them as values. Indices are those
  /// of the trainable flat array, inside the state's range. Does nothing where values are the
  /// masters.
  void round_masters(int64_t begin, int64_t end);
  /// The memory where AdamW writes the values of a range of the state. Absent where masters are
  /// values.
  Tensor low_precision(int64_t begin, int64_t numel) const;

  std::string name;
  DType compute;
  int rank;
  bool stays_whole;
  bool values_are_masters;  ///< compute and optimizer dtypes are the same
  Values trainable, frozen;
  int64_t state_begin = 0, state_numel = 0;  ///< masters, moments: range in the flat array
  int64_t sums_begin = 0;                    ///< `sums`: start in the flat array
  std::vector<FlatUnit::Piece> pieces;       ///< the pieces in this shard
  Tensor masters;                            ///< optimizer dtype
  Tensor moment1, moment2;                   ///< optimizer dtype
  Tensor sums;                               ///< gradient accumulators, since clear()
  Tensor local_sums;                         ///< f32, whole; with reduce_at_boundary
  std::vector<bool> folded;                  ///< by piece: its accumulator holds a gradient
  std::vector<std::weak_ptr<Buffer>> lent;   ///< by piece: the buffer that lend_sum() returned
};

/// Returns a tensor in the memory of `place` with a buffer of its own, so a tape can see whether it
/// is the only user and may add in place. `borrowed` expires with the last user.
Tensor lend(const Tensor& place, const Shape& shape, std::weak_ptr<Buffer>& borrowed);

/// Decides in which space each storage's values and states are kept: the config's, except for the
/// share that optimizer_ratio and parameters_on_host exclude. next() is called for one storage
/// after another, in the same order on every rank.
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
  int64_t host_left_;         // elements of this rank's values that may still be stored on the host
};

}  // namespace zg::zero
