#include "zerograd/kernels/matmul/matmul.h"

#include <algorithm>
#include <string>

#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

constexpr const char* op = "matmul";

/// One operand as it is stored: for each item of the batch, rows of `columns` elements,
/// `row_stride` apart.
struct Stored {
  const char* name;
  const Tensor& tensor;
  int64_t rows, columns, row_stride, stride;
};

void check_extent(const Stored& s, int64_t batch) {
  const int64_t row_stride = s.row_stride ? s.row_stride : s.columns;
  if (row_stride < s.columns)
    raise<ShapeError>("{}: rows of {} are {} apart; expected at least {}", op, s.name, row_stride,
                      s.columns);
  if (s.stride < 0)
    raise<ShapeError>("{}: stride of {} is {}; expected 0 or more", op, s.name, s.stride);
  if (s.rows == 0 || s.columns == 0) return;
  const int64_t needed = (batch - 1) * s.stride + (s.rows - 1) * row_stride + s.columns;
  if (needed > s.tensor.numel())
    raise<ShapeError>("{}: {} {} has {} elements; expected at least {} for {} of [{}, {}]", op,
                      s.name, s.tensor.shape(), s.tensor.numel(), needed, batch, s.rows, s.columns);
}

/// Items of a batch are written at the same time, so they must not share an element: either each
/// begins after the previous one ends, or they are side by side within the rows of c.
void check_disjoint(const Matmul& m) {
  const int64_t row_stride = m.ldc ? m.ldc : m.N;
  const bool behind = m.stride_c >= (m.M - 1) * row_stride + m.N;
  const bool beside = m.stride_c >= m.N && (m.batch - 1) * m.stride_c + m.N <= row_stride;
  if (m.batch > 1 && m.M > 0 && m.N > 0 && !behind && !beside)
    raise<ShapeError>("{}: products of a batch overlap in c; stride_c is {}, expected at least {}",
                      op, m.stride_c, (m.M - 1) * row_stride + m.N);
}

void check_row_sums(const Matmul& m) {
  check_shape(op, "row_sums", m.row_sums, {m.M});
  check_dtype(op, "row_sums", m.row_sums, {m.a.dtype(), accumulator(m.a.dtype())});
  if (m.batch > 1 || !m.transpose_a || (m.lda && m.lda != m.M) || m.accumulate)
    raise<Unsupported>(
        "{}: row_sums; expected one product, a transposed with rows {} apart, no accumulate; got "
        "{}{}, rows {} apart{}; try reduce",
        op, m.M, sizes(m), m.transpose_a ? "" : ", a not transposed",
        m.lda           ? m.lda
        : m.transpose_a ? m.M
                        : m.K,
        m.accumulate ? ", accumulate" : "");
}

void check_groups(const Matmul& m) {
  const ReductionGroups& groups = m.groups;
  if (groups.count < 0 || (groups.count & (groups.count - 1)) != 0)
    raise<ShapeError>("{}: {} groups; expected a power of two", op, groups.count);
  if (m.batch > 1 || m.accumulate)
    raise<Unsupported>("{}: groups with {}; expected one product that overwrites c", op,
                       m.batch > 1 ? "a batch" : "accumulate");
  int64_t sum = 0;
  for (const auto& [size, extent] : groups.blocks) {
    sum += size;
    if (size < 0 || groups.count * extent < size)
      raise<ShapeError>("{}: {} groups of {} do not cover a block of {}", op, groups.count, extent,
                        size);
  }
  if (sum != m.K)
    raise<ShapeError>("{}: the blocks of groups have {} elements; expected K, {}", op, sum, m.K);
}

}  // namespace

Reduce reduce_rows(const Matmul& m) {
  return {ReduceOp::sum, m.a.flat(0, m.K * m.M).view({m.K, m.M}), m.row_sums, 1u << 0};
}

std::string sizes(const Matmul& m) {
  return fmt::format("{}M {}, N {}, K {}{}{}",
                     m.batch > 1 ? fmt::format("batch {}, ", m.batch) : "", m.M, m.N, m.K,
                     m.transpose_a ? ", a transposed" : "", m.transpose_b ? ", b transposed" : "");
}

void validate(const Matmul& m) {
  check_dtype(op, "a", m.a, floating);
  check_dtype(op, "b", m.b, m.a.dtype());
  const DType sum = accumulator(m.a.dtype());
  if (m.accumulate)
    check_dtype(op, "c to accumulate into", m.c, sum);
  else
    check_dtype(op, "c", m.c, {m.a.dtype(), sum});
  if (m.M < 0 || m.N < 0 || m.K < 0 || m.batch < 1)
    raise<ShapeError>(
        "{}: expected M, N, K of 0 or more and batch of 1 or more, got {}, {}, {} and {}", op, m.M,
        m.N, m.K, m.batch);
  const auto stored = [](bool transpose, int64_t rows, int64_t columns) {
    return transpose ? std::pair(columns, rows) : std::pair(rows, columns);
  };
  const auto [a_rows, a_columns] = stored(m.transpose_a, m.M, m.K);
  const auto [b_rows, b_columns] = stored(m.transpose_b, m.K, m.N);
  check_extent({"a", m.a, a_rows, a_columns, m.lda, m.stride_a}, m.batch);
  check_extent({"b", m.b, b_rows, b_columns, m.ldb, m.stride_b}, m.batch);
  check_extent({"c", m.c, m.M, m.N, m.ldc, m.stride_c}, m.batch);
  check_disjoint(m);
  if (m.accumulate && (m.bias || m.pre_activation || m.activation != Activation::none))
    throw Unsupported(std::string(op) +
                      ": accumulate with an epilogue; expected no bias, activation or "
                      "pre_activation; try a second call");
  if (m.bias) {
    check_shape(op, "bias", m.bias, {m.N});
    check_dtype(op, "bias", m.bias, m.a.dtype());
  }
  if (m.pre_activation) {
    if (m.activation == Activation::none)
      throw Unsupported(std::string(op) +
                        ": pre_activation without an activation; expected gelu_tanh or "
                        "gelu_erf, got none; try c, which has the same values");
    check_dtype(op, "pre_activation", m.pre_activation, m.c.dtype());
    check_extent({"pre_activation", m.pre_activation, m.M, m.N, m.ldc, m.stride_c}, m.batch);
  }
  if (m.row_sums) check_row_sums(m);
  if (m.groups.count != 0) check_groups(m);
}

void adjust_count(OpCount& count, const Matmul& m) {
  const auto bytes = [](const Tensor& tensor, int64_t elements) {
    return tensor ? elements * static_cast<int64_t>(size_of(tensor.dtype())) : int64_t{0};
  };
  const auto items = [&](int64_t stride) { return stride == 0 ? int64_t{1} : m.batch; };
  const int64_t results = m.batch * m.M * m.N;
  count = {.bytes = bytes(m.a, items(m.stride_a) * m.M * m.K) +
                    bytes(m.b, items(m.stride_b) * m.K * m.N) + bytes(m.bias, m.N) +
                    bytes(m.c, m.accumulate ? 2 * results : results) + bytes(m.row_sums, m.M) +
                    bytes(m.pre_activation, results),
           .operations = 2 * results * m.K,
           .dtype = m.a.dtype(),
           .kind = KernelClass::product};
}

namespace {

int64_t row_sums_bytes(const Matmul& m, const Device::Traits& traits, Device::Type backend) {
  return m.row_sums ? kernels::reduce[backend].workspace_bytes(reduce_rows(m), traits) : 0;
}

/// Scratch for cuBLASLt algorithms that divide K into parts, which are faster if c has too few
/// tiles for the GPU, and for row_sums if the library does not compute them.
int64_t cuda_bytes(const Matmul& m, const Device::Traits& traits) {
  // 32 MiB is the size that the cuBLAS documentation recommends for Hopper. Small products need
  // none.
  constexpr int64_t bytes = int64_t{32} << 20;
  constexpr double small = 1e8;
  const double products = static_cast<double>(m.M) * static_cast<double>(m.N) *
                          static_cast<double>(m.K) * static_cast<double>(m.batch);
  return std::max(row_sums_bytes(m, traits, Device::Type::cuda),
                  m.a.dtype() == DType::f64 || products < small ? 0 : bytes);
}

int64_t hpu_bytes(const Matmul& m, const Device::Traits& traits) {
  return row_sums_bytes(m, traits, Device::Type::hpu);
}

}  // namespace

namespace cpu {
int64_t workspace_bytes(const Matmul&, const Device::Traits&);
}

ZG_KERNEL(Matmul, matmul, cpu::workspace_bytes, cuda_bytes, hpu_bytes)

}  // namespace zg
