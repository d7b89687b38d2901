#include "zerograd/kernels/movement/embedding.h"

#include "zerograd/kernels/check.h"
#include "zerograd/kernels/slots.h"

namespace zg {
namespace {

constexpr auto floating = {DType::f64, DType::f32, DType::bf16, DType::f16};

void check_matrix(const char* op, const char* name, const Tensor& tensor, int64_t columns) {
  check_present(op, name, tensor);
  if (tensor.shape().rank() != 2 || tensor.extent(1) != columns)
    throw ShapeError(std::string(op) + ": " + name + " has shape " + tensor.shape().str() +
                     "; expected two axes, the last of " + std::to_string(columns));
}

void check_ids(const char* op, const Tensor& ids, int64_t tokens) {
  check_dtype(op, "ids", ids, {DType::i32, DType::i64});
  check_shape(op, "ids", ids, {tokens});
}

/// The N tokens are whole sequences of T, whose positions exist.
void check_positions(const char* op, int64_t N, int64_t T, int64_t first, int64_t P) {
  if (T <= 0 || N % T != 0)
    throw ShapeError(std::string(op) + ": T is " + std::to_string(T) +
                     "; expected a divisor of the " + std::to_string(N) + " tokens");
  if (first < 0 || first + T > P)
    throw ShapeError(std::string(op) + ": positions [" + std::to_string(first) + ", " +
                     std::to_string(first + T) + ") are needed; expected them within the " +
                     std::to_string(P) + " rows of position");
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
  check_device(op, {&a.ids, &a.weight, &a.position, &a.y});
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
  check_device(op, {&a.ids, &a.dy, &a.dweight, &a.dposition});
}

ZG_KERNEL(EmbeddingForward, embedding_forward)
ZG_KERNEL(EmbeddingBackward, embedding_backward)

}  // namespace zg
