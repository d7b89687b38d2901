#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/api.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/tensor.h"

namespace zg::zero {

/// The decay rates of one step, for a schedule that changes them. beta1 of sgd is its momentum.
struct Betas {
  float beta1, beta2;
  bool operator==(const Betas&) const = default;
};

/// The numbers of one step.
struct OptimizerStep {
  float rate = 0.0f;
  std::optional<Betas> betas = {};  ///< a schedule's, instead of those of the optimizer
  int64_t step = 0;                 ///< counts from 1, without skipped steps
  bool skipped = false;             ///< the stream of the update computes nothing
  /// Empty: the gradients are those of the step. Otherwise a name of Optimizer::streams(): only
  /// states may change, and `step` counts the steps so far.
  std::string stream = {};
  // The rest is for fused optimizers.
  float gradient_scale = 1.0f;  ///< makes the clipped mean of the accumulated gradients
  Tensor scale = {};  ///< if the device decides: the factor (OptimizerUpdate::scale), NaN to skip
  std::optional<uint64_t> rounding_seed = {};  ///< stochastic rounding; absent: nearest even
};

class OptimizerRange;

/// The rule by which an engine changes parameters. A class of one's own goes into
/// UpdateOptions::optimizer, or into a ParameterGroup, and declares its states. The engine stores
/// them as the ZeRO stage and OffloadOptions say, calls update() with parts of them that are in
/// memory, and saves them in checkpoints by name. An object is constant: what changes from step to
/// step is a state. tools/examples/own_optimizer.cpp is a whole program.
class ZG_API Optimizer {
 public:
  /// A state of each parameter, beside its master weight. It is zero before the first step.
  struct State {
    std::string name;  ///< letters, digits and '_'; neither "master" nor "gradient"
    /// f32 | bf16. Absent: Config::optimizer, or f32 if the state has a shape of its own. Gradients
    /// and scratch() are f32, and kernels for elements take one dtype: f32 fits them.
    std::optional<DType> dtype = {};
    /// The shape by that of the parameter. Null: one number for each element. Only an optimizer
    /// that needs whole parameters may have such a state, in f32.
    std::function<Shape(const Shape&)> shape = {};
  };

  virtual ~Optimizer() = default;
  /// Letters, digits and '_'. A checkpoint of another optimizer is refused by it.
  virtual std::string name() const = 0;
  virtual std::vector<State> states() const { return {}; }
  /// Numbers by name. A checkpoint's manifest records them; they may differ when it is loaded.
  virtual std::map<std::string, double> options() const { return {}; }

  /// False: update() takes any range of elements, and the bits must not depend on the ranges. True:
  /// it takes whole parameters. From stage 1 on each of them belongs to one rank, which alone has
  /// its master weight, gradients and states, and updates it; parameters are assigned to ranks so
  /// that these have nearly equal numbers of elements. At stage 0 every rank updates all. Tensor
  /// ranks that divide such a parameter are refused.
  virtual bool needs_whole() const { return false; }
  /// Whether it updates this parameter. The others are left to others().
  virtual bool updates(const Parameter&) const { return true; }
  virtual std::shared_ptr<const Optimizer> others() const { return nullptr; }
  /// False: the gradients that update() gets are the mean of the step, clipped, in f32, and the
  /// engine rounds the masters to the values. True: update() multiplies the gradients, of any
  /// dtype, by `scale` or `gradient_scale` and writes OptimizerRange::value, in one pass.
  virtual bool is_fused() const { return false; }
  /// Names of further losses whose gradients it reads, such as one of sampled labels for curvature:
  /// Engine::observe() passes them to update().
  virtual std::vector<std::string> streams() const { return {}; }
  /// Queues one update of each range on `stream`: on the memory of the device, or on that of the
  /// host where states are stored there. In a skipped step and in a plan the type of `stream` is
  /// Device::Type::meta: kernels take their memory and compute nothing. Code other than kernels
  /// must then leave the ranges as they are.
  virtual void update(const OptimizerStep& step, std::span<const OptimizerRange> ranges,
                      Stream& stream) const = 0;
};

/// A range of elements of one or more parameters, or a whole parameter in its shape, that has one
/// rate and one weight decay.
class OptimizerRange {
 public:
  Tensor master;    ///< f32 | bf16 (Config::optimizer), in and out
  Tensor gradient;  ///< like master, f32; may be written to
  Tensor value;     ///< bf16 | f16 out, the rounded master; absent: the masters are the values
  std::vector<Tensor> states;  ///< in and out, in the order of Optimizer::states()
  float rate_factor = 1.0f;    ///< multiplies OptimizerStep::rate; of the parameter's group
  float weight_decay = 0.0f;
  // For stochastic rounding: hash_name() of the parameter's name, and the index of element 0 in it.
  uint64_t name = 0;
  int64_t first = 0;
  std::span<const Optimizer::State> declared = {};  ///< the optimizer's, for operator[]

  /// The state of this name; throws ConfigError if the optimizer declares none.
  ZG_API const Tensor& operator[](std::string_view state) const;
  /// New memory for intermediate results, in f32, beside the master and with its shape.
  ZG_API Tensor scratch() const;
  ZG_API Tensor scratch(const Shape& shape) const;
};

}  // namespace zg::zero
