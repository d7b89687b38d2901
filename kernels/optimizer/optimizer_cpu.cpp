#include "zerograd/kernels/optimizer/optimizer_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "zerograd/kernels/cpu/dispatch.h"
#include "zerograd/kernels/cpu/level.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(UpdateTable, update_table)

namespace {

// Memory bound: adam moves 28 bytes for each element with f32 gradients. A chunk is half a
// megabyte, so starting a task for it costs little in comparison.
constexpr int64_t chunk_elements = 1 << 14;

std::byte* at(const Tensor& tensor, int64_t element) {
  return tensor ? tensor.raw() + element * size_of(tensor.dtype()) : nullptr;
}

/// Updates elements [begin, end) of one tensor.
void update_range_of(const OptimizerUpdate& a, const OptimizerTensor& t, int64_t begin, int64_t end,
                     Update update) {
  std::optional<UpdateRounding> rounding;
  if (a.rounding_seed)
    rounding = {
        .to = reinterpret_cast<bf16*>(at(t.low_precision ? t.low_precision : t.parameter, begin)),
        .key = rounding_key(a, t),
        .keys = philox_keys(*a.rounding_seed),
        .first = t.first + begin};
  update({.parameter = at(t.parameter, begin),
          .gradient = at(t.gradient, begin),
          .moment1 = at(t.moment1, begin),
          .moment2 = at(t.moment2, begin),
          .low_precision = at(t.low_precision, begin),
          .n = end - begin,
          .rounding = rounding ? &*rounding : nullptr},
         constants(a, t));
}

}  // namespace

void optimizer_update(const OptimizerUpdate& a, Workspace workspace, Stream& stream) {
  if (a.tensors.empty()) return;
  if (a.scale) {
    if (const auto known = with_known_scale(a, stream)) optimizer_update(*known, workspace, stream);
    return;
  }
  const OptimizerTensor& first = a.tensors[0];
  const UpdateVariants& variants =
      ZG_AT_LEVEL(stream.traits().isa, update_table).kinds[static_cast<size_t>(kind_of(a))];
  const int low = !first.low_precision ? 0 : first.low_precision.dtype() == DType::bf16 ? 1 : 2;
  const bool bf16_gradient = first.gradient.dtype() == DType::bf16;
  const Update update = first.parameter.dtype() == DType::bf16
                            ? variants.narrow[bf16_gradient]
                            : variants.update[bf16_gradient][low];
  // The tensors count as one array, which is cut into chunks: a chunk can hold many small tensors,
  // and a large tensor is several chunks.
  std::vector<int64_t> ends;
  int64_t numel = 0;
  for (const OptimizerTensor& tensor : a.tensors) ends.push_back(numel += tensor.parameter.numel());
  parallel_for(stream.traits().threads, numel, chunk_elements, [&](int64_t begin, int64_t end) {
    auto tensor_end = std::ranges::upper_bound(ends, begin);
    for (; begin < end; ++tensor_end) {
      const OptimizerTensor& tensor = a.tensors[static_cast<size_t>(tensor_end - ends.begin())];
      const int64_t start = *tensor_end - tensor.parameter.numel(),
                    stop = std::min(end, *tensor_end);
      if (begin < stop) update_range_of(a, tensor, begin - start, stop - start, update);
      begin = stop;
    }
  });
}

ZG_DECLARE_LEVELS(GranuleTable, granule_table)

namespace {

constexpr int64_t granule = SumOfSquares::granule;
static_assert(static_cast<int>(DType::f64) == 0 && static_cast<int>(DType::f16) == 3);

/// A fixed-point number, and the number of elements that are not finite.
struct Total {
  int64_t limbs[SumOfSquares::limb_count];
  int64_t non_finite;
};

/// Adds a finite value >= 0. Exact, except for bits that SumOfSquares drops and sums that it
/// clamps.
inline void add(Total& total, double value) {
  constexpr int bits = SumOfSquares::limb_bits, count = SumOfSquares::limb_count;
  constexpr uint64_t mask = (uint64_t{1} << bits) - 1;
  constexpr double limit = 0x1p520;
  static_assert(SumOfSquares::lowest_exponent + bits * count == 520);
  static_assert(3 * bits >= 53 + bits - 1, "53 bits at any place lie within three limbs");
  if (value >= limit) value = 0x1.fffffffffffffp519;
  const uint64_t u = std::bit_cast<uint64_t>(value);
  uint64_t mantissa = (u & ((uint64_t{1} << 52) - 1)) | uint64_t{1} << 52;
  // The position of the mantissa's lowest bit; 0 is the lowest bit of limb 0. For subnormal
  // doubles the mantissa is wrong, but they are so small that all its bits are dropped.
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

/// Handles a granule whose sum is not finite. Counts its elements that are not finite. If there are
/// none, the sum of large f64 elements overflowed, and add() clamps it.
template <class T>
void add_overflow(Total& total, const T* x) {
  const int64_t count = std::count_if(
      x, x + granule, [](T value) { return !std::isfinite(static_cast<double>(value)); });
  total.non_finite += count;
  if (count == 0) add(total, 0x1p520);
}

template <class T>
void add_range(Total& total, const GranuleTable& table, const T* x, int64_t granules) {
  constexpr int64_t batch = 256;
  double sums[batch];
  for (int64_t begin = 0; begin < granules; begin += batch) {
    const int64_t count = std::min(batch, granules - begin);
    table.sums[static_cast<size_t>(dtype_of<T>)](x + begin * granule, count, sums);
    if (table.add && table.add(sums, (count + 7) / 8 * 8, total.limbs)) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (std::isfinite(sums[i]))
        add(total, sums[i]);
      else
        add_overflow(total, x + (begin + i) * granule);
    }
  }
}

template <class T>
void add_each(Total& total, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto value = static_cast<double>(x[i]);
    if (std::isfinite(value))
      add(total, value * value);
    else
      ++total.non_finite;
  }
}

// x is cut into parts. Each part has its own Total in the workspace. The number of parts depends on
// n only, not on the number of threads.
struct Parts {
  int64_t granules, count;
  explicit Parts(int64_t n)
      : granules(std::max<int64_t>(1 << 12, (n / granule + 63) / 64)),
        count((n / granule + granules - 1) / granules) {}
};

}  // namespace

int64_t workspace_bytes(const SumOfSquares& a, const Device::Traits&) {
  int64_t most = 0;
  for (const SumOfSquares::Part& part : a.parts)
    most = std::max(most, Parts(part.x.numel()).count * int64_t{sizeof(Total)});
  return most;
}

namespace {

void sum_squares_of(const SumOfSquares::Part& a, Workspace workspace, Stream& stream) {
  const Parts parts(a.x.numel());
  const int64_t granules = a.x.numel() / granule;
  const GranuleTable& table = ZG_AT_LEVEL(stream.traits().isa, granule_table);
  Total* totals = reinterpret_cast<Total*>(workspace.data);
  visit_floating(a.x.dtype(), [&]<class T>() {
    const T* x = a.x.data<T>();
    team(stream.traits().threads, parts.count, [&](int64_t part, int) {
      const int64_t begin = part * parts.granules;
      const int64_t count = std::min(parts.granules, granules - begin);
      Total total = {};
      if (a.each)
        add_each(total, x + begin * granule, count * granule);
      else
        add_range(total, table, x + begin * granule, count);
      totals[part] = total;
    });
  });
  for (int64_t part = 0; part < parts.count; ++part) {
    for (int i = 0; i < SumOfSquares::limb_count; ++i)
      a.limbs.data<int64_t>()[i] += totals[part].limbs[i];
    *a.non_finite.data<int64_t>() += totals[part].non_finite;
  }
}

}  // namespace

void sum_of_squares(const SumOfSquares& a, Workspace workspace, Stream& stream) {
  for (const SumOfSquares::Part& part : a.parts) sum_squares_of(part, workspace, stream);
}

void gradient_scale(const GradientScale& a, Workspace, Stream&) {
  const int64_t* const counts = a.non_finite.data<int64_t>();
  const bool finite =
      std::all_of(counts, counts + a.non_finite.numel(), [](int64_t n) { return n == 0; });
  const double norm = std::sqrt(value_of_limbs(a.limbs.data<int64_t>())) / a.clipping.divisor();
  *a.scale.data<float>() =
      finite ? a.clipping.factor(norm) : std::numeric_limits<float>::quiet_NaN();
}

ZG_DECLARE_LEVELS(FoldTable, fold_table)

namespace {

int index_of(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2; }

// Memory bound: at most 12 bytes for each element. A task is so long that starting it costs little.
constexpr int64_t grain = 1 << 16;

}  // namespace

void fold_gradient(const FoldGradient& args, Workspace, Stream& stream) {
  const FoldTable& table = ZG_AT_LEVEL(stream.traits().isa, fold_table);
  for (const FoldGradient::Part& part : args.parts) {
    const Fold function = table.leaf[index_of(part.leaf.dtype())]
                              .rounding[index_of(args.rounding)]
                              .sum[index_of(part.sum.dtype())][part.first];
    const std::byte* leaf = part.leaf.raw();
    std::byte* sum = part.sum.raw();
    const int64_t leaf_size = size_of(part.leaf.dtype()), sum_size = size_of(part.sum.dtype());
    parallel_for(stream.traits().threads, part.leaf.numel(), grain,
                 [&](int64_t begin, int64_t end) {
                   function(leaf + begin * leaf_size, sum + begin * sum_size, end - begin);
                 });
  }
}

}  // namespace zg::cpu
