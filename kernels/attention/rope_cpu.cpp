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
  const RopeTable& table = ZG_AT_LEVEL(stream.traits().isa, rope_rotations);
  const auto run = table.rotate[static_cast<size_t>(a.x.dtype())];
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
