#include "zerograd/kernels/movement/movement.h"

#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

void check_range(const char* name, const Tensor& tensor, const Shape& extents,
                 const Strides& strides, int64_t offset) {
  int64_t low = offset, high = offset;
  for (int i = 0; i < extents.rank(); ++i) {
    const int64_t span = (extents[i] - 1) * strides[static_cast<size_t>(i)];
    low += std::min<int64_t>(span, 0);
    high += std::max<int64_t>(span, 0);
  }
  if (extents.numel() > 0 && (low < 0 || high >= tensor.numel()))
    raise<ShapeError>(
        "strided_copy: elements {} to {} of {} are accessed; expected 0 to {}, the elements of "
        "shape {}",
        low, high, name, tensor.numel() - 1, tensor.shape());
}

/// Throws ShapeError unless `index` has as many axes as `tensor`, and no axis of `index` is longer
/// than the same axis of `tensor`. The extent of `axis` is not checked; axis -1: all extents are
/// checked.
void check_fits(const char* op, const Shape& index, const char* name, const Tensor& tensor,
                int axis) {
  bool fits = index.rank() == tensor.shape().rank();
  for (int i = 0; fits && i < index.rank(); ++i) fits = i == axis || index[i] <= tensor.extent(i);
  if (!fits)
    raise<ShapeError>("{}: index has shape {}; expected as many axes as {} {}, none longer{}", op,
                      index, name, tensor.shape(),
                      axis < 0 ? "" : fmt::format(" except axis {}", axis));
}

void check_indexed(const char* op, const Tensor& index, const Tensor& x, const Tensor& y) {
  check_present(op, "x", x);
  check_dtype(op, "index", index, {DType::i32, DType::i64});
  check_dtype(op, "y", y, x.dtype());
}

}  // namespace

void validate(const StridedCopy& args) {
  const char* op = "strided_copy";
  check_present(op, "x", args.x);
  check_dtype(op, "y", args.y, args.x.dtype());
  check_range("x", args.x, args.extents, args.x_strides, args.x_offset);
  check_range("y", args.y, args.extents, args.y_strides, args.y_offset);
  for (int i = 0; i < args.extents.rank(); ++i)
    if (args.extents[i] > 1 && args.y_strides[static_cast<size_t>(i)] == 0)
      raise<ShapeError>(
          "strided_copy: y has stride 0 along axis {} of the copied block {}; expected another "
          "stride, because several elements would be written to one",
          i, args.extents);
}

void validate(const Gather& args) {
  check_indexed("gather", args.index, args.x, args.y);
  const Shape named = named_shape(args.index.shape(), args.x.shape(), args.axis);
  check_fits("gather", named, "x", args.x, named.axis(args.axis));
  check_shape("gather", "y", args.y, named);
}

void validate(const ScatterAdd& args) {
  check_dtype("scatter_add", "y", args.y,
              {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64});
  check_indexed("scatter_add", args.index, args.x, args.y);
  const Shape named = named_shape(args.index.shape(), args.x.shape(), args.axis);
  check_fits("scatter_add", named, "x", args.x, -1);
  check_fits("scatter_add", named, "y", args.y, named.axis(args.axis));
}

ZG_KERNEL(StridedCopy, strided_copy)
ZG_KERNEL(Gather, gather)
namespace cpu {
int64_t workspace_bytes(const ScatterAdd&, const Device::Traits&);
}
ZG_KERNEL(ScatterAdd, scatter_add, cpu::workspace_bytes)

namespace {

void check_matrix(const char* op, const char* name, const Tensor& tensor, int64_t columns) {
  check_present(op, name, tensor);
  if (tensor.shape().rank() != 2 || tensor.extent(1) != columns)
    raise<ShapeError>("{}: {} has shape {}; expected a matrix with {} columns", op, name,
                      tensor.shape(), columns);
}

void check_ids(const char* op, const Tensor& ids, int64_t tokens) {
  check_dtype(op, "ids", ids, {DType::i32, DType::i64});
  check_shape(op, "ids", ids, {tokens});
}

/// Checks that the N tokens are whole sequences of length T and that their positions are below P,
/// the number of rows of the position table.
void check_positions(const char* op, int64_t N, int64_t T, int64_t first, int64_t P) {
  if (T <= 0 || N % T != 0)
    raise<ShapeError>(
        "{}: T (tokens per sequence) is {}; expected a divisor of the number of tokens, {}", op, T,
        N);
  if (first < 0 || first > P - T)
    raise<ShapeError>(
        "{}: {} positions from {} are used; expected 0 to {}, the rows of the position table", op,
        T, first, P - 1);
}

}  // namespace

void validate(const EmbeddingForward& a) {
  const char* op = "embedding_forward";
  check_dtype(op, "y", a.y, floating);
  check_matrix(op, "y", a.y, a.y.extent(-1));
  check_ids(op, a.ids, a.y.extent(0));
  check_dtype(op, "weight", a.weight, a.y.dtype());
  check_matrix(op, "weight", a.weight, a.y.extent(1));
  if (a.position) {
    check_dtype(op, "position", a.position, a.y.dtype());
    check_matrix(op, "position", a.position, a.y.extent(1));
    check_positions(op, a.y.extent(0), a.T, a.first_position, a.position.extent(0));
  }
}

void validate(const EmbeddingBackward& a) {
  const char* op = "embedding_backward";
  check_dtype(op, "dy", a.dy, floating);
  check_matrix(op, "dy", a.dy, a.dy.extent(-1));
  check_ids(op, a.ids, a.dy.extent(0));
  if (a.dweight) {
    check_dtype(op, "dweight", a.dweight, accumulator(a.dy.dtype()));
    check_matrix(op, "dweight", a.dweight, a.dy.extent(1));
  }
  if (a.dposition) {
    check_dtype(op, "dposition", a.dposition, accumulator(a.dy.dtype()));
    check_matrix(op, "dposition", a.dposition, a.dy.extent(1));
    check_positions(op, a.dy.extent(0), a.T, a.first_position, a.dposition.extent(0));
  }
}

ZG_KERNEL(EmbeddingForward, embedding_forward)

namespace cpu {
int64_t workspace_bytes(const EmbeddingBackward&, const Device::Traits&);
}
namespace {

/// 8 bytes for each token: on CUDA the token and its id, sorted by id; on HPU the index of the next
/// token with the same id.
int64_t token_bytes(const EmbeddingBackward& a, const Device::Traits&) {
  return a.dweight ? a.dy.extent(0) * int64_t{sizeof(int64_t)} : 0;
}

}  // namespace
ZG_KERNEL(EmbeddingBackward, embedding_backward, cpu::workspace_bytes, token_bytes, token_bytes)

}  // namespace zg
