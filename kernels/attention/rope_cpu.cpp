#include "zerograd/kernels/attention/rope_cpu.h"

#include <algorithm>

#include "zerograd/kernels/attention/rope.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/text/format.h"

// Memory bound: one read and one write of x. A row of the table serves all heads of a token.
namespace zg::cpu {

ZG_DECLARE_LEVELS(RopeTable, rope_rotations)

namespace {

template <class T>
void rotate(const RopeToken& a) {
  using A = accumulator_t<T>;
  const int64_t half = a.rotated / 2;
  const A *cosines = static_cast<const A*>(a.row), *sines = cosines + half;
  for (int64_t h = 0; h < a.heads; ++h) {
    const T* x = static_cast<const T*>(a.x) + h * a.D;
    T* y = static_cast<T*>(a.y) + h * a.D;
    for (int64_t i = 0; i < half; ++i) {
      const A first = static_cast<A>(x[i]), second = static_cast<A>(x[i + half]);
      const A sine = a.backward ? -sines[i] : sines[i];
      y[i] = T(first * cosines[i] - second * sine);
      y[i + half] = T(second * cosines[i] + first * sine);
    }
    if (y != x) std::copy(x + a.rotated, x + a.D, y + a.rotated);
  }
}

constexpr RopeTable plain = {{rotate<double>}};

void check_positions(const Rope& a) {
  if (!a.positions) return;
  const int32_t* positions = a.positions.data<int32_t>();
  for (int64_t n = 0; n < a.positions.numel(); ++n)
    if (positions[n] < 0 || positions[n] >= a.table.extent(0))
      raise<ShapeError>("rope: positions[{}] is {}; expected 0 to {}", n, positions[n],
                        a.table.extent(0) - 1);
}

}  // namespace

void rope(const Rope& a, Workspace, Stream& stream) {
  check_positions(a);
  const int64_t T = a.x.extent(1), C = a.x.extent(2), R = a.table.extent(1);
  const int64_t size = size_of(a.x.dtype()), row_bytes = R * size_of(a.table.dtype());
  const int32_t* positions = a.positions ? a.positions.data<int32_t>() : nullptr;
  const auto type = static_cast<size_t>(a.x.dtype());
  const bool is_f64 = a.x.dtype() == DType::f64;
  const auto run = (is_f64 ? plain : ZG_AT_LEVEL(stream.traits().isa, rope_rotations)).rotate[type];
  constexpr int64_t chunk_elements = 1 << 14;
  const int64_t grain = std::max<int64_t>(1, chunk_elements / std::max<int64_t>(1, C));
  parallel_for(stream.traits().threads, a.x.extent(0) * T, grain, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const int64_t position = positions ? positions[n] : a.first_position + n % T;
      run({.x = a.x.raw() + n * C * size,
           .y = a.y.raw() + n * C * size,
           .row = a.table.raw() + position * row_bytes,
           .heads = a.heads,
           .D = C / a.heads,
           .rotated = R,
           .backward = a.backward});
    }
  });
}

}  // namespace zg::cpu
