#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/comm/mesh.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer/optimizers.h"
#include "zerograd/zero/states/model_states.h"

namespace zg::zero {

/// Result of one optimizer step.
struct StepResult {
  double gradient_norm = 0.0;  ///< global, of the mean gradient, before clipping; may be infinity
  bool skipped = false;        ///< a gradient was infinite or NaN; nothing was changed
  std::string bad_tensor;      ///< if skipped: the first parameter with such a gradient
  double loss_scale = 1.0;     ///< Engine::loss_scale() during this step
  std::string scaler_line;     ///< f16 with a dynamic scale, skipped: DeepSpeed's log line
  /// The exact sum of the squares of the accumulated gradients, as the limbs of SumOfSquares.
  std::vector<int64_t> square_limbs;
};

/// One step of a training loop, taken or skipped.
struct TrainedStep {
  int64_t step = 0;           ///< counted from 0
  int64_t micro_batches = 0;  ///< by each rank
  int64_t samples = 0;        ///< by all ranks
  double loss = 0.0;          ///< mean over all micro-batches, or all targets, of all ranks
  double rate = 0.0;
  StepResult result;
  double seconds = 0.0;  ///< of this rank, from the first micro-batch to the last update
};

/// Is told of the steps of an engine, on every rank. Audit is one.
class ZG_API StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void tape_begins() = 0;                     ///< one that records for backward
  virtual void backward_begins(const Var* loss) = 0;  ///< null on stages before the last one
  virtual void step_ends(float rate, int64_t micro_batches, const StepResult& result) = 0;
};

/// Targets (labels that a loss is a mean over) of a micro-batch and of its whole step, and the
/// step's micro-batches, of all ranks together.
struct StepTargets {
  int64_t micro_batch = 0, step = 0, micro_batches = 0;
};
/// The factor of a micro-batch's loss, a mean over its targets, that makes gradient and loss of the
/// step means over all targets of the step: micro_batches * micro_batch / step; 0 without targets.
/// So they do not depend on how a step is cut into micro-batches, up to rounding. By itself an
/// engine takes the mean over micro-batches, in which a target counts more if few are with it.
///
///   engine.backward(tape, mul(loss, zero::target_weight({targets, step_targets, micro_batches})));
///
/// TrainerTask::targets does it in a Trainer. Throws ConfigError unless 0 <= micro_batch <= step
/// and micro_batches is 1 or more.
ZG_API double target_weight(const StepTargets& targets);

/// Owns one rank's share of the model states: parameters, gradient accumulators, master weights and
/// states of the optimizer, partitioned over the ranks by Config::stage. ZeRO: Rajbhandari et al.
/// 2020, arXiv:1910.02054. One rank runs the same code with world size 1.
///
/// A step: for each micro-batch `Tape tape = engine.tape(); ... engine.backward(tape, loss);`, then
/// `engine.step(rate)`. All ranks together have M micro-batches in a step. Micro-batch g belongs to
/// rank g % world. Its gradient is rounded once to the compute dtype and added, in rising g, to the
/// accumulators of the ranks that own the shards. The step multiplies by 1 / M and the clip factor
/// in one f32 multiplication. In f16 the loss is scaled (zero/optimizer/loss_scale.h) and that
/// multiplication removes the scale. So every stage and every world size that divides M gives the
/// same bits. A parameter that no micro-batch used has a zero gradient. Only one thread at a time
/// may use an engine; two engines share no state. Every rank must make the calls that are marked
/// collective, in the same order.
class ZG_API Engine final : public ParameterSource {
 public:
  /// Initialises every parameter from (config.seed, name, element). Store and communicator must
  /// outlive the engine. The store must not get more parameters: tapes and steps would throw
  /// ConfigError. Throws ConfigError, Unsupported, OutOfMemory; CommError if ranks differ in seed,
  /// stage, dtypes, optimizer or parameters. Collective.
  Engine(const ParameterStore& store, const Device& device, const Config& config = {});
  Engine(const ParameterStore& store, Communicator& ranks, const Device& device,
         const Config& config = {});
  /// For one rank of a mesh, which must outlive the engine. `store` describes the model part of
  /// this rank (pipeline stage and tensor slices). ZeRO partitions it over the data axis.
  /// Collective.
  Engine(const ParameterStore& store, const Mesh& mesh, const Device& device,
         const Config& config = {});
  ~Engine() override;

  Tape tape();            ///< records for backward, connected to this engine
  Tape inference_tape();  ///< records nothing

  /// Accumulates one micro-batch; collective. On an accelerator an invalid id in a batch may be
  /// thrown by a later call, such as step(): drop_gradients() before the next micro-batch.
  void backward(Tape& tape, const Var& loss);
  /// The same on a pipeline stage that is not the last. `gradients` come from the next stage and
  /// include the loss scale.
  void backward(Tape& tape, std::span<const Var> outputs, std::span<const Tensor> gradients);
  /// One update with the mean over the micro-batches since the last step; ConfigError when
  /// there were none. Skipped on all ranks if any gradient is infinite or NaN. A skipped step has
  /// the same collectives, so memory and traffic do not depend on values. Throws Error if such a
  /// gradient occurs in f16 when a dynamic loss scale is at its minimum. Collective. `betas`
  /// replace those of Config::update in this step.
  StepResult step(float rate, const std::optional<Betas>& betas = std::nullopt);

  /// Announces step(rate, betas) after this many micro-batches of this rank, the first of which has
  /// not run backward yet. Then one rank's last backward on a CPU frees 16-bit parameters as it
  /// passes their units, and the next forward rounds them again from the masters: 2 bytes a
  /// parameter less at the peak. OffloadOptions::speculation needs it, too: another step than the
  /// announced one gives the same bits, but is redone. All ranks must agree. ConfigError if
  /// micro_batches < 1, or if those of all ranks pass 2^63.
  ///   engine.expect_step(2, rate);
  ///   engine.backward(tape, loss); engine.backward(other_tape, other_loss);
  ///   engine.step(rate);
  void expect_step(int64_t micro_batches, float rate,
                   const std::optional<Betas>& betas = std::nullopt);
  struct Speculated {
    int64_t redone = 0;      ///< steps that clipping, an overflow or another rate made redo
    SwapCount redo_io = {};  ///< bytes that each of them reads and writes beyond those of a plan
  };
  std::optional<Speculated> speculated() const;  ///< absent without OffloadOptions::speculation

  /// Passes the mean over the micro-batches since the last step, not clipped, to the optimizers
  /// that declare this stream (Optimizer::streams()), which change their states by it; the
  /// parameters stay. It is not a step: steps() stays, too. Skipped if a gradient is infinite or
  /// NaN. ConfigError if no optimizer declares the stream, or without micro-batches. Collective.
  ///
  ///   engine.backward(tape, loss_of_sampled_labels);
  ///   engine.observe("sampled");
  StepResult observe(const std::string& stream);

  /// The value that DeepSpeed logs: the scale in f16, 1 in f32, 0 in bf16.
  double loss_scale() const;
  const LossScaler& loss_scaler() const;  ///< in f32 and bf16: constant 1
  /// For resuming. Absent: resets to the state of a new run. No effect on an engine with a constant
  /// scale.
  void set_loss_scaler(const std::optional<LossScaler::State>& state);

  int64_t steps() const;  ///< number of steps so far, including skipped ones
  int64_t skipped() const;
  int64_t micro_batches() const;  ///< number of micro-batches of this rank since the last step
  const Config& config() const;
  const ParameterStore& store() const;
  const Device& device() const;
  Communicator& ranks() const;  ///< the data axis, over which states are partitioned
  Communicator& world() const;  ///< all ranks that train the model
  const Mesh* mesh() const;     ///< null if every rank has the whole model

  void set_observer(StepObserver* observer);  ///< null: none
  RestingBytes resting_bytes() const;         ///< memory that this rank keeps from step to step

  /// The mean loss of a step over the micro-batches of all ranks. `own`: the losses of this rank's
  /// micro-batches. Losses are added in f64 in rising g, so the mean is the same for every world
  /// size. Collective.
  double mean_loss(std::span<const double> own);
  /// In a pipeline the last stage has losses, `micro_batches` of them, and every rank gets their
  /// mean. Only those of tensor rank 0 are used. Throws ConfigError when there are more or fewer.
  double mean_loss(std::span<const double> own, int64_t micro_batches);

  /// XXH3-128 in hex over the little-endian f32 bytes of all master weights of the whole model, in
  /// byte order of their names. It does not depend on the partition over the ranks. On a meta
  /// device it makes the same collectives and returns "planned"; there it throws Unsupported if
  /// ranks have only parts of the model. Collective.
  std::string parameter_hash() const;

  /// Visits the masters that this rank has, in f32, a few MiB at a time. `begin`: index of the
  /// first value in this rank's slice of the parameter. `is_counted`: over all ranks, this is so
  /// for each element of the model once; the others are copies. Not collective. On a meta device it
  /// takes the same memory and visits nothing.
  using VisitMasters = std::function<void(const Parameter&, int64_t begin,
                                          std::span<const float> values, bool is_counted)>;
  void visit_masters(const VisitMasters& visit) const;

  /// A state of a parameter, by its name: of Optimizer::states(), "master", or "gradient" (the
  /// gradients accumulated since the last step, not averaged; in f16 including the loss scale).
  struct State {
    std::string name;
    static const State master, moment1, moment2, gradient;
    auto operator<=>(const State&) const = default;
  };
  /// Those that a checkpoint has: the master and those of the optimizer, unless it is frozen.
  std::vector<State> states(const Parameter& parameter) const;
  /// Absent: the state has a number for each element of the parameter.
  std::optional<Shape> shape_of(const Parameter& parameter, const State& state) const;
  const Optimizers& optimizers() const;

  /// This rank's slice of one parameter in f32, or a state with a shape of its own. For a frozen
  /// parameter `master` is its value. Empty if there is no such state. On a meta device the result
  /// is empty, after the same collectives. Collective.
  std::vector<float> read(const Parameter& parameter, const State& state) const;
  /// The same as a new tensor on the device, in the state's shape and its own dtype. Collective.
  Tensor tensor(const Parameter& parameter, const State& state) const;
  /// Writes a state (not the gradient). `values` has the whole state on every rank; each rank
  /// stores the elements that it holds. Writing masters also updates the parameters. Throws
  /// ShapeError for another size. Not collective. Does nothing on a meta device.
  void write(const Parameter& parameter, const State& state, std::span<const float> values);

  /// The elements [begin, end) of a parameter's slice whose state is stored on this rank (for
  /// masters: whose master weights or parameters are). Loading a checkpoint reads only these.
  struct Held {
    int64_t begin = 0, end = 0;
  };
  Held held(const Parameter& parameter, const State& state) const;
  void write_held(const Parameter& parameter, const State& state, std::span<const float> values);
  /// Writes elements [begin, begin + values.size()), which must be in held(). On a meta device
  /// `values` is empty.
  void write_held(const Parameter& parameter, const State& state, Held range,
                  std::span<const float> values);

  /// For resuming: sets the counters and drops the accumulated gradients.
  void set_steps(int64_t taken, int64_t skipped);
  /// Drops an unfinished step: the engine is as it was after the last step. Call it between two
  /// micro-batches. In a pipeline every stage must have done the same micro-batches. Collective.
  void drop_gradients();

  bool has(const Unit& unit) const override { return store().has(unit); }
  void begin_tape(TapeMode mode) override;
  void end_backward() override;
  ActivationStore* activations() override;
  void acquire(const Unit& unit, Stream& stream) override;
  void release(const Unit& unit, Stream& stream) noexcept override;
  void done_reading(const Unit& unit) noexcept override;
  Tensor value(const Parameter& parameter) const override;
  Tensor origin(const Parameter& parameter) const override;
  /// Memory for a gradient. On one rank: the f32 accumulator on the device, in the first
  /// micro-batch of a step. On several ranks: a range of the f32 leaf that will be sent, in every
  /// micro-batch.
  Tensor gradient_place(const Parameter& parameter) override;
  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) override;

 private:
  friend class Snapshot;    // zero/checkpoint/snapshot.h: reads states for a checkpoint
  friend class WholeModel;  // zero/parallel/whole_model.h: reads all ranks' parameters
  std::unique_ptr<struct EngineState> state_;
};

inline const Engine::State Engine::State::master{"master"};
inline const Engine::State Engine::State::moment1{"moment1"};
inline const Engine::State Engine::State::moment2{"moment2"};
inline const Engine::State Engine::State::gradient{"gradient"};

}  // namespace zg::zero
