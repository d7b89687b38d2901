#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/optimizer/lanes.h"
#include "zerograd/zero/optimizer/update.h"

namespace zg::zero {

/// Updates offloaded states during backward, before the norm of all gradients is known, as if no
/// gradient were clipped. So the disk transfers states while the processor computes. Results go
/// into shadows, second copies of the states, which themselves stay as they are. When the norm is
/// known and the step is the expected one, each state and its shadow are exchanged; otherwise the
/// step is redone from the states. So the bits are those of a step without speculation. An
/// exception, a kill or a save before the exchange finds the states of the last step.
///
/// A storage has a shadow if its states are offloaded and its gradients are not in a file, if all
/// its optimizers are fused and take ranges of elements, and, at stage 0, on one rank: several
/// exchange gradients in the step. After two redone steps in a row the next 2 are not speculated,
/// after each further one 4, 8, ... up to 1024. Allocations are the same in all of these steps.
class Speculation {
 public:
  /// Allocates shadows of at most `config.offload.speculation` bytes, for the storages that
  /// backward finishes first. The storages from index `units` on have parameters of several units.
  Speculation(std::vector<Storage>& storages, size_t units, const Config& config,
              const Device& device, int ranks);

  /// The step that will follow the last of `micro_batches` micro-batches of this rank.
  void expect(int64_t micro_batches, const OptimizerStep& step);
  /// A forward or backward begins, after `done` micro-batches of the step. That of the last one
  /// starts to read.
  void begin(int64_t done);
  /// Updates the next chunk of states if its gradients are complete and the states are read.
  /// `reader` as in update().
  void advance(StateReader* reader);
  void complete(StateReader* reader);  ///< backward has ended: updates the other chunks
  /// Exchanges states and shadows if this is the expected step, after `micro_batches`. Returns true
  /// if it must be redone. Does not wait for the last writes, which continue during the next
  /// forward.
  bool settle(int64_t micro_batches, const OptimizerStep& step, StateReader* reader);
  void cancel();  ///< the states were changed, or the step was dropped

  int64_t redone() const { return redone_; }
  const SwapCount& redo_io() const { return redo_io_; }
  std::vector<Tensor> shadows() const;
  const std::shared_ptr<StreamingBuffers>& buffers() const { return buffers_; }

 private:
  struct Shadow {
    Storage* storage;
    StateTensors tensors;  // without gradient accumulators
  };
  struct Work {
    size_t shadow;  // its index
    Chunk chunk;
  };
  struct Expected {
    int64_t micro_batches;
    OptimizerStep step;
  };
  void update_next(StateReader* reader);
  void exchange(StateReader* reader);

  const Config& config_;
  const Device device_;
  std::vector<Shadow> shadows_;
  std::vector<Work> work_;  // in the order in which backward completes gradients
  size_t next_ = 0;         // in work_
  std::optional<Expected> expected_;
  const std::shared_ptr<StreamingBuffers> buffers_;
  std::unique_ptr<Streaming> streaming_;  // null except from begin() to settle()
  int64_t redone_ = 0, in_a_row_ = 0;     // redone steps: all, and since one that was not
  int64_t pause_ = 0;                     // steps that are not speculated yet
  SwapCount redo_io_;
};

}  // namespace zg::zero
