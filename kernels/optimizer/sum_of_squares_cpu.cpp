#include "zerograd/kernels/optimizer/sum_of_squares_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/cpu/workspace.h"
#include "zerograd/kernels/optimizer/adam.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(GranuleTable, granule_table)

namespace {

constexpr int64_t granule = SumOfSquares::granule;

template <class T>
void granule_sums(const void* data, int64_t count, double* sums) {
  const T* x = static_cast<const T*>(data);
  for (int64_t g = 0; g < count; ++g, x += granule) {
    double s[granule];
    for (int i = 0; i < granule; ++i) s[i] = static_cast<double>(x[i]) * static_cast<double>(x[i]);
    for (int distance = granule / 2; distance > 0; distance /= 2)
      for (int i = 0; i < distance; ++i) s[i] += s[i + distance];
    sums[g] = s[0];
  }
}

constexpr GranuleTable portable = {
    {granule_sums<double>, granule_sums<float>, granule_sums<bf16>, granule_sums<f16>}};

static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);

GranuleSums sums_for(DType dtype, Isa isa) {
  const auto index = static_cast<size_t>(dtype);
  const GranuleTable* table = ZG_AT_LEVEL(isa, granule_table);
  return table && table->sums[index] ? table->sums[index] : portable.sums[index];
}

/// A fixed-point number and the count of what could not be added to it.
struct Total {
  int64_t limbs[SumOfSquares::limb_count];
  int64_t non_finite;
};

/// Adds a finite value >= 0, exactly but for what zg::SumOfSquares says is dropped or clamped.
inline void add(Total& total, double value) {
  constexpr int bits = SumOfSquares::limb_bits, count = SumOfSquares::limb_count;
  constexpr uint64_t mask = (uint64_t{1} << bits) - 1;
  constexpr double limit = 0x1p520;
  static_assert(SumOfSquares::lowest_exponent + bits * count == 520);
  static_assert(3 * bits >= 53 + bits - 1, "53 bits at any place lie within three limbs");
  if (value >= limit) value = 0x1.fffffffffffffp519;
  const uint64_t u = std::bit_cast<uint64_t>(value);
  uint64_t mantissa = (u & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  // The place of the mantissa's last bit above the last bit of limb 0. Subnormal doubles, whose
  // mantissa is not this one, lie far below it and are shifted out all the same.
  int place = static_cast<int>(u >> 52) - 1075 - SumOfSquares::lowest_exponent;
  if (place < 0) {
    if (place <= -53) return;
    mantissa >>= -place;
    place = 0;
  }
  int64_t* limb = total.limbs + place / bits;
  const int shift = place % bits;
  limb[0] += static_cast<int64_t>((mantissa << shift) & mask);
  limb[1] += static_cast<int64_t>((mantissa >> (bits - shift)) & mask);
  limb[2] += static_cast<int64_t>(mantissa >> (2 * bits - shift));
}

/// A granule whose sum is not finite: its elements are not, or it is the clamped sum of large f64.
template <class T>
void add_overflow(Total& total, const T* x) {
  const int64_t count = std::count_if(
      x, x + granule, [](T value) { return !std::isfinite(static_cast<double>(value)); });
  total.non_finite += count;
  if (count == 0) add(total, 0x1p520);
}

template <class T>
void add_range(Total& total, GranuleSums granule_sums, const T* x, int64_t granules) {
  constexpr int64_t batch = 256;
  double sums[batch];
  for (int64_t begin = 0; begin < granules; begin += batch) {
    const int64_t count = std::min(batch, granules - begin);
    granule_sums(x + begin * granule, count, sums);
    for (int64_t i = 0; i < count; ++i) {
      if (std::isfinite(sums[i]))
        add(total, sums[i]);
      else
        add_overflow(total, x + (begin + i) * granule);
    }
  }
}

// Each part has a total of its own, in scratch. Their number is fixed by n, like all scratch.
struct Parts {
  int64_t granules, count;
  explicit Parts(int64_t n)
      : granules(std::max<int64_t>(1 << 12, (n / granule + 63) / 64)),
        count((n / granule + granules - 1) / granules) {}
};

}  // namespace

int64_t workspace_bytes(const SumOfSquares& a, const Device::Traits&) {
  return Parts(a.x.numel()).count * int64_t{sizeof(Total)};
}

void sum_of_squares(const SumOfSquares& a, Workspace workspace, Stream& stream) {
  const Parts parts(a.x.numel());
  const int64_t granules = a.x.numel() / granule;
  const GranuleSums sums = sums_for(a.x.dtype(), stream.traits().isa);
  Total* totals = reinterpret_cast<Total*>(workspace.data);
  visit_floating(a.x.dtype(), [&]<class T>() {
    const T* x = a.x.data<T>();
    team(stream.traits().threads, parts.count, [&](int64_t part, int) {
      const int64_t begin = part * parts.granules;
      Total total = {};
      add_range(total, sums, x + begin * granule, std::min(parts.granules, granules - begin));
      totals[part] = total;
    });
  });
  for (int64_t part = 0; part < parts.count; ++part) {
    for (int i = 0; i < SumOfSquares::limb_count; ++i)
      a.limbs.data<int64_t>()[i] += totals[part].limbs[i];
    *a.non_finite.data<int64_t>() += totals[part].non_finite;
  }
}

}  // namespace zg::cpu
