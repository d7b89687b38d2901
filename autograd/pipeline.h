#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg {

/// The order in which a pipeline stage processes the micro-batches of a step. Both run the backward
/// passes in rising order of the micro-batches, so both give the same bits.
enum class PipelineSchedule : uint8_t {
  /// A backward pass runs as soon as its gradient arrives. A stage that s stages follow holds at
  /// most s + 1 micro-batches. Narayanan et al. 2021, arXiv:2104.04473.
  one_f_one_b,
  gpipe  ///< all forward, then all backward. Huang et al. 2019, arXiv:1811.06965
};

struct PipelineAction {
  enum class Kind : uint8_t { forward, backward } kind;
  int64_t micro_batch;
  bool operator==(const PipelineAction&) const = default;
};

/// The order in which stage `stage` of `stages` works on the micro-batches of a step.
ZG_API std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, int stages,
                                                    int stage, int64_t micro_batches);

/// The largest number of micro-batches that a stage holds at one time, after forward and before
/// backward.
ZG_API int64_t max_in_flight(PipelineSchedule schedule, int stages, int stage,
                             int64_t micro_batches);

/// The fraction of a step in which a stage waits if all stages take equal time and messages take
/// none: (p - 1) / (m + p - 1) for p stages and m micro-batches, for both schedules.
ZG_API double pipeline_bubble(int stages, int64_t micro_batches);

/// Divides layers into contiguous stages so that the most expensive stage costs as little as
/// possible. Of equally good divisions it takes the one with the smallest sum of squared costs,
/// then the one with more layers in the first stages. `costs` has one number per layer; `first` and
/// `last` are added to the first and the last stage. Returns stages + 1 borders, from 0 to the
/// number of layers; each stage has at least one layer. Throws ConfigError when there are fewer
/// layers than stages.
ZG_API std::vector<int64_t> balanced_stages(std::span<const double> costs, double first,
                                            double last, int stages);

/// One rank's work on a micro-batch: its stage of the model.
class ZG_API PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// Called before each forward pass and, with GPipe, also before each backward pass. Returning
  /// false ends the step at this point. All stages must return the same value for the same call.
  /// With 1F1B the micro-batches that have begun are completed; with GPipe they are dropped.
  virtual bool goes_on(int64_t /*micro_batch*/) { return true; }
  virtual Tape tape() = 0;
  /// `input` is the output of the previous stage, absent on the first stage. Returns the input of
  /// the next stage or, on the last stage, the loss.
  virtual Var forward(Tape& tape, const Var& input, int64_t micro_batch) = 0;
  /// `gradient` is that of `output`; absent on the last stage, whose output is the loss.
  virtual void backward(Tape& tape, const Var& output, const Tensor& gradient,
                        int64_t micro_batch) = 0;
};

/// Shape and dtype of the tensor that is sent between two stages, equal for all micro-batches.
struct StageOutput {
  Shape shape;
  DType dtype = DType::f32;
};

/// Seconds of a stage in a step.
struct PipelineTimes {
  double total = 0.0, idle = 0.0;  ///< idle: time spent waiting for other stages
};

/// Runs a step's micro-batches through this rank's stage, each on its own tape. Worker threads
/// (Mesh::Link) send outputs to the next stage and gradients to the previous one. The receive for
/// the next action starts before the current action. The end of a send is awaited only before its
/// memory is freed. With one stage there are no messages, and `mesh` may be null. All stages must
/// call this function.
ZG_API PipelineTimes run_pipeline(const Mesh* mesh, PipelineSchedule schedule,
                                  int64_t micro_batches, const StageOutput& between,
                                  const Device& device, PipelineStage& stage);

/// For inference: receive the output of the previous stage, or send this stage's output to the next
/// one. Both wait until the transfer is done.
ZG_API Tensor receive_activation(const Mesh& mesh, const StageOutput& between,
                                 const Device& device);
ZG_API void send_activation(const Mesh& mesh, const Tensor& output);

}  // namespace zg
