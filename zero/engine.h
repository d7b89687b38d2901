#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/comm.h"
#include "zerograd/runtime/mesh.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/model_states.h"

namespace zg::zero {

/// What one optimizer step did.
struct StepResult {
  double gradient_norm = 0.0;  ///< global, of the mean gradient, before clipping; or infinity
  bool skipped = false;        ///< a gradient was infinite or NaN: nothing was changed
  std::string bad_tensor;      ///< then: the first parameter with such a gradient
  double loss_scale = 1.0;     ///< what Engine::loss_scale() was in this step
  std::string scaler_line;     ///< f16 with a dynamic scale, skipped: DeepSpeed's line for the log
};

/// Owns what one rank holds of a store's parameters: values, gradient sums, f32 masters and
/// moments, shared out between the ranks as Config::stage says. ZeRO: Rajbhandari et al. 2020,
/// arXiv:1910.02054. One rank is world size 1 of the same code.
///
/// A step: for each micro-batch `Tape tape = engine.tape(); ... engine.backward(tape, loss);`, then
/// `engine.step(rate)`. Of the M micro-batches of a step, all ranks together, the g-th is rank
/// g % world's. Each one's whole gradient is rounded once to the compute dtype and added, in rising
/// g, to its owner's sum; the step multiplies by 1 / M and the clip factor in one f32 multiply. In
/// f16 the loss is scaled (zero/loss_scale.h) and that multiply takes the scale out again. So every
/// stage and every world size that divides M gives the same bits. A parameter that no
/// micro-batch used takes part with a zero gradient. An engine is driven by one thread at a time;
/// two engines share nothing. Calls marked collective must be made by every rank alike.
class ZG_API Engine final : public ParameterSource {
 public:
  /// Initialises every parameter from (config.seed, name, element). Store and communicator must
  /// outlive the engine, and the store must not grow: once it has, tapes and steps are
  /// ConfigErrors. Throws ConfigError, Unsupported, OutOfMemory.
  Engine(const ParameterStore& store, const Device& device, const Config& config = {});
  Engine(const ParameterStore& store, Communicator& ranks, const Device& device,
         const Config& config = {});
  /// One of the ranks of a mesh, which must outlive the engine: `store` describes this rank's part
  /// of the model, and ZeRO shares it out over the data axis. Collective.
  Engine(const ParameterStore& store, const Mesh& mesh, const Device& device,
         const Config& config = {});
  ~Engine() override;

  Tape tape();            ///< records, wired to this engine
  Tape inference_tape();  ///< records nothing

  void backward(Tape& tape, const Var& loss);  ///< one micro-batch into the sums; collective
  /// The same on a stage that is not the last: from the gradients that the next one gave, which
  /// have the loss scale.
  void backward(Tape& tape, std::span<const Var> outputs, std::span<const Tensor> gradients);
  /// One AdamW update with the mean over the micro-batches since the last step; ConfigError when
  /// there were none. Skipped on all ranks when any has a gradient that is infinite or NaN: its
  /// exchanges are made as ever, so that memory and wire follow from sizes alone. Error when in f16
  /// that finds a dynamic loss scale at its minimum. Collective.
  /// Betas: instead of Config::adam's, in this step.
  StepResult step(float rate, const std::optional<Betas>& betas = std::nullopt);

  /// As DeepSpeed logs it: f16's scale, 1 in f32, 0 in bf16.
  double loss_scale() const;
  const LossScaler& loss_scaler() const;  ///< of f32 and bf16: 1 for ever
  /// For resuming; absent: as a new run starts. An engine whose scale is static keeps it.
  void set_loss_scaler(const std::optional<LossScaler::State>& state);

  int64_t steps() const;  ///< attempted so far: taken plus skipped
  int64_t skipped() const;
  int64_t micro_batches() const;  ///< of this rank, since the last step
  const Config& config() const;
  const ParameterStore& store() const;
  const Device& device() const;
  Communicator& ranks() const;  ///< the data axis, which share the states out
  Communicator& world() const;  ///< all that train the model
  const Mesh* mesh() const;     ///< null: every rank has the whole model

  RestingBytes resting_bytes() const;  ///< of what this rank keeps from step to step

  /// The mean over all ranks' micro-batches of a step from each rank's own losses, in f64 and in
  /// rising g: the same for every world size. Collective.
  double mean_loss(std::span<const double> own);
  /// In a pipeline the last stage has losses, `micro_batches` of them, and every rank gets their
  /// mean; those of tensor rank 0 count. ConfigError when there are more or fewer.
  double mean_loss(std::span<const double> own, int64_t micro_batches);

  /// XXH3-128 in hex over the little-endian f32 bytes of all master parameters, in byte order of
  /// their names: of the whole model, however ranks share it out. "planned" on a meta device, after
  /// the same exchanges; Unsupported there where ranks have parts of the model. Collective.
  std::string parameter_hash() const;

  /// The f32 bytes of this rank's part of one parameter: master, first and second moment, or the
  /// sum (not the mean; in f16 with the loss scale) of the gradients since the last step. A frozen
  /// parameter has its value for a master, and empty moments and gradient. On a meta device nothing
  /// comes back, after the same collectives. Collective.
  enum class State : uint8_t { master, moment1, moment2, gradient };
  std::vector<float> read(const Parameter& parameter, State state) const;
  /// Writes what this rank holds of it (not gradient); the compute copy follows. Given whole on
  /// every rank; not collective. ShapeError when the size is off; a meta device takes no values.
  void write(const Parameter& parameter, State state, std::span<const float> values);

  /// Elements [begin, end) of this rank's part of a parameter that it holds of a state, and its
  /// values of the masters: what a checkpoint need not read for another rank.
  struct Held {
    int64_t begin = 0, end = 0;
  };
  Held held(const Parameter& parameter, State state) const;
  void write_held(const Parameter& parameter, State state, std::span<const float> values);
  /// Elements [begin, begin + values.size()) of those; on a meta device as many, without values.
  void write_held(const Parameter& parameter, State state, Held range,
                  std::span<const float> values);

  /// For resuming: sets the counters and drops the gradients accumulated so far.
  void set_steps(int64_t taken, int64_t skipped);
  /// Ends a step that is given up between two micro-batches: the engine is as it was after the last
  /// step. In a pipeline every stage has done the same micro-batches. Collective.
  void drop_gradients();

  void acquire(const Unit& unit, Stream& stream) override;
  void release(const Unit& unit, Stream& stream) noexcept override;
  Tensor value(const Parameter& parameter) const override;
  /// On one rank the f32 sum on the device, for the first micro-batch of a step; among several the
  /// part of an f32 leaf that will be sent, for every micro-batch.
  Tensor gradient_place(const Parameter& parameter) override;
  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) override;

 private:
  friend class Snapshot;    // zero/snapshot.h: what a checkpoint takes from this rank
  friend class WholeModel;  // zero/whole_model.h: all ranks' parameters together
  std::unique_ptr<struct EngineState> state_;
};

}  // namespace zg::zero
