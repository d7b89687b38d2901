#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "zerograd/autograd/ordering.h"
#include "zerograd/autograd/tape.h"
#include "zerograd/kernels/attention/attention.h"
#include "zerograd/kernels/attention/rope.h"
#include "zerograd/kernels/elementwise/gated.h"
#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/runtime/random.h"

// Differentiable ops, free functions on Var. Shapes broadcast as in numpy and PyTorch; rank up to
// 6; negative axes count from the end. If no operand is on a tape, an op only computes. Compilers
// evaluate arguments, and the operands of operators, in different orders: f(op(a), op(b)) and
// a * b + c * d have equal bits and memory with one compiler, statements of one op each with all. A
// wrong operand is a ShapeError or DTypeError that names the op, thrown before any work. Dtypes are
// never converted implicitly: call cast(). A result that is a contiguous range of its operand
// (reshape, a slice along axis 0) shares its memory.
//
// Dtypes: f64, f32, bf16 and f16 (HPU: f32 and bf16; CUDA: not f64). Ops that move or choose
// elements, where and masked_fill take any dtype. i32 and i64 also have add, sub, mul, div,
// remainder, neg, abs, sign, square, relu, maximum, minimum, clamp, comparisons, sum, prod, max,
// min, argmax, argmin, sort, topk, dot, outer, cumsum, cumprod, cummax, cummin, scan, index_add,
// index_max and scatter_add; numbers keep their dtype and wrap around. bool has logic, comparisons,
// argsort, and sum and cumsum, which count in i64.
namespace zg {

class Communicator;

// --- arithmetic with broadcasting; operands of one dtype ---
ZG_API Var add(const Var& a, const Var& b);
ZG_API Var sub(const Var& a, const Var& b);
ZG_API Var mul(const Var& a, const Var& b);
/// Integers: the quotient without its fraction, as in C++: torch.div(rounding_mode="trunc"). For
/// PyTorch's a / b cast a and b to a floating dtype; its a // b is (a - remainder(a, b)) / b. The
/// least integer / -1 wraps around. A divisor of 0 is a ConfigError on the CPU, a ShapeError of the
/// next synchronize() on an accelerator; both name its place.
ZG_API Var div(const Var& a, const Var& b);
ZG_API Var pow(const Var& a, const Var& b);
ZG_API Var maximum(const Var& a, const Var& b);
ZG_API Var minimum(const Var& a, const Var& b);
/// `b` is rounded to a's dtype, as in the next five and comparisons.
ZG_API Var add(const Var& a, double b);
ZG_API Var sub(const Var& a, double b);
ZG_API Var pow(const Var& a, double b);
ZG_API Var maximum(const Var& a, double b);
ZG_API Var minimum(const Var& a, double b);
ZG_API Var logaddexp(const Var& a, double b);
ZG_API Var sub(double a, const Var& b);  ///< a is rounded to b's dtype
ZG_API Var mul(const Var& a, double b);  ///< b is not rounded
ZG_API Var div(const Var& a, double b);  ///< floating a: multiplies by 1 / b, which is not rounded
ZG_API Var div(double a, const Var& b);  ///< a is rounded to b's dtype
/// log(exp(a) + exp(b)) without overflow; floating. As in PyTorch two equal infinities give this
/// infinity and gradients of NaN.
ZG_API Var logaddexp(const Var& a, const Var& b);
/// a - floor(a / b) b, exactly, with the sign of b: torch.remainder. NaN if a is infinite or b is
/// 0; an integer b of 0 is the error of div(). The gradients are 1 and -floor(a / b), exactly.
ZG_API Var remainder(const Var& a, const Var& b);
ZG_API Var remainder(const Var& a, double b);
ZG_API Var where(const Var& condition, const Var& a, const Var& b);  ///< condition: bool
ZG_API Var where(const Var& condition, const Var& a, double b);      ///< b is rounded to a's dtype
ZG_API Var where(const Var& condition, double a, const Var& b);
/// x where the mask is false, elsewhere `value`, rounded to x's dtype. The mask is bool and
/// broadcasts.
ZG_API Var masked_fill(const Var& x, const Var& mask, double value);
/// x limited to low .. high, which are rounded to x's dtype; an infinite one limits no integer. The
/// gradient is 1 for elements between the limits and 0 for others, also those equal to a limit and
/// NaN, which stays. Throws ConfigError if low > high.
ZG_API Var clamp(const Var& x, double low, double high);

// --- comparisons with broadcasting: constants of dtype bool; of bools, false is less than true ---
ZG_API Var equal(const Var& a, const Var& b);
ZG_API Var not_equal(const Var& a, const Var& b);
ZG_API Var less(const Var& a, const Var& b);
ZG_API Var less_equal(const Var& a, const Var& b);
ZG_API Var greater(const Var& a, const Var& b);
ZG_API Var greater_equal(const Var& a, const Var& b);
ZG_API Var equal(const Var& a, double b);
ZG_API Var not_equal(const Var& a, double b);
ZG_API Var less(const Var& a, double b);
ZG_API Var less_equal(const Var& a, double b);
ZG_API Var greater(const Var& a, double b);
ZG_API Var greater_equal(const Var& a, double b);
// --- logic: constants of dtype bool; a, b and x are bool and broadcast ---
ZG_API Var logical_and(const Var& a, const Var& b);
ZG_API Var logical_or(const Var& a, const Var& b);
ZG_API Var logical_not(const Var& x);
ZG_API Var isnan(const Var& x);     ///< x is floating
ZG_API Var isfinite(const Var& x);  ///< neither infinite nor NaN; x is floating

// --- unary ---
ZG_API Var neg(const Var& x);
ZG_API Var exp(const Var& x);
ZG_API Var log(const Var& x);
ZG_API Var sqrt(const Var& x);
ZG_API Var tanh(const Var& x);
ZG_API Var sigmoid(const Var& x);
ZG_API Var relu(const Var& x);
ZG_API Var abs(const Var& x);  ///< the gradient at 0 is 0
ZG_API Var reciprocal(const Var& x);
ZG_API Var rsqrt(const Var& x);  ///< reciprocal(sqrt(x))
// The next four: x of any shape, f64 | f32 | bf16 | f16; y has its shape and dtype. DTypeError if x
// is not floating, ShapeError if it is absent. f64 is the C library's. The accuracy is that of f32;
// bf16 and f16 are computed in f32 and rounded once. NaN gives NaN.
/// x in radians. Within 2 ulp (HPU: OpenCL's 4) for every finite x, however large; NaN for infinite
/// x. The gradient is cos(x), as accurate.
ZG_API Var sin(const Var& x);
ZG_API Var cos(const Var& x);  ///< as sin; the gradient is -sin(x)
/// 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x. Within 2 ulp (HPU: OpenCL's 16). The
/// gradient is 2 / sqrt(pi) exp(-x^2), with a relative error of x^2 roundings.
ZG_API Var erf(const Var& x);
/// log(1 + x), without loss of digits near 0. Within 2 ulp. -infinity for -1, NaN below. The
/// gradient is 1 / (1 + x).
ZG_API Var log1p(const Var& x);
ZG_API Var silu(const Var& x);
// The next ones: as the four above (sign and square: also integers). -0 gives -0 where the function
// is 0 there, but sign and square 0.
ZG_API Var floor(const Var& x);   ///< the gradient is 0, as of the next three
ZG_API Var ceil(const Var& x);    ///< the least integer that is not below x
ZG_API Var round(const Var& x);   ///< the nearest integer; of two the even one
ZG_API Var sign(const Var& x);    ///< 1, -1, or 0 for 0 and NaN
ZG_API Var square(const Var& x);  ///< x * x
/// exp(x) - 1, without loss of digits near 0. Within 2 ulp (HPU: 3).
ZG_API Var expm1(const Var& x);
ZG_API Var exp2(const Var& x);  ///< as pow(2, x)
/// Exact for powers of two. Within 2 ulp (HPU: 3). -infinity for 0, NaN below.
ZG_API Var log2(const Var& x);
ZG_API Var softplus(const Var& x);    ///< log(1 + exp(x)), without overflow
ZG_API Var logsigmoid(const Var& x);  ///< log(sigmoid(x)) = -softplus(-x)
/// x if x > 0, else alpha * (exp(x) - 1), whose slope at 0 counts.
ZG_API Var elu(const Var& x, double alpha = 1.0);
ZG_API Var leaky_relu(const Var& x, double slope = 0.01);  ///< x if x > 0, else slope * x
/// x * min(max(x + 3, 0), 6) / 6. The gradient at -3 is 0, at 3 it is 1.
ZG_API Var hard_swish(const Var& x);
/// sin(x) / cos(x). Within 4 ulp (HPU: 8).
ZG_API Var tan(const Var& x);
ZG_API Var asin(const Var& x);  ///< within 8 ulp; NaN beyond [-1, 1], as acos
ZG_API Var acos(const Var& x);
ZG_API Var atan(const Var& x);  ///< within 3 ulp (HPU: 5)
ZG_API Var sinh(const Var& x);  ///< within 8 ulp (HPU: 16), as cosh; overflows as the value
ZG_API Var cosh(const Var& x);
ZG_API Var gelu(const Var& x, Activation form = Activation::gelu_tanh);  ///< gelu_tanh | gelu_erf

// --- reductions; without axes: over all of them ---
/// Axes of a reduction: one, several in braces, or none for all. A negative axis counts from the
/// end.
class Axes {
 public:
  Axes() = default;
  Axes(std::signed_integral auto axis)  // one that int does not hold is an axis of no shape
      : axes_{static_cast<int>(std::clamp<int64_t>(axis, INT32_MIN, INT32_MAX))} {}
  Axes(std::initializer_list<int> axes) : axes_(axes) {}
  explicit Axes(std::vector<int> axes) : axes_(std::move(axes)) {}

  auto begin() const { return axes_.begin(); }
  auto end() const { return axes_.end(); }
  size_t size() const { return axes_.size(); }

 private:
  std::vector<int> axes_;
};
/// In x's dtype, where PyTorch's sum and prod of i32 are i64; of bools the number of trues, i64.
ZG_API Var sum(const Var& x, const Axes& axes = {}, bool keep_axes = false);
ZG_API Var mean(const Var& x, const Axes& axes = {}, bool keep_axes = false);
/// The gradient is divided evenly among equal maxima, as in torch.amax. It is NaN where the maximum
/// is.
ZG_API Var max(const Var& x, const Axes& axes = {}, bool keep_axes = false);
ZG_API Var min(const Var& x, const Axes& axes = {}, bool keep_axes = false);
/// Sum of squared distances to the mean, divided by (elements - correction): 1 for a sample's
/// variance, 0 for a population's. bf16 and f16 are computed in f32. Throws ShapeError unless there
/// are more elements than `correction`.
ZG_API Var var(const Var& x, const Axes& axes = {}, int64_t correction = 1, bool keep_axes = false);
/// sqrt(var(x)). The gradient is 0 where it is 0. Call it by zg::std: the namespace of the standard
/// library has the same name.
ZG_API Var std(const Var& x, const Axes& axes = {}, int64_t correction = 1, bool keep_axes = false);
/// The product, 1 of no elements. Made of log2(extent) products of halves along each axis, so that
/// the gradient is exact where x has zeros.
ZG_API Var prod(const Var& x, const Axes& axes = {}, bool keep_axes = false);
/// torch.linalg.vector_norm for p = 1, 2 or infinity: the sum of the sizes, the root of the sum of
/// squares, the largest size; floating. The squares of bf16 and f16 are f32. The gradient is 0 for
/// elements that are 0, and divided evenly among equal largest ones. ConfigError for another p.
ZG_API Var norm(const Var& x, double p = 2.0, const Axes& axes = {}, bool keep_axes = false);
/// Whether an element is true, or all are; x is bool, the result is a constant. Of no elements
/// false and true.
ZG_API Var any(const Var& x, const Axes& axes = {}, bool keep_axes = false);
ZG_API Var all(const Var& x, const Axes& axes = {}, bool keep_axes = false);
/// log(sum(exp(x))), computed without overflow; infinite if an element is +inf or all are -inf.
/// Throws ShapeError if there are no elements.
ZG_API Var logsumexp(const Var& x, const Axes& axes = {}, bool keep_axes = false);
ZG_API Var softmax(const Var& x, int axis = -1);
ZG_API Var log_softmax(const Var& x, int axis = -1);

// --- shape ---
ZG_API Var reshape(const Var& x, const Shape& shape);
/// One extent may be -1 and is computed from the others: reshape(x, {B, -1}).
ZG_API Var reshape(const Var& x, std::initializer_list<int64_t> extents);
/// Axis i of y is axis axes[i] of x. Copied for ops that need it: see ops/strided.h.
ZG_API Var permute(const Var& x, std::initializer_list<int> axes);
ZG_API Var transpose(const Var& x, int a, int b);  ///< exchanges two axes
ZG_API Var squeeze(const Var& x, int axis);        ///< without an axis of extent 1
ZG_API Var unsqueeze(const Var& x, int axis);      ///< with a new axis of extent 1 at `axis` of y
ZG_API Var slice(const Var& x, int axis, int64_t begin, int64_t end);
ZG_API Var concat(std::span<const Var> parts, int axis);
ZG_API Var stack(std::span<const Var> parts, int axis);  ///< of one shape, along a new axis of y
inline Var concat(std::initializer_list<Var> parts, int axis) {
  return concat(std::span(parts.begin(), parts.size()), axis);
}
inline Var stack(std::initializer_list<Var> parts, int axis) {
  return stack(std::span(parts.begin(), parts.size()), axis);
}
/// Copies along each axis of x, counts[i] of them along axis i: torch.Tensor.repeat with a count
/// for each axis.
ZG_API Var repeat(const Var& x, std::initializer_list<int64_t> counts);
/// x with `before` and `after` elements of `value` at both ends of an axis.
ZG_API Var pad(const Var& x, int axis, int64_t before, int64_t after, double value = 0.0);
/// The elements along some axes in reverse order.
ZG_API Var flip(const Var& x, const Axes& axes);
/// y[(i + shift) mod extent] = x[i] along an axis: torch.roll.
ZG_API Var roll(const Var& x, int64_t shift, int axis);
/// x [n]: a matrix with x on a diagonal, j = i + `diagonal`, and 0 elsewhere. x of rank 2: its
/// diagonal.
ZG_API Var diag(const Var& x, int64_t diagonal = 0);
/// Axis i of the grids is the vector axes[i]: torch.meshgrid(indexing="ij").
ZG_API std::vector<Var> meshgrid(std::span<const Var> axes);
/// The lower (tril) or upper triangle of the last two axes, which includes the diagonal j = i +
/// `diagonal`; 0 elsewhere.
ZG_API Var tril(const Var& x, int64_t diagonal = 0);
ZG_API Var triu(const Var& x, int64_t diagonal = 0);
ZG_API std::vector<Var> split(const Var& x, std::span<const int64_t> sizes, int axis);
inline std::vector<Var> split(const Var& x, std::initializer_list<int64_t> sizes, int axis) {
  return split(x, std::span(sizes.begin(), sizes.size()), axis);
}
ZG_API Var broadcast_to(const Var& x, const Shape& shape);
ZG_API Var cast(const Var& x, DType dtype);
/// The same tensor as a constant: a number, without a gradient.
ZG_API Var detach(const Var& x);

// --- constants ---
/// begin, begin + 1, ..., end - 1; any dtype but bool. Each number is rounded to the dtype.
ZG_API Tensor arange(int64_t begin, int64_t end, DType dtype, const Device& device);
/// Independent values of the standard normal distribution. The same (seed, name, element) has the
/// same value on every device; rounded to a floating dtype.
ZG_API Tensor randn(const Shape& shape, uint64_t seed, const std::string& name, DType dtype,
                    const Device& device);
/// The values of a parameter of this name and whole shape (Init, parameter.h), rounded to a dtype.
ZG_API Tensor initial_values(const Init& init, const Shape& shape, uint64_t seed,
                             const std::string& name, DType dtype, const Device& device);
/// Normal values between a and b: torch.nn.init.trunc_normal_. ConfigError unless std > 0, a < b.
ZG_API Tensor truncated_normal(const Shape& shape, uint64_t seed, const std::string& name,
                               const TruncatedNormal& limits, DType dtype, const Device& device);
/// The same for numbers uniform in [low, high), which may round to `high`; 1 with probability p,
/// else 0; whole numbers in [low, high); and the numbers 0 to count - 1 in random order, i64.
/// ConfigError unless 0 <= p <= 1, low < high.
ZG_API Tensor uniform(const Shape& shape, uint64_t seed, const std::string& name, double low,
                      double high, DType dtype, const Device& device);
ZG_API Tensor bernoulli(const Shape& shape, double p, uint64_t seed, const std::string& name,
                        DType dtype, const Device& device);
ZG_API Tensor randint(const Shape& shape, int64_t low, int64_t high, uint64_t seed,
                      const std::string& name, DType dtype, const Device& device);
ZG_API Tensor permutation(int64_t count, uint64_t seed, const std::string& name,
                          const Device& device);
/// torch.multinomial: indices of categories, i64 [num_samples] or [rows, num_samples], drawn with
/// probabilities in proportion to the floating weights `input` [categories] or [rows, categories];
/// without replacement in the order of drawing. An index depends on seed, name, the weights of its
/// row and its place. The host waits for the weights. ConfigError if a weight is negative, infinite
/// or NaN, if a row's sum is 0, if num_samples < 1, or if fewer weights than that are above 0
/// without replacement. A meta device has no weights: only shapes are checked.
ZG_API Tensor multinomial(const Tensor& input, int64_t num_samples, bool replacement, uint64_t seed,
                          const std::string& name);
/// `count` numbers at equal distances from begin to end, both included: torch.linspace.
ZG_API Tensor linspace(double begin, double end, int64_t count, DType dtype, const Device& device);
/// 1 where j = i, else 0.
ZG_API Tensor eye(int64_t rows, int64_t columns, DType dtype, const Device& device);
ZG_API Tensor full_like(const Tensor& x, double value);
/// [..., classes], 1 at [..., ids[...]] and 0 elsewhere. ids: i32 | i64; an id outside of
/// [0, classes) gives a row of zeros.
ZG_API Tensor one_hot(const Tensor& ids, int64_t classes, DType dtype = DType::f32);

// --- products ---
/// [..., M, K] x [..., K, N] = [..., M, N]; leading axes broadcast. A vector is one row of a, or
/// one column of b, and the result has no axis for it: torch.matmul.
ZG_API Var matmul(const Var& a, const Var& b);
/// Sums of products by the letters of axes, floating: "bthd,bshd->bhts". "..." stands for leading
/// axes, which broadcast; a letter twice in one operand takes a diagonal; without "->" the result
/// has the letters that come once, in alphabetical order. Multiplied from left to right by matmul.
ZG_API Var einsum(const std::string& equation, std::span<const Var> operands);
inline Var einsum(const std::string& equation, std::initializer_list<Var> operands) {
  return einsum(equation, std::span(operands.begin(), operands.size()));
}
/// Sums over pairs of axes, of a and b in their order: torch.tensordot.
ZG_API Var tensordot(const Var& a, const Var& b, const Axes& axes_of_a, const Axes& axes_of_b);
ZG_API Var dot(const Var& a, const Var& b);    ///< the sum of a[i] * b[i], of vectors
ZG_API Var outer(const Var& a, const Var& b);  ///< y[i][j] = a[i] * b[j]
/// y = activation(x weight^T + bias); x [..., in], weight [out, in], bias [out] or absent. Saves
/// the values that backward of the activation needs.
ZG_API Var linear(const Var& x, const Var& weight, const Var& bias = {},
                  Activation activation = Activation::none);

/// A rank's weight of a linear layer that ranks divide, and its bias or none. It consists of
/// `blocks` equal blocks, of each of which a group has at most `extent` rows (columns).
struct SplitWeight {
  Var weight, bias;
  int64_t extent;
  int64_t blocks = 1;
};
/// y_i = x weight_i^T + bias_i of weights [rows, in] with up to three blocks in all. The gradient
/// of x is one sum: its terms meet in the tree of `groups`, those of this rank (ReductionGroups);
/// give it an x of copy_to_ranks_by_tree().
ZG_API std::vector<Var> split_linears(const Var& x, std::span<const SplitWeight> parts,
                                      int64_t groups);
/// h = x, with an activation activation(x), or with `up`, of x's shape, gated(x, up, gate).
/// Backward computes h again: the tape keeps only x and up.
struct SplitOperand {
  Var x, up = {};
  Activation activation = Activation::none;
  Gate gate = Gate::silu;
};
/// The sum over the ranks of h weight^T, plus the bias, rounded once; weight [out, columns]. The
/// terms meet in the tree of all ranks' groups. `ranks` may be null. With `sequence` the result is
/// this rank's slice of the tokens T of h [..., T, columns]. The bias's gradient is summed over the
/// tokens of each group alone, and the groups meet in a tree: of all groups, with `sequence` of
/// this rank's (give it a bias of copy_to_ranks() by tree). ShapeError unless they divide T.
ZG_API Var split_sum(const SplitOperand& h, const SplitWeight& part, int64_t groups,
                     Communicator* ranks, bool sequence = false);

// --- layers ---
/// y = activation(x fc_weight^T + fc_bias) out_weight^T + out_bias: two linear() in one. It saves
/// only the hidden layer before its activation and computes the activation again in backward. x
/// [..., in], fc_weight [hidden, in], out_weight [out, hidden]; biases [hidden] and [out] or
/// absent; gelu_tanh | gelu_erf.
ZG_API Var feed_forward(const Var& x, const Var& fc_weight, const Var& fc_bias,
                        const Var& out_weight, const Var& out_bias,
                        Activation activation = Activation::gelu_tanh);
/// g(gate) * up, of one shape and dtype; g is the function of `form`.
ZG_API Var gated(const Var& gate, const Var& up, Gate form = Gate::silu);
/// gated(x gate_weight^T, x up_weight^T) out_weight^T: the MLP of Llama (SwiGLU) and Gemma (GEGLU).
/// It saves both products and computes the gate again in backward. x [..., in], gate_weight and
/// up_weight [hidden, in], out_weight [out, hidden].
ZG_API Var gated_feed_forward(const Var& x, const Var& gate_weight, const Var& up_weight,
                              const Var& out_weight, Gate form = Gate::silu);
// Norms over the last axis of x. The gradients of gamma and beta are sums over all rows in an order
// that depends on their number. With `token_blocks`, a power of two, they are sums over so many
// equal blocks of the tokens T of x [..., T, C], which meet in a balanced tree: the same on one
// rank as on several that divide blocks and tokens and add their gradients in a tree. ShapeError
// unless it divides T.
ZG_API Var layer_norm(const Var& x, const Var& gamma, const Var& beta, float epsilon = 1e-5f,
                      int64_t token_blocks = 0);
struct NormedSum {
  Var sum, normed;
};
/// sum = x + delta and its layer_norm in one pass over memory.
ZG_API NormedSum add_layer_norm(const Var& x, const Var& delta, const Var& gamma, const Var& beta,
                                float epsilon = 1e-5f, int64_t token_blocks = 0);
ZG_API Var rms_norm(const Var& x, const Var& gamma, float epsilon = 1e-5f,
                    int64_t token_blocks = 0);
/// sum = add(x, delta) and its norm, in one pass over memory. Values and gradients have the bits of
/// the two ops: the gradient of sum is rounded before the norm's is added to it, while
/// add_layer_norm rounds their sum once.
ZG_API NormedSum layer_norm_of_sum(const Var& x, const Var& delta, const Var& gamma,
                                   const Var& beta, float epsilon = 1e-5f,
                                   int64_t token_blocks = 0);
ZG_API NormedSum rms_norm_of_sum(const Var& x, const Var& delta, const Var& gamma,
                                 float epsilon = 1e-5f, int64_t token_blocks = 0);
/// weight[ids] (+ position[t + first_position]); ids [B, T] i32 | i64, result [B, T, C]. Without
/// `position` ids may have any shape of up to five axes.
ZG_API Var embedding(const Tensor& ids, const Var& weight, const Var& position = {},
                     int64_t first_position = 0);
/// Keeps an element with probability 1 - p, multiplied by 1 / (1 - p), and sets the others to 0.
/// Axis 0 is the sample (DropoutKey). p = 0 returns x.
ZG_API Var dropout(const Var& x, float p, const DropoutKey& key);

/// Rotary positions of queries or keys x [B, T, heads * D]: each head's elements i and i + R / 2
/// are turned by the angles of the token's row of `table` (rope_table(), [positions, R],
/// accumulator dtype). Token t has the row first_position + t, or the row positions[b][t] of an i32
/// tensor [B, T].
ZG_API Var rope(const Var& x, int64_t heads, const Tensor& table, int64_t first_position = 0);
ZG_API Var rope(const Var& x, int64_t heads, const Tensor& table, const Tensor& positions);

struct AttentionOptions {
  bool causal = true;
  float scale = 0.0f;    ///< 0: 1 / sqrt(head size)
  float dropout = 0.0f;  ///< on the attention weights
  DropoutKey key;
  Tensor bias;  ///< additive, [T, keys] or [H, T, keys], accumulator dtype; constant
  /// ALiBi: [H], accumulator dtype, constant. Adds slope[h] * (j - i) to the score of the query at
  /// position i and the key at position j. zg::alibi_slopes() (kernels/attention/attention.h)
  /// returns the paper's slopes.
  Tensor alibi_slopes;
  QKVOrder order = QKVOrder::by_part;  ///< order of q, k and v in qkv
  /// The query at position p attends to the keys from p - window + 1 on, if causal; 0: to all.
  int64_t window = 0;
  /// Packed documents: [B, T] i32, constant; the first token of the document of each token. A token
  /// attends to its own document only. Causal, with as many keys as queries.
  Tensor starts;
  Tensor key_lengths;  ///< [B] i32, constant: padding; later keys of the sample are hidden
};
/// Multi-head attention on a fused projection: qkv [B, T, 3C], in options.order.
ZG_API Var attention(const Var& qkv, int heads, const AttentionOptions& options = {});
/// The same on separate q [B, H, T, D], k and v [B, kv_heads, keys, D]. If causal, query t attends
/// to the keys up to keys - T + t. kv_heads divides H: query head h attends to head
/// h / (H / kv_heads), as scaled_dot_product_attention(enable_gqa=True) of PyTorch. A query that
/// sees no key gives 0 and has zero gradients.
ZG_API Var attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options);
/// The same on three projections as they are, without a copy: q [B, T, heads * D], k and v
/// [B, keys, kv_heads * D]; y [B, T, heads * D]. D and kv_heads follow from the shapes.
ZG_API Var attention(const Var& q, const Var& k, const Var& v, int heads,
                     const AttentionOptions& options);

// --- losses in the accumulator dtype: scalars, but with Reduction::none ---
/// Mean over targets that are not ignored (NaN when all are, as in PyTorch); logits [..., V],
/// targets [...] i32 | i64.
ZG_API Var cross_entropy(const Var& logits, const Tensor& targets, int64_t ignore_index = -1);
/// cross_entropy() of logits = x weight^T; x [..., C], weight [V, C]. The logits are computed in
/// chunks and are never whole in memory. If the op is recorded, forward also computes the
/// gradients, and backward multiplies them. If all targets are ignored, loss and gradients are 0: a
/// micro-batch without targets adds nothing to a step.
ZG_API Var projection_cross_entropy(const Var& x, const Var& weight, const Tensor& targets,
                                    int64_t ignore_index = -1);

/// Losses of rows or elements: as they are, or their sum or mean, which is a scalar.
enum class Reduction : uint8_t { none, sum, mean };

struct CrossEntropyOptions {
  int64_t ignore_index = -1;  ///< targets of this value have a loss of 0 and do not count in a mean
  /// In [0, 1]. A target's probability is 1 - label_smoothing; the rest is divided equally among
  /// all V tokens, the target included (Szegedy et al. 2016, arXiv:1512.00567; as in PyTorch).
  double label_smoothing = 0.0;
  Reduction reduction = Reduction::mean;  ///< none: losses in the shape of targets
};
/// cross_entropy() above with more choices. Label smoothing takes memory of the size of the logits.
ZG_API Var cross_entropy(const Var& logits, const Tensor& targets,
                         const CrossEntropyOptions& options);
/// -target log(p) - (1 - target) log(1 - p) with p = sigmoid(logits), element by element: binary
/// cross entropy. target: shape and dtype of logits, values in [0, 1].
ZG_API Var binary_cross_entropy(const Var& logits, const Var& target,
                                Reduction reduction = Reduction::mean);
/// target (log(target) - log_p), element by element; 0 where target is 0: the divergence of
/// Kullback and Leibler. target has the shape and dtype of log_p; with `log_target` it is a
/// logarithm, too. The mean is over elements; torch's "batchmean" is the sum divided by the extent
/// of axis 0. The gradient of a target of 0 leaves out its infinite part.
ZG_API Var kl_divergence(const Var& log_p, const Var& target, Reduction reduction = Reduction::mean,
                         bool log_target = false);
/// Squared differences; target has the shape and dtype of x.
ZG_API Var mse(const Var& x, const Var& target, Reduction reduction = Reduction::mean);
/// d^2 / 2 for sizes d of differences up to delta, then delta (d - delta / 2). torch's
/// smooth_l1_loss is this divided by its beta = delta. ConfigError unless delta is above 0.
ZG_API Var huber(const Var& x, const Var& target, double delta = 1.0,
                 Reduction reduction = Reduction::mean);

// --- operators: the functions above by their signs ---
// A comparison returns a bool tensor. `if (a < b)` does not test its elements: a Var in a condition
// is true if it is not absent. Use (a < b).value().item() for a single element.
inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator+(const Var& a, double b) { return add(a, b); }
inline Var operator+(double a, const Var& b) { return add(b, a); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator-(const Var& a, double b) { return sub(a, b); }
inline Var operator-(double a, const Var& b) { return sub(a, b); }
inline Var operator-(const Var& x) { return neg(x); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator*(const Var& a, double b) { return mul(a, b); }
inline Var operator*(double a, const Var& b) { return mul(b, a); }
inline Var operator/(const Var& a, const Var& b) { return div(a, b); }
inline Var operator/(const Var& a, double b) { return div(a, b); }
inline Var operator/(double a, const Var& b) { return div(a, b); }
inline Var& operator+=(Var& a, const Var& b) { return a = a + b; }
inline Var& operator-=(Var& a, const Var& b) { return a = a - b; }
inline Var& operator*=(Var& a, const Var& b) { return a = a * b; }
inline Var& operator/=(Var& a, const Var& b) { return a = a / b; }
inline Var& operator+=(Var& a, double b) { return a = a + b; }
inline Var& operator-=(Var& a, double b) { return a = a - b; }
inline Var& operator*=(Var& a, double b) { return a = a * b; }
inline Var& operator/=(Var& a, double b) { return a = a / b; }
inline Var operator==(const Var& a, const Var& b) { return equal(a, b); }
inline Var operator==(const Var& a, double b) { return equal(a, b); }
inline Var operator==(double a, const Var& b) { return equal(b, a); }
inline Var operator!=(const Var& a, const Var& b) { return not_equal(a, b); }
inline Var operator!=(const Var& a, double b) { return not_equal(a, b); }
inline Var operator!=(double a, const Var& b) { return not_equal(b, a); }
inline Var operator<(const Var& a, const Var& b) { return less(a, b); }
inline Var operator<(const Var& a, double b) { return less(a, b); }
inline Var operator<(double a, const Var& b) { return greater(b, a); }
inline Var operator<=(const Var& a, const Var& b) { return less_equal(a, b); }
inline Var operator<=(const Var& a, double b) { return less_equal(a, b); }
inline Var operator<=(double a, const Var& b) { return greater_equal(b, a); }
inline Var operator>(const Var& a, const Var& b) { return greater(a, b); }
inline Var operator>(const Var& a, double b) { return greater(a, b); }
inline Var operator>(double a, const Var& b) { return less(b, a); }
inline Var operator>=(const Var& a, const Var& b) { return greater_equal(a, b); }
inline Var operator>=(const Var& a, double b) { return greater_equal(a, b); }
inline Var operator>=(double a, const Var& b) { return less_equal(b, a); }

}  // namespace zg
