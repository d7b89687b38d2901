#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/optimizer.h"

namespace zg::zero {

/// True if the parameter has gradient accumulators and optimizer states on this rank. A mirror has
/// none, although the tape computes its gradients.
inline bool is_updated(const Parameter& parameter) {
  return parameter.trainable && parameter.copy != Copy::mirror;
}

struct Storage;

/// An optimizer of whole parameters that updates those of a storage on all ranks together.
class ZG_API GatheredOptimizer : public Optimizer {
 public:
  struct Update {
    Storage& storage;
    const Tensor& all_sums;
    const OptimizerStep& step;
    const Config& config;
    const Device& device;
    Communicator& comm;
  };
  /// A skipped step has the same collectives and allocations.
  virtual void update_gathered(const Update& update) const = 0;

  bool needs_whole() const final { return true; }
  void update(const OptimizerStep&, std::span<const OptimizerRange>, Stream&) const final;
};

/// The optimizers of a config, which of them updates a parameter, and the states of all of them.
class ZG_API Optimizers {
 public:
  /// Throws ConfigError for a name or state that is not allowed, or for parameters that no
  /// optimizer would update.
  explicit Optimizers(const UpdateOptions& options);

  struct Entry {
    std::shared_ptr<const Optimizer> optimizer;
    const GatheredOptimizer* gathered;  ///< null: another class
    std::vector<Optimizer::State> states;
    std::vector<size_t> arrays;  ///< by state: its index in arrays()

    bool owns_parameters() const { return !gathered && optimizer->needs_whole(); }
  };
  /// In the order of their parameters in a flat array: those of GatheredOptimizer first.
  const std::vector<Entry>& all() const { return entries_; }
  /// The index in all() of the optimizer that updates a parameter.
  size_t index_of(const Parameter& parameter) const;
  const Entry& of(const Parameter& parameter) const { return entries_[index_of(parameter)]; }

  /// A state that a storage keeps. Equal ones of several optimizers are one.
  struct Array {
    std::string name;
    std::optional<DType> dtype;
    bool shaped;      ///< it has a shape of its own
    bool everywhere;  ///< every rank has that of all parameters
  };
  const std::vector<Array>& arrays() const { return arrays_; }
  /// The names of the states that have a number for each element, in order.
  std::vector<std::string> element_states() const;
  /// The optimizer that a checkpoint is of.
  const Optimizer& main() const { return *main_; }

 private:
  void add(const std::shared_ptr<const Optimizer>& optimizer);

  const UpdateOptions options_;
  std::shared_ptr<const Optimizer> main_;
  std::map<const Optimizer*, std::shared_ptr<const Optimizer>> others_;
  std::vector<Entry> entries_;
  std::vector<Array> arrays_;
};

/// The class that UpdateOptions::rule and its numbers stand for, or UpdateOptions::optimizer.
ZG_API std::shared_ptr<const Optimizer> optimizer_of(const UpdateOptions& options);

/// Whether it declares this stream of gradients.
ZG_API bool has_stream(const Optimizer& optimizer, const std::string& stream);

/// Throws Unsupported if a tensor rank has only a slice of a parameter that an optimizer needs
/// whole.
ZG_API void check_parameters(const ParameterStore& store, const Optimizers& optimizers);

}  // namespace zg::zero
