#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/tape.h"

namespace zg {

struct ValuesOptions {
  /// f64 | f32 | bf16 | f16: of activations, and of values that ops read.
  DType compute = DType::f32;
  /// The dtype in which matrices are stored. Absent: their own in WeightSource::dtypes, or
  /// `compute` if they are not listed there. They are never stored in a wider dtype than `compute`.
  std::optional<DType> stored = {};
};

/// The parameters of a model in memory on a device, without an engine: for scoring and generation,
/// and for training with an update of one's own.
///
///     ParameterStore store;
///     const Unit& unit = store.unit("line");
///     const Parameter& w = store.add(unit, "w", {1, 3}, Init::normal(0.1f));
///     Values values(store, initial_weights(store, 1), Device::cpu());
///     for (int step = 0; step < 100; ++step) {
///       Tape tape = values.tape();
///       tape.backward(loss_of(linear(x, tape.parameter(w))));
///       values.clip_gradients(1.0);
///       kernels::axpby({.x = values.gradient(w), .y = values.value(w), .a = -rate, .b = 1},
///                      values.device().compute());
///       values.clear_gradients();
///     }
///
/// zero::Engine trains the same model with partitions, offload and checkpoints; there each use of a
/// parameter stands in a Tape::Use of its unit, which Values do not need.
///
/// Matrices are stored as they are in the file, for example in bf16, and computed with in
/// `compute`: products convert some rows at a time, an embedding the rows that it reads. The
/// results have the bits of f32 matrices with the same values. Other parameters (rank 0 and 1) are
/// stored in `compute`. Units with a matrix in a narrower dtype must be open (Tape::Use) while they
/// are used. Only one thread at a time may use it.
class ZG_API Values final : public ParameterSource {
 public:
  /// Reads the weights, a few MiB at a time; on a meta device it reads nothing. The store must
  /// outlive this and must not get more parameters. Throws FileError as check_shapes(), ConfigError
  /// for other dtypes, Unsupported for a slice of a parameter (tensor ranks) if the weights cannot
  /// be read by slices, OutOfMemory.
  Values(const ParameterStore& store, const WeightSource& weights, const Device& device,
         const ValuesOptions& options = {});

  Tape tape() { return Tape(device_, this); }
  Tape inference_tape() { return Tape(device_, this, TapeMode::inference); }
  const ParameterStore& store() const { return store_; }
  const Device& device() const { return device_; }
  DType compute() const { return compute_; }
  int64_t bytes() const;  ///< of all stored values

  /// The sum of the gradients of all backward passes since clear_gradients(), in the accumulator
  /// dtype (f64 for f64, else f32). Absent if the parameter got none. The caller may write to it,
  /// for example to clip it.
  Tensor gradient(const Parameter& parameter) const;
  /// Those that are not absent, by the parameter's name.
  std::map<std::string, Tensor> gradients() const;
  void clear_gradients();
  /// Copies `values` into a parameter, converted to its stored dtype. Throws ShapeError. The tensor
  /// that stored() returns is the parameter's memory as well: a kernel may update it in place.
  void set(const Parameter& parameter, const Tensor& values);
  /// Freezes a parameter or trains it, on uses that come after; first as the store says.
  void set_trainable(const Parameter& parameter, bool trainable);
  bool trains(const Parameter& parameter) const override;
  /// Limits every element of the gradients to -limit .. limit: clip_grad_value_() of PyTorch. NaN
  /// stays. ConfigError unless limit is above 0.
  void clip_gradients(double limit);
  /// Multiplies the gradients by limit / norm if the norm of all of them together is above the
  /// limit: clip_grad_norm_() of PyTorch. Returns the norm before, of shape []. ConfigError unless
  /// limit is above 0.
  Tensor clip_gradient_norm(double limit);

  /// A copy with memory of its own and without gradients: a moving average, a target network.
  Values copy() const;
  /// value = decay * value + (1 - decay) * other's value, for every parameter: an exponential
  /// moving average, computed in f32 and rounded to the stored dtype. ConfigError for values of
  /// another store, or a decay outside of [0, 1].
  void average(const Values& other, double decay);

  /// The stored values by name. They are the parameters' memory.
  std::map<std::string, Tensor> tensors() const;
  /// Writes tensors() as safetensors. Unsupported for slices of parameters (tensor ranks).
  void save(const std::string& path) const;
  /// Reads every parameter by name, converted to its stored dtype. While it runs the tensors are in
  /// memory twice. Throws FileError for a damaged file, or as check_shapes().
  void load(const std::string& path);

  bool has(const Unit& unit) const override { return store_.has(unit); }
  bool needs_open_unit(const Unit& unit) const override;
  void acquire(const Unit& unit, Stream& stream) override;
  void release(const Unit& unit, Stream& stream) noexcept override;
  /// A matrix in a narrower dtype is converted as a whole, and freed when its unit is released.
  Tensor value(const Parameter& parameter) const override;
  Tensor origin(const Parameter& parameter) const override { return stored(parameter); }
  Tensor stored(const Parameter& parameter) const override;
  DType dtype(const Parameter&) const override { return compute_; }
  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) override;

 private:
  size_t index_of(const Parameter& parameter) const;
  void read(const WeightSource& weights, const Parameter& parameter);

  const ParameterStore& store_;
  const Device device_;
  const DType compute_;
  std::vector<Tensor> stored_, gradients_;  // by Parameter::index
  std::vector<bool> trains_;                // by Parameter::index
  mutable std::vector<Tensor> converted_;   // by Parameter::index, while its unit is in use
  std::vector<int> uses_;                   // by Unit::index
};

/// The initial values of a store's parameters, as zero::Engine has them with this seed.
ZG_API WeightSource initial_weights(const ParameterStore& store, uint64_t seed);

}  // namespace zg
