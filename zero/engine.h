#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "autograd/parameter.h"
#include "autograd/tape.h"
#include "zero/config.h"

namespace zg::zero {

/// What one optimizer step did.
struct StepResult {
  double gradient_norm = 0.0;  ///< global, of the mean gradient, before clipping; or infinity
  bool skipped = false;        ///< a gradient was infinite or NaN: nothing was changed
  std::string bad_tensor;      ///< then: the first parameter with such a gradient
};

/// Owns the bytes of a store's parameters: values, gradient accumulators, f32 masters and moments.
/// ZeRO: Rajbhandari et al. 2020, arXiv:1910.02054.
///
/// A step: for each micro-batch `Tape tape = engine.tape(); ... engine.backward(tape, loss);`, then
/// `engine.step(rate)`. Each micro-batch's whole gradient is rounded once to the compute dtype and
/// added, in order, to an f32 accumulator; the step multiplies by 1 / micro-batches and the clip
/// factor in one f32 multiply. A parameter that no micro-batch used takes part with a zero
/// gradient. An engine is driven by one thread at a time; two engines share nothing.
class ZG_API Engine final : public ParameterSource {
 public:
  /// Initialises every parameter from (config.seed, name, element). The store must outlive the
  /// engine and not grow. Throws ConfigError, Unsupported or OutOfMemory.
  Engine(const ParameterStore& store, const Device& device, const Config& config = {});
  ~Engine() override;

  Tape tape();            ///< records, wired to this engine
  Tape inference_tape();  ///< records nothing

  void backward(Tape& tape, const Var& loss);  ///< one micro-batch into the accumulators
  /// One AdamW update with the mean over the micro-batches since the last step; ConfigError when
  /// there were none.
  StepResult step(float rate);

  int64_t steps() const;  ///< attempted so far: taken plus skipped
  int64_t skipped() const;
  int64_t micro_batches() const;  ///< since the last step
  const Config& config() const;
  const ParameterStore& store() const;
  const Device& device() const;

  /// XXH3-128 in hex over the little-endian f32 bytes of all master parameters, in byte order of
  /// their names.
  std::string parameter_hash() const;

  /// The f32 bytes of one parameter: master, first and second moment, or the sum (not the mean) of
  /// the gradients since the last step. A frozen parameter has its value for a master, and empty
  /// moments and gradient.
  enum class State : uint8_t { master, moment1, moment2, gradient };
  std::vector<float> read(const Parameter& parameter, State state) const;
  /// Writes it (not gradient); the compute copy follows. ShapeError when the size is off.
  void write(const Parameter& parameter, State state, std::span<const float> values);
  /// For resuming: sets the counters and drops the gradients accumulated so far.
  void set_steps(int64_t taken, int64_t skipped);

  void acquire(const Unit& unit, Stream& stream) override;
  void release(const Unit& unit, Stream& stream) noexcept override;
  Tensor value(const Parameter& parameter) const override;
  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) override;

 private:
  std::unique_ptr<struct EngineState> state_;
};

}  // namespace zg::zero
