#include "zerograd/kernels/attention/rope.h"

#include <cmath>

#include "zerograd/kernels/slots.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// The factor of cosines and sines.
double scale_of(const RopeOptions& o) {
  if (o.scaling != RopeScaling::yarn && o.scaling != RopeScaling::longrope) return 1.0;
  if (o.attention_factor > 0.0) return o.attention_factor;
  if (o.scaling == RopeScaling::longrope)
    return o.factor <= 1.0
               ? 1.0
               : std::sqrt(1.0 + portable::log(o.factor) /
                                     portable::log(static_cast<double>(o.original_positions)));
  return o.factor <= 1.0 ? 1.0 : 0.1 * portable::log(o.factor) + 1.0;
}

template <class T>
Tensor table_of(const RopeOptions& options, int64_t R, int64_t positions, const Device& device,
                int64_t first) {
  const std::vector<float> frequencies = rope_frequencies(options, R, positions);
  const T scale = static_cast<T>(scale_of(options));
  std::vector<T> table(static_cast<size_t>((positions - first) * R));
  T* row = table.data();
  for (int64_t p = first; p < positions; ++p, row += R)
    for (int64_t i = 0; i < R / 2; ++i) {
      const float angle = static_cast<float>(p) * frequencies[static_cast<size_t>(i)];
      row[i] = static_cast<T>(portable::cos(static_cast<double>(angle))) * scale;
      row[R / 2 + i] = static_cast<T>(portable::sin(static_cast<double>(angle))) * scale;
    }
  return Tensor::from(table, {positions - first, R}, device);
}

}  // namespace

Tensor rope_table(const RopeOptions& options, int64_t R, int64_t positions, DType dtype,
                  const Device& device, int64_t first) {
  if (positions < 1)
    raise<ShapeError>("rope_table: positions is {}; expected 1 or more", positions);
  if (first < 0 || first >= positions)
    raise<ShapeError>("rope_table: first is {}; expected 0 to {}", first, positions - 1);
  if (dtype == DType::f64) return table_of<double>(options, R, positions, device, first);
  if (dtype == DType::f32) return table_of<float>(options, R, positions, device, first);
  raise<DTypeError>("rope_table: the dtype is {}; expected f32 or f64", dtype);
}

void validate(const Rope& a) {
  const char* op = "rope";
  check_dtype(op, "x", a.x, floating);
  check_like(op, "y", a.y, a.x);
  if (a.x.shape().rank() != 3)
    raise<ShapeError>("rope: x has shape {}; expected [B, T, heads * D]", a.x.shape());
  if (a.heads < 1 || a.x.extent(2) % a.heads != 0)
    raise<ShapeError>("rope: heads is {}; expected a divisor of x's last axis {}", a.heads,
                      a.x.extent(2));
  check_dtype(op, "table", a.table, accumulator(a.x.dtype()));
  const int64_t D = a.x.extent(2) / a.heads;
  const Shape& table = a.table.shape();
  if (table.rank() != 2 || table[1] < 2 || table[1] % 2 != 0 || table[1] > D)
    raise<ShapeError>(
        "rope: table has shape {}; expected [positions, R] with R even and at most the head size "
        "{}",
        table, D);
  if (a.positions) {
    check_dtype(op, "positions", a.positions, DType::i32);
    check_shape(op, "positions", a.positions, {a.x.extent(0), a.x.extent(1)});
  } else if (a.first_position < 0 || a.first_position > table[0] - a.x.extent(1)) {
    raise<ShapeError>("rope: {} positions from {} are needed; expected 0 to {}", a.x.extent(1),
                      a.first_position, table[0] - 1);
  }
}

ZG_KERNEL(Rope, rope)

}  // namespace zg
