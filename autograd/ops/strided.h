#pragma once

#include <mutex>
#include <optional>

#include "zerograd/autograd/ops/op.h"

// Operands whose elements have another order in memory: the results of permute(), transpose() and
// broadcast_to(). These copy nothing at first. matmul, einsum, where, concat, slice, split and the
// ops of two operands read them in place, on the CPU with the bits of a copy (ops of two operands
// only if the last axis stays last). sum, mean and max of permuted axes read them in place, too:
// they add in the order of the memory. permute, broadcast_to and, where the strides allow it,
// reshape return such a view again. The first other op that reads the result, or its value(),
// copies the elements. The result keeps the operand's memory. If the operand is changed in place
// before the copy, reading the result is a TapeError. Copied at once: integers, bool, parameters,
// the result of an all_gather, memory of other programs.
namespace zg {

/// Element i of `shape` is element sum of i * strides of a tensor. Axes of extent 1
/// have a stride of 0.
struct Layout {
  Shape shape;
  Strides strides{};

  static Layout contiguous(const Shape& shape);
  bool is_contiguous() const;  ///< the elements follow each other
  Layout permuted(const AxisOrder& axes) const;
  Layout broadcast_to(const Shape& to) const;  ///< the new axes have strides of 0
  /// With other extents; none if an axis would have elements at uneven distances.
  std::optional<Layout> reshaped(const Shape& to) const;
  /// The axes from the outermost to the innermost in memory; none if elements share memory.
  std::optional<AxisOrder> order_in_memory() const;
};

struct StridedOperand {
  Tensor source;  ///< contiguous; its own shape does not matter
  Layout layout;

  Tensor contiguous() const;  ///< shares the source's memory if the layout is contiguous
  /// Those with which an element-wise kernel reads the source for a result of shape `y`; none if
  /// the layout is contiguous.
  std::optional<Strides> strides_in(const Shape& y) const;
};

/// Writes the elements to y, which is contiguous.
void copy_to(const StridedOperand& x, const Tensor& y, Stream& stream);

/// The value of a Var that is copied when its elements are read in their own order for the first
/// time. Copies of the Var share it, and so the copy.
class StridedView {
 public:
  StridedView(const char* op, StridedOperand operand);

  const StridedOperand& operand() const { return operand_; }
  Tensor value() const;  ///< TapeError if the source was changed before the copy was made
  /// The operand of an op that takes strides: the source, also after a copy was made, so that the
  /// op computes the same whether or not the program has printed the value. The copy, if it or the
  /// source was changed in place since. Throws as value().
  StridedOperand current() const;

  /// Whether a view of x, with x's elements in `source`, may be copied late. False for dtypes that
  /// are not floating, for memory of parameters and of other programs, which changes unseen, and
  /// for the result of an all_gather, of which backward keeps a slice.
  static bool may_view(const Var& x, const Tensor& source);
  static StridedOperand operand_of(const Var& x);
  /// y, which was recorded by `op` with an absent output, or whose value is the source, as a view.
  static Var attached(const char* op, Var y, StridedOperand operand);

 private:
  void check_unchanged() const;
  const char* op_;
  StridedOperand operand_;
  uint32_t version_;  // of the source
  mutable std::mutex mutex_;
  mutable Tensor copy_;
  mutable uint32_t version_of_copy_ = 0;
};

/// The operand without a copy. ShapeError if it is absent.
StridedOperand strided_operand(const char* op, const char* name, const Var& x);
/// The same for an element-wise kernel: a copy if neighbours along the last axis are apart in
/// memory, which a copy in blocks reads faster.
StridedOperand rows_operand(const char* op, const char* name, const Var& x);
/// The operand of a composed backward that saved the source of a strided one.
Var with_layout(const char* op, const Var& saved, const Layout& layout);
/// The output of an op that only moves elements: memory of the source if the layout is contiguous,
/// absent if it may be a view, else a copy.
Tensor moved(const Var& x, const StridedOperand& y);
/// Elements [begin, end) along an axis; shares memory if they are contiguous.
Tensor block(const StridedOperand& x, int axis, int64_t begin, int64_t end, Stream& stream);
/// Copies `part` into `whole`, from index `begin` of an axis on.
void write_block(const StridedOperand& part, const Tensor& whole, int axis, int64_t begin,
                 Stream& stream);

/// Permutes a Var. `op`: the name under which it is recorded.
Var permuted(const char* op, const Var& x, const AxisOrder& axes);

}  // namespace zg
