#pragma once

#include <array>
#include <functional>

#include "zerograd/autograd/tape.h"
#include "zerograd/runtime/error.h"

// Shared by ops. Operands are checked before any work; messages name the op and the operand.
namespace zg {

struct CrossEntropyOptions;
struct ProjectionCrossEntropy;

/// Returns the operand's values; ShapeError if it is absent.
Tensor operand(const char* op, const char* name, const Var& x);
/// Its shape alone: a view is not copied. ShapeError if it is absent.
Shape operand_shape(const char* op, const char* name, const Var& x);
/// The same; also a DTypeError, which suggests a cast, unless the dtype is floating-point.
Tensor floating_operand(const char* op, const char* name, const Var& x);
/// That DTypeError alone.
void check_floating(const char* op, const char* name, DType dtype);
/// The matrix of a product with x. Without gradients (`recorded` is false) it is as it is stored,
/// which may be narrower than x: see widened_rows(). Throws as operand() and check_alike().
Tensor matrix_operand(const char* op, const char* x_name, const Tensor& x, const char* name,
                      const Var& matrix, bool recorded);
/// The rows of a matrix that are converted at a time, for a product with `rows` rows: few rows of a
/// product read the converted ones from a cache; on an accelerator each launch costs microseconds.
int64_t widened_rows(const Tensor& matrix, int64_t rows);
/// The same; also a DTypeError unless the dtype is floating-point, i32 or i64.
Tensor number_operand(const char* op, const char* name, const Var& x);
/// That DTypeError alone.
void check_numbers(const char* op, const char* name, const Tensor& x);
/// Throws an error of operands again, with `op` in place of the name at its beginning.
[[noreturn]] void rethrow_as(const char* op, const Error& error);
/// f(), whose errors name `op` in place of the op that f calls.
template <class F>
auto named(const char* op, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    rethrow_as(op, error);
  }
}
/// Whether x holds i32 or i64.
bool is_whole(const Var& x);
/// Throws DTypeError unless x's dtype is floating or bool, or has the number.
void check_number(const char* op, double value, const Tensor& x);
/// A number as a constant in x's dtype, which check_number() checks.
Var number_like(const char* op, double value, const Tensor& x);
/// x in reverse order: -x, of integers -1 - x, which does not overflow.
Var in_reverse_order(const Var& x);
/// For operands without a gradient, such as indices: DTypeError unless i32 or i64.
void check_index(const char* op, const char* name, const Tensor& index);
/// Throws DTypeError, which suggests a cast, unless the dtypes are equal; DeviceError for two
/// devices.
void check_alike(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                 const Tensor& b);
/// Throws DTypeError unless the dtype is floating, or has the numbers from first to last.
void check_holds(const char* op, DType dtype, int64_t first, int64_t last);
/// Throws OutOfMemory if this process may not have `bytes` of host memory for each element.
void check_host_memory(const char* op, const Shape& shape, int64_t bytes);
/// Throws ShapeError unless the rank is at least `rank`.
void check_rank(const char* op, const char* name, const Shape& x, int rank);
/// Throws the ShapeError "op: subject [shape]; expected ...".
[[noreturn]] void refuse_shape(const char* op, const char* name, const Shape& got,
                               const std::string& expected);
/// An axis counted from the front; ShapeError naming the op when x has no such axis.
int axis_of(const char* op, const Shape& shape, int axis);

/// The output of an op that has no gradient: a constant on the tape of the inputs.
Var without_gradient(const char* op, std::initializer_list<Var> inputs, const Tensor& y);

/// Uninitialised, with x's dtype and device and its shape or another.
Tensor empty_like(const Tensor& x);
Tensor empty_like(const Tensor& x, const Shape& shape);
/// A tensor's rows: its last axis, the others flattened.
Shape rows_of(const Shape& shape);

/// Memory in which a kernel writes the gradient of one input. The tape needs a parameter's gradient
/// in the accumulator dtype and any other in the input's dtype. If the kernel writes another dtype,
/// the memory is scratch and accumulate() converts it.
class InputGradient {
 public:
  /// For kernels that write either dtype.
  InputGradient(const BackwardPass& pass, int input);
  InputGradient(const BackwardPass& pass, int input, DType written);

  const Tensor& tensor() const { return written_; }  ///< absent if the input needs no gradient
  Tensor view(const Shape& shape) const;             ///< absent if the input needs no gradient
  explicit operator bool() const { return static_cast<bool>(written_); }
  void accumulate() const;  ///< passes the gradient to the tape

 private:
  const BackwardPass& pass_;
  int input_;
  Tensor taken_, written_;
};

/// The gradient [C] of a parameter that acts on every row of x [..., T, C], in an order that does
/// not depend on how many of the tokens T a rank has: a sum over each of `token_blocks` equal
/// blocks of T, a power of two. The sums of a block of all samples are added; the blocks meet in a
/// balanced tree. 0: one sum over all rows.
class BlockSums {
 public:
  /// `sum`: the gradient, in the accumulator dtype, or absent.
  BlockSums(const Tensor& sum, const Shape& x, int64_t token_blocks);
  int64_t count() const { return count_; }  ///< of equal runs of rows that are summed alone
  /// [count, C], where the sums of the runs are to be written; absent like `sum`.
  const Tensor& parts() const { return parts_; }
  Tensor part(int64_t run) const;  ///< [C]
  void add(Stream& stream) const;

 private:
  int64_t token_blocks_, count_;
  Tensor sum_, parts_;
};
/// Throws ShapeError unless x [..., T, C] has so many blocks of tokens, or none are asked for.
void check_token_blocks(const char* op, const Shape& x, int64_t token_blocks);
/// Adds `count` pieces of n elements, a power of two, in a balanced tree of neighbours, to the
/// first.
void add_in_tree(const Tensor& pieces, int64_t count, int64_t n, Stream& stream);

/// x * factor, for small tensors and seeds.
Tensor scaled(const Tensor& x, double factor, Stream& stream);

/// Writes x to y, repeated along the axes in which y is larger.
void expand(const Tensor& x, const Tensor& y, Stream& stream);

/// Passes a gradient of the broadcast shape on to an input of shape `shape`: sums it over the axes
/// along which the input was repeated.
void accumulate_reduced(const BackwardPass& pass, int input, const Tensor& gradient,
                        const Shape& shape);

/// A permutation of axes: axis i of the result is axis order[i] of the operand.
struct AxisOrder {
  int rank = 0;
  std::array<int, Shape::max_rank> order{};

  static AxisOrder swapping(int rank, int a, int b);  ///< negative axes count from the end
  AxisOrder inverse() const;
};

/// Records y as x's elements at places along an axis, like gather(). `index` has y's shape, or [1]
/// for a scalar.
Var recorded_gather(const char* op, const Var& x, int axis, const Tensor& index, const Tensor& y);

/// Elements [begin, end) along an axis; shares memory if they are contiguous.
Tensor block(const Tensor& x, int axis, int64_t begin, int64_t end, Stream& stream);
/// Copies `part` into `whole`, from index `begin` of an axis on.
void write_block(const Tensor& part, const Tensor& whole, int axis, int64_t begin, Stream& stream);

// Shared by all losses that are means over targets, including the one in which each rank has the
// logits of some columns. Defined in loss.cpp.

/// The targets as one row, i32 or i64. Throws unless they have x's leading shape and device.
Tensor flat_targets(const char* op, const char* name, const Tensor& x, const Tensor& targets);
/// Throws ConfigError unless the number is in [0, 1].
void check_label_smoothing(const char* op, double smoothing);
/// The losses of targets, which are 0 where a target is ignored, with the reduction of the options.
Var reduced_losses(const Var& losses, const Tensor& targets, const CrossEntropyOptions& options);
/// Records the mean of a projection's losses. compute() makes the rows' losses and, where an input
/// needs them, the gradients of their sum in the same pass over the logits; backward only scales
/// these gradients. `args` has x with any leading axes, weight, flat targets and ignore_index; the
/// call fills in the rest. With sequence parallelism args.x may be all tokens of this rank's x.
Var mean_of_projection(const char* op, const Var& x, const Var& weight, ProjectionCrossEntropy args,
                       const std::function<void(const ProjectionCrossEntropy&)>& compute);

}  // namespace zg
