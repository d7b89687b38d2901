#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/mesh.h"

namespace zg {

/// In which order a stage works on the micro-batches of a step. Both go back in rising order, so
/// both give the same bits.
enum class PipelineSchedule : uint8_t {
  one_f_one_b,  ///< as soon as it can a stage goes back with what it has; at most as many
                ///< micro-batches are under way as stages follow. Narayanan et al. 2021,
                ///< arXiv:2104.04473
  gpipe         ///< all forward, then all backward. Huang et al. 2019, arXiv:1811.06965
};

struct PipelineAction {
  enum class Kind : uint8_t { forward, backward } kind;
  int64_t micro_batch;
  bool operator==(const PipelineAction&) const = default;
};

/// The order in which stage `stage` of `stages` works on the micro-batches of a step.
ZG_API std::vector<PipelineAction> pipeline_actions(PipelineSchedule schedule, int stages,
                                                    int stage, int64_t micro_batches);

/// The most micro-batches that a stage has under way at once.
ZG_API int64_t most_in_flight(PipelineSchedule schedule, int stages, int stage,
                              int64_t micro_batches);

/// The share of a step in which a stage waits when every stage takes equally long and messages take
/// no time: (p - 1) / (m + p - 1), of both schedules.
ZG_API double pipeline_bubble(int stages, int64_t micro_batches);

/// Cuts a row of layers into contiguous stages so that the most expensive stage costs as little as
/// possible. Among equal cuts it takes the one with the smallest sum of squared costs, then the one
/// whose first stages are longer. `first` and `last` are costs that the first and the last stage
/// have beside their layers. Returns stages + 1 borders, from 0 to the number of layers; each stage
/// has at least one layer. ConfigError when there are fewer layers than stages.
ZG_API std::vector<int64_t> balanced_stages(std::span<const double> costs, double first,
                                            double last, int stages);

/// One rank's work on a micro-batch: its stage of the model.
class ZG_API PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  /// Asked before each forward in its turn and, where all forwards come first (GPipe), before each
  /// backward: false ends the step there. All stages must answer alike for the same question.
  /// Under 1F1B the micro-batches that have begun are finished; under GPipe they are dropped.
  virtual bool goes_on(int64_t /*micro_batch*/) { return true; }
  virtual Tape tape() = 0;
  /// `input`: the output of the stage before; absent on the first stage. Returns the input of the
  /// next stage; on the last stage the loss.
  virtual Var forward(Tape& tape, const Var& input, int64_t micro_batch) = 0;
  /// `gradient` of the output; absent on the last stage, whose output is the loss.
  virtual void backward(Tape& tape, const Var& output, const Tensor& gradient,
                        int64_t micro_batch) = 0;
};

/// The tensor that passes between two stages, the same for each micro-batch.
struct StageOutput {
  Shape shape;
  DType dtype = DType::f32;
};

/// Seconds of a stage in a step.
struct PipelineTimes {
  double total = 0.0, idle = 0.0;  ///< idle: it waited for what other stages make
};

/// Runs a step's micro-batches through this rank's stage, each on a tape of its own. Outputs go to
/// the next stage and gradients to the one before on the channels' workers. The receive for the
/// next action is posted before this action begins; a send is awaited only when its memory is
/// freed. One stage is the same code without messages, and `mesh` may be null. Collective over the
/// stages.
ZG_API PipelineTimes run_pipeline(const Mesh* mesh, PipelineSchedule schedule,
                                  int64_t micro_batches, const StageOutput& between,
                                  const Device& device, PipelineStage& stage);

/// For inference: receives the output of the stage before, or sends this stage's to the next.
/// Synchronous.
ZG_API Tensor receive_activation(const Mesh& mesh, const StageOutput& between,
                                 const Device& device);
ZG_API void send_activation(const Mesh& mesh, const Tensor& output);

}  // namespace zg
