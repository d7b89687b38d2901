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

// Four vectors a step, so that the loop's own instructions do not bound it.
template <class F>
void each_four(int64_t n, const F& f) {
  constexpr int64_t step = 4 * part_lanes;
  for (int64_t i = 0; i < n; i += step)
#pragma GCC unroll 4
    for (int part = 0; part < 4; ++part) f(i + part * part_lanes, part);
}

// Four runs of addresses at once, as an op with several inputs has: processors fetch ahead for
// each.
float read_all(const float* x, int64_t n) {
  Part sum[4] = {};
  for (int64_t i = 0; i < n / 4; i += part_lanes)
#pragma GCC unroll 4
    for (int run = 0; run < 4; ++run) sum[run] = sum[run] + load_part(x + run * (n / 4) + i);
  return ((sum[0] + sum[1]) + (sum[2] + sum[3]))[0];
}

void update_all(float* y, int64_t n) {
  const Part one = splat(1.0f);
  each_four(n, [&](int64_t i, int) { store_part(y + i, load_part(y + i) + one); });
}

void add_all(float* y, const float* x, int64_t n) {
  each_four(n, [&](int64_t i, int) { store_part(y + i, load_part(y + i) + load_part(x + i)); });
}

}  // namespace

namespace ZG_ISA {
extern const PeakTable peak_table;
const PeakTable peak_table{loop<false>, loop<pairs_of_bf16>, {read_all, update_all, add_all}};
}  // namespace ZG_ISA

}  // namespace zg::cpu
