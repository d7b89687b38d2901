#include "zerograd/autograd/ops/op.h"

#include <algorithm>
#include <numeric>

#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/kernels/movement/movement.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// A tensor around one axis: `outer` slabs, each with `row` elements per step along the axis.
struct Slabs {
  int64_t outer = 1, row = 1;

  Slabs(const Shape& shape, int axis) {
    for (int i = 0; i < axis; ++i) outer *= shape[i];
    for (int i = axis + 1; i < shape.rank(); ++i) row *= shape[i];
  }
};

}  // namespace

Tensor operand(const char* op, const char* name, const Var& x) {
  if (!x) raise<ShapeError>("{}: {} is absent; expected a tensor", op, name);
  return x.value();
}

Shape operand_shape(const char* op, const char* name, const Var& x) {
  if (!x) raise<ShapeError>("{}: {} is absent; expected a tensor", op, name);
  return x.shape();
}

Tensor matrix_operand(const char* op, const char* x_name, const Tensor& x, const char* name,
                      const Var& matrix, bool recorded) {
  if (recorded || !matrix || matrix.dtype() != x.dtype()) {
    Tensor values = operand(op, name, matrix);
    check_alike(op, x_name, x, name, values);
    return values;
  }
  Tensor stored = matrix.stored();
  check_device(op, {&x, &stored});
  return stored;
}

int64_t widened_rows(const Tensor& matrix, int64_t rows) {
  constexpr int64_t few_rows = 8;
  const bool on_host = matrix.device().traits().backend == Device::Type::cpu;
  const int64_t elements = int64_t{1} << (!on_host ? 23 : rows <= few_rows ? 18 : 20);
  return std::max<int64_t>(elements / std::max<int64_t>(matrix.extent(1), 1) / 64 * 64, 64);
}

void check_index(const char* op, const char* name, const Tensor& index) {
  check_dtype(op, name, index, {DType::i32, DType::i64});
}

void check_holds(const char* op, DType dtype, int64_t first, int64_t last) {
  if (dtype != DType::i64 &&
      !(holds(dtype, static_cast<double>(first)) && holds(dtype, static_cast<double>(last))))
    raise<DTypeError>("{}: {} does not hold the numbers {} to {}; try DType::i64", op, dtype, first,
                      last);
}

Tensor floating_operand(const char* op, const char* name, const Var& x) {
  const Tensor values = operand(op, name, x);
  check_floating(op, name, values.dtype());
  return values;
}

void check_floating(const char* op, const char* name, DType dtype) {
  if (!is_floating(dtype))
    raise<DTypeError>("{}: {} holds {}; expected f64, f32, bf16 or f16; try cast({}, DType::f32)",
                      op, name, dtype, name);
}

void check_numbers(const char* op, const char* name, const Tensor& x) {
  check_dtype(op, name, x,
              {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64});
}

Tensor number_operand(const char* op, const char* name, const Var& x) {
  const Tensor values = operand(op, name, x);
  check_numbers(op, name, values);
  return values;
}

void rethrow_as(const char* op, const Error& error) {
  const std::string text = error.what(), type = error.type();
  const size_t name = text.find(": ");
  const bool of_operands = type == "ShapeError" || type == "DTypeError" || type == "ConfigError" ||
                           text.find(": tensors on two devices") == name;
  const auto renamed = of_operands && name != std::string::npos
                           ? error.with_message(op + text.substr(name))
                           : std::exception_ptr();
  if (renamed) std::rethrow_exception(renamed);
  throw;
}

bool is_whole(const Var& x) { return x && (x.dtype() == DType::i32 || x.dtype() == DType::i64); }

void check_number(const char* op, double value, const Tensor& x) {
  if (!holds(x.dtype(), value))
    raise<DTypeError>(
        "{}: got the number {} for an operand of {} {}; expected a whole number that the dtype "
        "holds; try to cast the operand to a floating dtype",
        op, value, x.dtype(), x.shape());
}

Var number_like(const char* op, double value, const Tensor& x) {
  check_number(op, value, x);
  return Tensor::full({}, value, x.dtype(), x.device());
}

Var in_reverse_order(const Var& x) { return is_whole(x) ? add(neg(x), -1.0) : neg(x); }

void check_alike(const char* op, const char* name_a, const Tensor& a, const char* name_b,
                 const Tensor& b) {
  if (a.dtype() != b.dtype())
    raise<DTypeError>("{}: {} holds {} and {} holds {}; expected one dtype; try cast", op, name_a,
                      a.dtype(), name_b, b.dtype());
  check_device(op, {&a, &b});
}

void check_host_memory(const char* op, const Shape& shape, int64_t bytes) {
  static const int64_t machine = memory_limit_bytes();
  const int64_t most = std::min(machine, addresses_left_bytes());
  if (shape.numel() > most / bytes)
    raise<OutOfMemory>(
        "{}: the values of {} take {} bytes of host memory; expected at most {}; try a smaller "
        "shape",
        op, shape, shape.numel() * bytes, most);
}

void check_rank(const char* op, const char* name, const Shape& x, int rank) {
  if (x.rank() < rank) refuse_shape(op, name, x, fmt::format("rank {} or more", rank));
}

void refuse_shape(const char* op, const char* name, const Shape& got, const std::string& expected) {
  raise<ShapeError>("{}: {} has shape {}; expected {}", op, name, got, expected);
}

int axis_of(const char* op, const Shape& shape, int axis) {
  const int rank = shape.rank();
  if (axis < -rank || axis >= rank)
    raise<ShapeError>(
        "{}: axis {} of shape {}; expected {}", op, axis, shape,
        rank == 0 ? std::string("no axis of a scalar") : fmt::format("{} to {}", -rank, rank - 1));
  return axis < 0 ? axis + rank : axis;
}

Var without_gradient(const char* op, std::initializer_list<Var> inputs, const Tensor& y) {
  std::vector<Var> detached;
  for (const Var& input : inputs) detached.push_back(detach(input));
  return detail::record(op, detached, {&y, 1}, {}, nullptr, 0, nullptr)[0];
}

Tensor empty_like(const Tensor& x) { return empty_like(x, x.shape()); }

Tensor empty_like(const Tensor& x, const Shape& shape) {
  return Tensor::empty(shape, x.dtype(), x.device());
}

Shape rows_of(const Shape& shape) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < shape.rank(); ++i) rows *= shape[i];
  return {rows, shape.rank() == 0 ? 1 : shape[-1]};
}

InputGradient::InputGradient(const BackwardPass& pass, int input) : pass_(pass), input_(input) {
  if (pass.needs(input)) taken_ = written_ = pass.make_gradient(input);
}

InputGradient::InputGradient(const BackwardPass& pass, int input, DType written)
    : InputGradient(pass, input) {
  if (taken_ && taken_.dtype() != written)
    written_ = Tensor::empty(taken_.shape(), written, taken_.device());
}

Tensor InputGradient::view(const Shape& shape) const {
  return written_ ? written_.view(shape) : Tensor();
}

void InputGradient::accumulate() const {
  if (!taken_) return;
  if (taken_.dtype() != written_.dtype()) kernels::cast({written_, taken_}, pass_.stream());
  pass_.accumulate(input_, taken_);
}

BlockSums::BlockSums(const Tensor& sum, const Shape& x, int64_t token_blocks)
    : token_blocks_(token_blocks), count_(1), sum_(sum) {
  if (token_blocks_ > 0) count_ = x.numel() / std::max<int64_t>(x[-1] * x[-2], 1) * token_blocks_;
  if (!sum_) return;
  const Shape shape{count_, sum_.numel()};
  parts_ = token_blocks_ > 0 ? empty_like(sum_, shape) : sum_.view(shape);
}

Tensor BlockSums::part(int64_t run) const {
  return parts_ ? parts_.flat(run * sum_.numel(), sum_.numel()) : Tensor();
}

void BlockSums::add(Stream& stream) const {
  if (!sum_ || token_blocks_ == 0) return;
  const int64_t C = sum_.numel(), row = token_blocks_ * C;
  const Tensor blocks = empty_like(sum_, {1, row});
  // In the order of one column: that of more may depend on their number.
  kernels::reduce({ReduceOp::sum, parts_.view({count_ / token_blocks_, row}), blocks, 1u << 0, 1},
                  stream);
  add_in_tree(blocks, token_blocks_, C, stream);
  copy(blocks.flat(0, C), sum_, stream);
}

void check_token_blocks(const char* op, const Shape& x, int64_t token_blocks) {
  if (token_blocks > 0 && (x.rank() < 2 || x[-2] % token_blocks != 0))
    refuse_shape(op, "x", x, fmt::format("[..., T, C] with {} equal blocks of T", token_blocks));
}

void add_in_tree(const Tensor& pieces, int64_t count, int64_t n, Stream& stream) {
  for (int64_t step = 1; step < count; step *= 2)
    for (int64_t i = 0; i < count; i += 2 * step)
      kernels::axpby({.x = pieces.flat((i + step) * n, n), .y = pieces.flat(i * n, n), .b = 1.0},
                     stream);
}

Tensor scaled(const Tensor& x, double factor, Stream& stream) {
  const Tensor y = empty_like(x);
  kernels::axpby({.x = x, .y = y, .a = factor, .b = 0.0}, stream);
  return y;
}

void expand(const Tensor& x, const Tensor& y, Stream& stream) {
  kernels::strided_copy({.x = x,
                         .y = y,
                         .extents = y.shape(),
                         .x_strides = broadcast_strides(x.shape(), y.shape()),
                         .y_strides = broadcast_strides(y.shape(), y.shape())},
                        stream);
}

void accumulate_reduced(const BackwardPass& pass, int input, const Tensor& gradient,
                        const Shape& shape) {
  if (!pass.needs(input)) return;
  if (gradient.shape() == shape) return pass.accumulate(input, gradient);
  const int missing = gradient.shape().rank() - shape.rank();
  Shape kept = gradient.shape();
  uint32_t axes = 0;
  for (int i = 0; i < kept.rank(); ++i) {
    if (kept[i] == (i < missing ? 1 : shape[i - missing])) continue;
    kept = kept.with(i, 1);
    axes |= 1u << i;
  }
  if (axes == 0) return pass.accumulate(input, gradient.view(shape));
  const InputGradient reduced(pass, input);
  kernels::reduce({ReduceOp::sum, gradient, reduced.view(kept), axes}, pass.stream());
  reduced.accumulate();
}

AxisOrder AxisOrder::swapping(int rank, int a, int b) {
  AxisOrder axes{.rank = rank};
  std::iota(axes.order.begin(), axes.order.end(), 0);
  auto at = [&](int axis) -> int& { return axes.order[static_cast<size_t>((axis + rank) % rank)]; };
  std::swap(at(a), at(b));
  return axes;
}

AxisOrder AxisOrder::inverse() const {
  AxisOrder axes{.rank = rank};
  for (int i = 0; i < rank; ++i) axes.order[static_cast<size_t>(order[static_cast<size_t>(i)])] = i;
  return axes;
}

Tensor block(const Tensor& x, int axis, int64_t begin, int64_t end, Stream& stream) {
  const Slabs slabs(x.shape(), axis);
  const Shape shape = x.shape().with(axis, end - begin);
  if (slabs.outer == 1) return x.flat(begin * slabs.row, shape.numel()).view(shape);
  const Tensor part = empty_like(x, shape);
  if (part.numel() == 0) return part;
  const int64_t run = (end - begin) * slabs.row;
  kernels::strided_copy({.x = x,
                         .y = part,
                         .extents = {slabs.outer, run},
                         .x_strides = {x.extent(axis) * slabs.row, 1},
                         .y_strides = {run, 1},
                         .x_offset = begin * slabs.row},
                        stream);
  return part;
}

void write_block(const Tensor& part, const Tensor& whole, int axis, int64_t begin, Stream& stream) {
  if (part.numel() == 0) return;
  const Slabs slabs(whole.shape(), axis);
  const int64_t run = part.extent(axis) * slabs.row;
  kernels::strided_copy({.x = part,
                         .y = whole,
                         .extents = {slabs.outer, run},
                         .x_strides = {run, 1},
                         .y_strides = {whole.extent(axis) * slabs.row, 1},
                         .y_offset = begin * slabs.row},
                        stream);
}

}  // namespace zg
