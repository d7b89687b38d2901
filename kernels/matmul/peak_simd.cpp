#include "zerograd/kernels/matmul/pairs_simd.h"
#include "zerograd/kernels/matmul/peak_table.h"

namespace zg::cpu {
namespace {

// Number of independent sums: enough to hide the latency of a multiply-add (4 cycles, 2 per cycle),
// and few enough for 16 registers.
constexpr int sums = 12;

template <bool pairs>
float multiply_adds(int64_t steps) {
  Part sum[sums];
  for (int i = 0; i < sums; ++i) sum[i] = splat(static_cast<float>(i));
  const Part factor = splat(0.5f), term = splat(1.0f);
  for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 16
    for (int i = 0; i < sums; ++i) sum[i] = multiply_add<pairs>(factor, term, sum[i]);
  for (int i = 1; i < sums; ++i) sum[0] = sum[0] + sum[i];
  return sum[0][0];
}

template <bool pairs>
constexpr PeakLoop loop{2.0 * sums * part_lanes * (pairs ? 2 : 1), multiply_adds<pairs>};

}  // namespace

namespace ZG_ISA {
extern const PeakTable peak_table;
const PeakTable peak_table{loop<false>, loop<pairs_of_bf16>};
}  // namespace ZG_ISA

}  // namespace zg::cpu
