#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "zerograd/autograd/parameter.h"
#include "zerograd/runtime/trace.h"

namespace zg {

class Tape;
struct TapeState;
struct GradientPass;
class StridedView;

/// A tensor and, if it needs a gradient, its slot on a tape. A small value type; copies refer to
/// the same tensor.
class ZG_API Var {
 public:
  /// An absent Var: an optional input that was not given.
  Var() = default;
  Var(Tensor value);  ///< a constant; implicit, so that ops take a Tensor where they take a Var
  // Defined in the source: programs compile faster.
  Var(const Var&);
  Var(Var&&) noexcept;
  Var& operator=(const Var&);
  Var& operator=(Var&&) noexcept;
  ~Var();

  /// The tensor. A parameter is looked up at each call. value() throws NotResident if no Tape::Use
  /// of the parameter's unit is open. The result of permute() is copied at the first call;
  /// TapeError if the operand was changed in place before that.
  Tensor value() const;
  /// The same, for a parameter as it is stored (ParameterSource::stored()): its dtype may be
  /// narrower than dtype().
  Tensor stored() const;
  Shape shape() const;
  DType dtype() const;
  Device device() const;
  /// The tape on which an op with this Var computes: layers read parameters and settings from it.
  /// Values that ops compute keep it, also constants and values of an inference tape; a constant of
  /// two tapes has neither. Throws TapeError if it has none, or if the program's Tape is gone.
  Tape tape() const;
  bool needs_gradient() const { return slot_ >= 0; }
  explicit operator bool() const { return value_ || view_ || parameter_; }

 private:
  friend class Tape;
  friend struct TapeState;
  friend struct GradientPass;
  friend class StridedView;
  friend Var checkpoint(Tape&, std::span<const Var>,
                        std::function<Var(Tape&, std::span<const Var>)>);
  friend Tensor early_gradient(const Var&);
  friend Var detach(const Var&);
  Tensor value_;
  std::shared_ptr<const StridedView> view_;  // in place of value_: it is copied when it is read
  std::shared_ptr<TapeState> tape_;          // null: a constant that no tape has made
  const Parameter* parameter_ = nullptr;
  int slot_ = -1;               // index of the gradient's slot on the tape; -1: no gradient
  bool is_derivative_ = false;  // a constant computed from a gradient that backward returned
};

/// The value as Tensor prints it. "absent" if there is none.
ZG_API std::ostream& operator<<(std::ostream& out, const Var& x);

/// The argument of an op's backward function: everything that the function may use.
class ZG_API BackwardPass {
 public:
  /// The gradient of an output. Absent if that output does not affect the loss; never absent for an
  /// op with one output.
  const Tensor& gradient_of_output(int output = 0) const;
  /// A tensor that was given to record() as saved. The unit of a saved parameter is acquired again
  /// for this op's backward. A tape runs backward once: an op may write over a tensor that only it
  /// has saved.
  Tensor saved(int index) const;
  bool needs(int input) const;
  /// Uninitialised memory for the gradient of an input, with the input's shape. Its dtype is the
  /// accumulator dtype for a parameter and for the outputs of some collectives, otherwise the
  /// input's dtype.
  Tensor make_gradient(int input) const;
  /// Adds to the gradient of an input; does nothing if !needs(input). `gradient` has the input's
  /// shape, and the input's dtype or its accumulator dtype. The caller must not write to `gradient`
  /// afterwards.
  void accumulate(int input, Tensor gradient) const;
  /// Takes the sum of what the input's other uses gave so far off the tape, for an op whose kernel
  /// adds its own gradient to it; the op accumulates the total. It may write to this tensor only if
  /// buffer().use_count() is 1. Absent if there is none yet, if it has another dtype, or if the
  /// input is a parameter.
  Tensor take_gradient(int input, DType dtype) const;
  /// The sum of what a parameter's other uses gave so far. An op adds its own gradient to it in
  /// place and does not accumulate(). Absent if there is none yet, if the input is not a parameter,
  /// or if the memory is shared.
  Tensor begun_gradient(int input) const;
  Stream& stream() const;
  Device device() const;

 private:
  friend struct TapeState;
  int slot_of(int input) const;
  TapeState* tape_ = nullptr;
  size_t entry_ = 0;
};

/// The argument of an op's composed backward, which grad() calls if its result is to have a
/// derivative: gradients and operands are Vars, and the ops that compute with them are recorded.
class ZG_API ComposedPass {
 public:
  /// Absent if that output does not affect the result of grad().
  Var gradient_of_output(int output = 0) const;
  Tensor saved(int index) const;
  /// An input of which saved(index) has the values; absent if that is absent.
  Var input(int input, int index) const;
  Var output(int output, int index) const;  ///< the same of an output
  bool needs(int input) const;
  Shape shape_of(int input) const;  ///< of an input that needs a gradient
  /// Adds to the gradient of an input: summed over the axes along which the input was repeated, and
  /// in its dtype. Does nothing if !needs(input) or if `gradient` is absent.
  void accumulate(int input, const Var& gradient) const;
  /// Accumulates the gradients of an output that this function has computed again, as `y`, from
  /// input() and output() by other ops.
  void differentiate(const Var& y, int output = 0) const;

 private:
  friend struct GradientPass;
  ComposedPass(GradientPass& pass, size_t entry);
  GradientPass& pass_;
  std::vector<int> inputs_, outputs_;  // slots
  size_t entry_, begin_;               // the op, and the first op that the function records
};

/// Stores the activations that ops save for backward, but not parameters and not parameters'
/// gradients that an op computed in forward. ZeRO's activation offload implements it.
class ZG_API ActivationStore {
 public:
  virtual ~ActivationStore() = default;
  /// Returns the tensor that the tape keeps in place of `tensor`, with the same shape and dtype.
  virtual Tensor keep(const Tensor& tensor, Stream& stream) = 0;
  /// Returns the tensor on the device for a `kept` one, for backward.
  virtual Tensor fetch(const Tensor& kept, Stream& stream) = 0;
};

/// A linear record of one forward pass. Execution order is already a topological order, so backward
/// runs over the entries in reverse and frees each one: no sort, no graph. One tape per
/// micro-batch; backward runs once.
class ZG_API Tape {
 public:
  explicit Tape(const Device& device, ParameterSource* parameters = nullptr,
                TapeMode mode = TapeMode::record, ActivationStore* activations = nullptr);
  /// Reads parameters of several sources, for example of a generator and a discriminator, and gives
  /// each its gradients. Without `activations` it uses those of the first source that has some.
  Tape(const Device& device, std::vector<ParameterSource*> sources,
       TapeMode mode = TapeMode::record, ActivationStore* activations = nullptr);
  ~Tape();
  Tape(Tape&&) noexcept;
  Tape& operator=(Tape&&) noexcept;

  Var parameter(const Parameter& parameter) const;
  /// A tensor without a gradient, of any dtype, from which layers find this tape.
  Var constant(Tensor value) const;
  /// A tensor whose gradient can be read with gradient() after backward. f64, f32, bf16 or f16. A
  /// kernel or copy() that changes a tensor between an op and its backward makes backward throw
  /// TapeError, if the op saved the tensor. Writes through Tensor::data() are not seen.
  Var variable(Tensor value) const;

  /// Throws ShapeError unless `loss` has one element, TapeError when the loss is not on this tape,
  /// when backward has already run on this tape, or when an exception passed through an open unit.
  /// Every gradient is multiplied by `scale` (loss scaling).
  void backward(const Var& loss, double scale = 1.0);
  /// Backward from several outputs, with a given gradient for each (a vector-Jacobian product).
  void backward(std::span<const Var> outputs, std::span<const Tensor> gradients);

  /// The gradient of a variable() after backward; absent when the outputs do not depend on it. It
  /// is a constant. An op that computes with it and with a value that needs a gradient throws
  /// TapeError, because the derivative of the gradient would be left out; detach() it if that is
  /// meant, or take grad() (autograd/grad.h), whose result has a derivative.
  Tensor gradient(const Var& variable) const;

  Stream& stream() const;
  Device device() const;
  TapeMode mode() const;
  bool is_open(const Unit& unit) const;             ///< whether a Use of the unit is open
  bool reads(const ParameterSource& source) const;  ///< whether it is one of the tape's sources

  /// The settings of this type that layers read from the tape: those of the innermost With, or T().
  /// nn::Pass (models/nn.h) is such a type.
  template <class T>
  const T& get() const {
    static const T none{};
    const void* found = find(typeid(T));
    return found ? *static_cast<const T*>(found) : none;
  }
  /// RAII: a copy of settings is on the tape in this scope. Scopes nest. A segment of checkpoint()
  /// has the settings of the place where checkpoint() was called, also when backward runs it again.
  class ZG_API With {
   public:
    template <class T>
    With(const Tape& tape, T settings)
        : With(tape, typeid(T), std::make_shared<const T>(std::move(settings))) {}
    ~With();
    With(const With&) = delete;
    With& operator=(const With&) = delete;

   private:
    With(const Tape& tape, const std::type_info& type, std::shared_ptr<const void> settings);
    std::shared_ptr<TapeState> tape_;
    size_t count_;
  };

  /// RAII: the ops in this scope may read the unit's parameters. In forward the constructor
  /// acquires the unit and the destructor releases it. Both also record an entry, use_begin and
  /// use_end, on the tape. Backward acquires the unit again at use_end if an op saved one of its
  /// parameters, and releases it at use_begin. At the use_begin of the unit's first use in forward,
  /// the unit's gradients are complete, and backward passes them to ParameterSource::reduce. So ops
  /// need no code for ZeRO-3.
  class ZG_API Use {
   public:
    Use(const Tape& tape, const Unit& unit);
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
  friend class Var;
  friend struct TapeState;
  friend struct GradientPass;
  friend Var checkpoint(Tape&, std::span<const Var>,
                        std::function<Var(Tape&, std::span<const Var>)>);
  Tape(std::shared_ptr<TapeState> state, bool is_handle)
      : state_(std::move(state)), is_handle_(is_handle) {}
  const void* find(const std::type_info& type) const;
  void end();
  std::shared_ptr<TapeState> state_;
  bool is_handle_ = false;  // Var::tape(): the tape is the program's other object
};

namespace detail {
using BackwardThunk = void (*)(const void* numbers, const BackwardPass&);
using ComposedThunk = void (*)(const void* numbers, const ComposedPass&);
ZG_API std::vector<Var> record(const char* op, std::span<const Var> inputs,
                               std::span<const Tensor> outputs, std::span<const Tensor> saved,
                               const void* numbers, size_t numbers_bytes, BackwardThunk backward,
                               ComposedThunk composed = nullptr);
}  // namespace detail

/// Records an op on the tape of its inputs. If no input needs a gradient, or the tape is for
/// inference, nothing is recorded and the outputs are constants. `backward` is a captureless lambda
/// (const Numbers&, const BackwardPass&); pass constants in a trivially copyable struct, and
/// tensors in `saved`, so that the tape can count, offload and gather the tensors. If a saved
/// tensor is a view of a parameter, the tape keeps only the parameter and the offset, not the
/// bytes. `composed`, (const Numbers&, const ComposedPass&), computes the same gradients by
/// recorded ops, for derivatives of gradients; or it returns that of input 0 from that of the one
/// output: (const Numbers&, const Var&). Without it grad() throws Unsupported. Throws TapeError
/// when inputs belong to two tapes or to one whose backward has run.
template <class Numbers, class Backward, class Composed = std::nullptr_t>
std::vector<Var> record(const char* op, std::span<const Var> inputs,
                        std::span<const Tensor> outputs, std::span<const Tensor> saved,
                        const Numbers& numbers, Backward, Composed = nullptr) {
  static_assert(std::is_empty_v<Backward>, "backward must capture nothing; pass Numbers and saved");
  static_assert(std::is_trivially_copyable_v<Numbers>, "Numbers must be trivially copyable");
  static_assert(alignof(Numbers) <= alignof(std::max_align_t));
  detail::ComposedThunk composed = nullptr;
  if constexpr (!std::is_null_pointer_v<Composed>)
    composed = [](const void* bytes, const ComposedPass& pass) {
      const Numbers& n = *static_cast<const Numbers*>(bytes);
      if constexpr (std::is_invocable_v<Composed, const Numbers&, const Var&>)
        pass.accumulate(0, Composed{}(n, pass.gradient_of_output()));
      else
        Composed{}(n, pass);
    };
  return detail::record(
      op, inputs, outputs, saved, &numbers, sizeof(Numbers),
      [](const void* bytes, const BackwardPass& pass) {
        Backward{}(*static_cast<const Numbers*>(bytes), pass);
      },
      composed);
}

template <class Numbers, class Backward, class Composed = std::nullptr_t>
Var record(const char* op, std::initializer_list<Var> inputs, const Tensor& output,
           std::initializer_list<Tensor> saved, const Numbers& numbers, Backward backward,
           Composed composed = nullptr) {
  return record(
      op, std::span<const Var>(inputs.begin(), inputs.size()), std::span<const Tensor>(&output, 1),
      std::span<const Tensor>(saved.begin(), saved.size()), numbers, backward, composed)[0];
}

/// Uninitialised memory for a gradient that an op computes in forward, because backward would have
/// to compute the same values again. It has the input's shape and the accumulator dtype. Pass it to
/// record() in `saved`. The gradient of the output exists only in backward: multiply this tensor by
/// it there, in place if you like, and pass the product to accumulate(). Absent unless
/// input.needs_gradient().
ZG_API Tensor early_gradient(const Var& input);

/// Runs `segment` without recording and keeps only its inputs. Backward runs it again on a separate
/// tape. Chen et al. 2016, arXiv:1604.06174. Pass tensors through `inputs` (using a captured Var
/// that needs a gradient throws TapeError) and read parameters through the segment's tape argument.
/// grad() in a segment throws TapeError: forward records nothing of it.
/// Backward often runs after the function that called checkpoint() has returned. So capture layers
/// that live as long as the model by reference, and everything local by value:
///
///     checkpoint(tape, {x}, [&block = blocks[i], scale](Tape&, std::span<const Var> in) {
///       return scale * block(in[0]);
///     });
ZG_API Var checkpoint(Tape& tape, std::span<const Var> inputs,
                      std::function<Var(Tape&, std::span<const Var>)> segment);
inline Var checkpoint(Tape& tape, std::initializer_list<Var> inputs,
                      std::function<Var(Tape&, std::span<const Var>)> segment) {
  return checkpoint(tape, std::span(inputs.begin(), inputs.size()), std::move(segment));
}

/// The same of one Var, on its tape.
inline Var checkpoint(const Var& x, std::function<Var(const Var&)> segment) {
  Tape tape = x.tape();
  return checkpoint(tape, {x}, [segment = std::move(segment)](Tape&, std::span<const Var> in) {
    return segment(in[0]);
  });
}

}  // namespace zg
