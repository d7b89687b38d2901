#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "zerograd/autograd/tape.h"

namespace zg {

struct ValuesOptions {
  DType compute = DType::f32;  ///< f32 | bf16 | f16: of activations, and of values that ops read
  /// f32 | bf16 | f16: the dtype in which matrices are stored. Absent: their own, WeightSource::
  /// dtypes. They are never stored in a wider dtype than `compute`.
  std::optional<DType> stored = {};
};

/// The parameters of a model in memory on a device, without gradients and optimizer states: for
/// scoring and generation.
///
///     ParameterStore store;
///     const models::GPT model(store, config);
///     Values values(store, weights, Device::cpu());
///     models::generate(model, [&] { return values.inference_tape(); }, prompts, 20, {});
///
/// Matrices are stored as they are in the file, for example in bf16, and computed with in
/// `compute`: products convert some rows at a time, an embedding the rows that it reads. The
/// results have the bits of f32 matrices with the same values. Other parameters (rank 0 and 1) are
/// stored in `compute`. Only one thread at a time may use it.
class ZG_API Values final : public ParameterSource {
 public:
  /// Reads the weights, a few MiB at a time; on a meta device it reads nothing. The store must
  /// outlive this and must not get more parameters. Throws FileError as check_shapes(), ConfigError
  /// for other dtypes, Unsupported for a slice of a parameter (tensor ranks), OutOfMemory.
  Values(const ParameterStore& store, const WeightSource& weights, const Device& device,
         const ValuesOptions& options = {});

  Tape inference_tape() { return Tape(device_, this, TapeMode::inference); }
  const Device& device() const { return device_; }
  DType compute() const { return compute_; }
  int64_t bytes() const;  ///< of all stored values

  void acquire(const Unit& unit, Stream& stream) override;
  void release(const Unit& unit, Stream& stream) noexcept override;
  /// A matrix in a narrower dtype is converted as a whole, and freed when its unit is released.
  Tensor value(const Parameter& parameter) const override;
  Tensor stored(const Parameter& parameter) const override;
  DType dtype(const Parameter&) const override { return compute_; }
  /// Throws TapeError: it takes no gradients.
  void reduce(const Unit& unit, std::span<Tensor> gradients, Stream& stream) override;

 private:
  void read(const WeightSource& weights, const Parameter& parameter);

  const Device device_;
  const DType compute_;
  std::vector<Tensor> stored_;             // by Parameter::index
  mutable std::vector<Tensor> converted_;  // by Parameter::index, while its unit is in use
  std::vector<int> uses_;                  // by Unit::index
};

/// The initial values of a store's parameters, as zero::Engine has them with this seed.
ZG_API WeightSource initial_weights(const ParameterStore& store, uint64_t seed);

}  // namespace zg
