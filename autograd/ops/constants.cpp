#include <algorithm>
#include <cmath>
#include <numeric>

#include "zerograd/autograd/ops.h"
#include "zerograd/autograd/ops/op.h"
#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/cpu/team.h"
#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

/// 64 random bits for each element, which depend on the kind of numbers, seed, name and element
/// alone.
std::vector<uint64_t> random_bits(const std::string& kind, uint64_t seed, const std::string& name,
                                  const Shape& shape) {
  check_host_memory(kind.c_str(), shape, sizeof(uint64_t));
  const uint64_t hash = hash_name((kind + " " + name).c_str());
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  std::vector<uint64_t> bits(static_cast<size_t>(shape.numel()));
  for (uint64_t i = 0; i < bits.size(); ++i) {
    const Philox::Block words = Philox::block({low(i), high(i), low(hash), high(hash)}, seed);
    bits[i] = uint64_t{words[0]} << 32 | words[1];
  }
  return bits;
}

/// In [0, 1).
double fraction(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

void check_floating(const char* op, DType dtype) {
  if (!is_floating(dtype))
    raise<DTypeError>("{}: dtype is {}; expected f64, f32, bf16 or f16; try randint", op, dtype);
}

template <class T>
Tensor converted(const std::vector<T>& values, const Shape& shape, DType dtype,
                 const Device& device) {
  return cast(Var(Tensor::from(values, shape, device)), dtype).value();
}

/// The index of the weight in which a random place lies, where the weights stand side by side.
void draw_repeatedly(std::span<const double> weights, std::span<const uint64_t> bits, int64_t,
                     std::vector<int64_t>& samples) {
  std::vector<double> ends(weights.size());
  std::partial_sum(weights.begin(), weights.end(), ends.begin());
  const auto last = std::ranges::lower_bound(ends, ends.back());  // others after it are 0
  for (const uint64_t x : bits)
    samples.push_back(std::upper_bound(ends.begin(), last, fraction(x) * ends.back()) -
                      ends.begin());
}

/// The first of exponential times of arrival, whose rates are the weights (Efraimidis, Spirakis
/// 2006, "Weighted random sampling with a reservoir").
void draw_once(std::span<const double> weights, std::span<const uint64_t> bits, int64_t count,
               std::vector<int64_t>& samples) {
  std::vector<std::pair<double, int64_t>> times;
  for (size_t i = 0; i < weights.size(); ++i)
    if (weights[i] > 0) times.emplace_back(-portable::log1p(-fraction(bits[i])) / weights[i], i);
  std::ranges::partial_sort(times, times.begin() + count);
  for (int64_t i = 0; i < count; ++i) samples.push_back(times[static_cast<size_t>(i)].second);
}

}  // namespace

Tensor linspace(double begin, double end, int64_t count, DType dtype, const Device& device) {
  if (count < 0) raise<ConfigError>("linspace: count is {}; expected 0 or more", count);
  if (!holds(dtype, std::trunc(begin)) || !holds(dtype, std::trunc(end)))
    raise<DTypeError>("linspace: {} does not hold the numbers {} to {}; try DType::f32", dtype,
                      begin, end);
  check_host_memory("linspace", {count}, sizeof(double));
  std::vector<double> values(static_cast<size_t>(count), begin);
  const double step = count > 1 ? (end - begin) / static_cast<double>(count - 1) : 0.0;
  for (int64_t i = 1; i < count; ++i)
    values[static_cast<size_t>(i)] = i < count / 2
                                         ? begin + step * static_cast<double>(i)
                                         : end - step * static_cast<double>(count - 1 - i);
  return converted(values, {count}, dtype, device);
}

Tensor eye(int64_t rows, int64_t columns, DType dtype, const Device& device) {
  if (rows < 0 || columns < 0)
    raise<ConfigError>("eye: {} rows, {} columns; expected 0 or more of both", rows, columns);
  (void)Shape{rows, columns}.numel();  // throws if there are too many
  return one_hot(arange(0, rows, DType::i64, device), columns, dtype);
}

Tensor full_like(const Tensor& x, double value) {
  check_present("full_like", "x", x);
  return named("full_like", [&] { return Tensor::full(x.shape(), value, x.dtype(), x.device()); });
}

Tensor initial_values(const Init& init, const Shape& shape, uint64_t seed, const std::string& name,
                      DType dtype, const Device& device) {
  check_floating("initial_values", dtype);
  check_host_memory("initial_values", shape, sizeof(float));
  std::vector<float> values(static_cast<size_t>(shape.numel()));
  const Init ready = prepared(init.of(name, shape), seed, name);
  constexpr int64_t grain = 1 << 14;
  cpu::parallel_for(device.traits().threads, shape.numel(), grain, [&](int64_t begin, int64_t end) {
    const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
    initialise(ready, seed, name, begin, std::span(values).subspan(first, count));
  });
  return converted(values, shape, dtype, device);
}

Tensor randn(const Shape& shape, uint64_t seed, const std::string& name, DType dtype,
             const Device& device) {
  return initial_values(Init::normal(1.0f), shape, seed, name, dtype, device);
}

Tensor truncated_normal(const Shape& shape, uint64_t seed, const std::string& name,
                        const TruncatedNormal& limits, DType dtype, const Device& device) {
  return initial_values(Init::truncated_normal(limits), shape, seed, "truncated_normal " + name,
                        dtype, device);
}

Tensor uniform(const Shape& shape, uint64_t seed, const std::string& name, double low, double high,
               DType dtype, const Device& device) {
  if (!(low < high && std::isfinite(high - low)))
    raise<ConfigError>("uniform: low is {:g}, high is {:g}; expected finite ones, low < high", low,
                       high);
  check_floating("uniform", dtype);
  std::vector<double> values;
  for (const uint64_t bits : random_bits("uniform", seed, name, shape))
    values.push_back(low + (high - low) * fraction(bits));
  return converted(values, shape, dtype, device);
}

Tensor bernoulli(const Shape& shape, double p, uint64_t seed, const std::string& name, DType dtype,
                 const Device& device) {
  if (!(p >= 0 && p <= 1)) raise<ConfigError>("bernoulli: p is {:g}; expected 0 <= p <= 1", p);
  std::vector<uint8_t> values;
  for (const uint64_t bits : random_bits("bernoulli", seed, name, shape))
    values.push_back(fraction(bits) < p);
  return converted(values, shape, dtype, device);
}

Tensor randint(const Shape& shape, int64_t low, int64_t high, uint64_t seed,
               const std::string& name, DType dtype, const Device& device) {
  if (low >= high)
    raise<ConfigError>("randint: low is {}, high is {}; expected low < high", low, high);
  check_holds("randint", dtype, low, high - 1);
  __extension__ using Wide = unsigned __int128;
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  std::vector<int64_t> values;
  for (const uint64_t bits : random_bits("randint", seed, name, shape))
    values.push_back(static_cast<int64_t>(static_cast<uint64_t>(low) +
                                          static_cast<uint64_t>(Wide{bits} * range >> 64)));
  return converted(values, shape, dtype, device);
}

Tensor permutation(int64_t count, uint64_t seed, const std::string& name, const Device& device) {
  if (count < 0) raise<ConfigError>("permutation: count is {}; expected 0 or more", count);
  const std::vector<uint64_t> keys = random_bits("permutation", seed, name, {count});
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int64_t i) { return keys[static_cast<size_t>(i)]; });
  return Tensor::from(order, {count}, device);
}

Tensor multinomial(const Tensor& input, int64_t num_samples, bool replacement, uint64_t seed,
                   const std::string& name) {
  const Shape shape = floating_operand("multinomial", "input", Var(input)).shape();
  if (shape.rank() < 1 || shape.rank() > 2)
    refuse_shape("multinomial", "input", shape, "rank 1 or 2");
  const int64_t categories = shape[-1], rows = shape.rank() == 2 ? shape[0] : 1;
  if (num_samples < 1 || categories < 1 || (!replacement && num_samples > categories))
    raise<ConfigError>(
        "multinomial: num_samples is {}, input is {}; expected 1 or more of both, and at most as "
        "many samples as categories without replacement",
        num_samples, shape);
  const Shape drawn = shape.with(-1, num_samples);
  if (input.device().type() == Device::Type::meta)
    return Tensor::empty(drawn, DType::i64, input.device());
  const std::vector<double> weights = input.to_doubles();
  const std::vector<uint64_t> bits =
      random_bits("multinomial", seed, name, replacement ? drawn : shape);
  const auto part_of = [rows](const auto& all, int64_t row) {
    const size_t each = all.size() / static_cast<size_t>(rows);
    return std::span(all).subspan(static_cast<size_t>(row) * each, each);
  };
  std::vector<int64_t> samples;
  for (int64_t row = 0; row < rows; ++row) {
    const std::span<const double> w = part_of(weights, row);
    const auto above = std::ranges::count_if(w, [](double x) { return x > 0; });
    if (above < (replacement ? 1 : num_samples) ||
        !std::ranges::all_of(w, [](double x) { return x >= 0 && std::isfinite(x); }))
      raise<ConfigError>(
          "multinomial: row {} of input has {} weights above 0; expected {} or more, and none that "
          "is negative, infinite or NaN",
          row, above, replacement ? 1 : num_samples);
    (replacement ? draw_repeatedly : draw_once)(w, part_of(bits, row), num_samples, samples);
  }
  return Tensor::from(samples, drawn, input.device());
}

}  // namespace zg
