#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/trace.h"

namespace zg {

class Tape;
struct TapeState;

/// A tensor that may have a place on a tape. A small value; copies mean the same tensor.
class ZG_API Var {
 public:
  Var() = default;    ///< absent: an optional input that was not given
  Var(Tensor value);  ///< a constant; implicit, so that ops take a Tensor where they take a Var

  /// A parameter is looked up at each call and throws NotResident outside its unit.
  Tensor value() const;
  Shape shape() const;
  DType dtype() const;
  Device device() const;
  bool needs_gradient() const { return slot_ >= 0; }
  explicit operator bool() const { return static_cast<bool>(value_) || parameter_ != nullptr; }

 private:
  friend class Tape;
  friend struct TapeState;
  friend Var checkpoint(Tape&, std::span<const Var>,
                        std::function<Var(Tape&, std::span<const Var>)>);
  friend Tensor early_gradient(const Var&);
  Tensor value_;
  std::shared_ptr<TapeState> tape_;  // null for a constant
  const Parameter* parameter_ = nullptr;
  int slot_ = -1;  // where the gradient is collected; -1: nowhere
};

/// The argument of an op's backward function: everything that the function may use.
class ZG_API BackwardPass {
 public:
  /// The gradient of an output; absent when none reached it (never so for a single output).
  const Tensor& gradient_of_output(int output = 0) const;
  /// As given to record(); a saved parameter is resident again.
  Tensor saved(int index) const;
  bool needs(int input) const;
  /// Uninitialised memory for an input's gradient: its shape; the accumulator dtype for a
  /// parameter, the input's own otherwise.
  Tensor make_gradient(int input) const;
  /// Adds to an input's gradient; ignored when !needs(input). Shape as make_gradient says; the
  /// input's dtype or its accumulator dtype. `gradient` must not be written afterwards.
  void accumulate(int input, Tensor gradient) const;
  Stream& stream() const;
  Device device() const;

 private:
  friend struct TapeState;
  int slot_of(int input) const;
  TapeState* tape_ = nullptr;
  size_t entry_ = 0;
};

enum class TapeMode : uint8_t {
  record,
  inference  ///< records nothing; units are still opened and closed
};

/// Stores the tensors that ops keep for backward; ZeRO's offload implements it.
class ZG_API ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// The tensor that the record holds instead of `tensor`; same shape and dtype.
  virtual Tensor keep(const Tensor& tensor, Stream& stream) = 0;
  /// The tensor on the device that an op's backward gets for `kept`.
  virtual Tensor fetch(const Tensor& kept, Stream& stream) = 0;
};

/// A linear record of one forward pass. Execution order is already a topological order, so backward
/// runs over the entries in reverse and frees each one: no sort, no graph. One tape per
/// micro-batch; backward runs once.
class ZG_API Tape {
 public:
  explicit Tape(const Device& device, ParameterSource* parameters = nullptr,
                TapeMode mode = TapeMode::record, ActivationStore* activations = nullptr);
  ~Tape();
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;

  Var parameter(const Parameter& parameter);
  /// A leaf whose gradient is kept for gradient(). f64, f32, bf16 or f16.
  Var variable(Tensor value);

  /// Throws ShapeError unless `loss` has one element, TapeError when it is not on this tape, when
  /// backward has already run on it, or when an exception passed through an open unit. Every
  /// gradient is multiplied by `scale` (loss scaling).
  void backward(const Var& loss, double scale = 1.0);
  /// Vector-Jacobian product from given gradients of several outputs.
  void backward(std::span<const Var> outputs, std::span<const Tensor> gradients);

  /// The gradient of a variable() after backward; absent when the outputs do not depend on it.
  Tensor gradient(const Var& variable) const;

  Stream& stream() const;
  Device device() const;
  TapeMode mode() const;

  /// Marks the use of a unit. Forward: acquire, then release at scope exit. In backward the same
  /// two marks acquire the unit again (when something reads a value), hand the unit's gradients
  /// over after its last use, and release. So ZeRO-3 needs no hooks and op code never mentions it.
  class ZG_API Use {
   public:
    Use(Tape& tape, const Unit& unit);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    std::shared_ptr<TapeState> tape_;
    NameScope name_;
    TraceSpan span_;
    int exceptions_;
    size_t index_;
  };

 private:
  friend struct TapeState;
  friend Var checkpoint(Tape&, std::span<const Var>,
                        std::function<Var(Tape&, std::span<const Var>)>);
  explicit Tape(std::shared_ptr<TapeState> state) : state_(std::move(state)) {}
  std::shared_ptr<TapeState> state_;
};

namespace detail {
using BackwardThunk = void (*)(const void* numbers, const BackwardPass&);
ZG_API std::vector<Var> record(const char* op, std::span<const Var> inputs,
                               std::span<const Tensor> outputs, std::span<const Tensor> saved,
                               const void* numbers, size_t numbers_bytes, BackwardThunk backward);
}  // namespace detail

/// Puts an op on the tape of its inputs; without one (constants, inference) the outputs come back
/// as constants. `backward` is a captureless lambda (const Numbers&, const BackwardPass&); numbers
/// travel in a trivially copyable struct and tensors in `saved`, where accounting, offload and
/// ZeRO-3 reach them: a saved view of a parameter is kept as its place, not its bytes. Throws
/// TapeError when inputs belong to two tapes or to one whose backward has run.
template <class Numbers, class Backward>
std::vector<Var> record(const char* op, std::span<const Var> inputs,
                        std::span<const Tensor> outputs, std::span<const Tensor> saved,
                        const Numbers& numbers, Backward) {
  static_assert(std::is_empty_v<Backward>, "backward must capture nothing; pass Numbers and saved");
  static_assert(std::is_trivially_copyable_v<Numbers>, "Numbers must be plain numbers");
  static_assert(alignof(Numbers) <= alignof(std::max_align_t));
  return detail::record(op, inputs, outputs, saved, &numbers, sizeof(Numbers),
                        [](const void* bytes, const BackwardPass& pass) {
                          Backward{}(*static_cast<const Numbers*>(bytes), pass);
                        });
}

template <class Numbers, class Backward>
Var record(const char* op, std::initializer_list<Var> inputs, const Tensor& output,
           std::initializer_list<Tensor> saved, const Numbers& numbers, Backward backward) {
  return record(op, std::span<const Var>(inputs.begin(), inputs.size()),
                std::span<const Tensor>(&output, 1),
                std::span<const Tensor>(saved.begin(), saved.size()), numbers, backward)[0];
}

/// Uninitialised memory for a gradient that an op computes in forward, because backward would have
/// to compute the same values again. It has the input's shape and the accumulator dtype; the memory
/// for a parameter's gradient is where the tape collects it. It travels in `saved`. Only backward
/// knows the gradient of the output: it may multiply this gradient in place, and accumulates it.
/// Absent unless input.needs_gradient().
ZG_API Tensor early_gradient(const Var& input);

/// Runs `segment` without recording and keeps its inputs only; backward runs it again on a tape of
/// its own. Chen et al. 2016, arXiv:1604.06174. Tensors must enter through `inputs` (a captured Var
/// is a TapeError); parameters are read through the tape that the segment is given.
ZG_API Var checkpoint(Tape& tape, std::span<const Var> inputs,
                      std::function<Var(Tape&, std::span<const Var>)> segment);

}  // namespace zg
