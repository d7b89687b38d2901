#pragma once

#include <cstdint>

#include "zerograd/autograd/tape.h"
#include "zerograd/models/pipeline_schedule.h"
#include "zerograd/runtime/mesh.h"

namespace zg::models {

/// What one stage does with a micro-batch.
class ZG_API PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// Asked before each forward in its turn and, where all forwards come first (GPipe), before each
  /// backward: false ends the step there. All stages must answer alike for the same question.
  /// Under 1F1B the micro-batches that have begun are finished; under GPipe they are dropped.
  virtual bool goes_on(int64_t /*micro_batch*/) { return true; }
  virtual Tape tape() = 0;
  /// From what the stage before made, absent on the first, to what the next one takes, or to the
  /// loss on the last.
  virtual Var forward(Tape& tape, const Var& input, int64_t micro_batch) = 0;
  /// `gradient` of the output; absent on the last stage: of the loss, which begins.
  virtual void backward(Tape& tape, const Var& output, const Tensor& gradient,
                        int64_t micro_batch) = 0;
};

/// What passes between stages: one for each micro-batch, all alike.
struct StageOutput {
  Shape shape;
  DType dtype = DType::f32;
};

/// Seconds of a stage in a step.
struct PipelineTimes {
  double total = 0.0, idle = 0.0;  ///< idle: it waited for what other stages make
};

/// Runs a step's micro-batches through this rank's stage, each on a tape of its own. Outputs go to
/// the next stage and gradients back on the channels' workers: what the next action needs is asked
/// for before this one begins, and nothing waits for a peer to take what it was sent until its
/// memory is given back. One stage is the same code without messages. Collective over the stages.
ZG_API PipelineTimes run_pipeline(const Mesh& mesh, PipelineSchedule schedule,
                                  int64_t micro_batches, const StageOutput& between,
                                  const Device& device, PipelineStage& stage);

/// For passes that record nothing: what the stage before made, and the way to the next one.
/// Synchronous.
ZG_API Tensor receive_activation(const Mesh& mesh, const StageOutput& between,
                                 const Device& device);
ZG_API void send_activation(const Mesh& mesh, const Tensor& output);

}  // namespace zg::models
