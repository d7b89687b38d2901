#include "bench/measure.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "bench/case.h"
#include "bench/operands.h"
#include "zerograd/autograd/ops.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/runtime/text/format.h"

namespace zg::bench {
namespace {

/// Larger than the private caches of the processor's cores, and than their share of a common cache.
constexpr double spread_bytes = 96 << 20;
constexpr int most_copies = 48;
constexpr Effort short_effort{
    .limit_rounds = 1, .warm_up = 1, .fewest = 3, .samples = 15, .seconds = 0.06};

/// Calls `runs` in turns. Returns the median of the seconds of all, divided by their number,
/// because the time of a step is a sum over many calls, fast and slow ones.
double time_in_turns(const std::vector<std::function<void()>>& runs) {
  const auto all = [&] {
    for (const auto& run : runs) run();
  };
  return quantile(measure(all, short_effort), 0.5) / static_cast<double>(runs.size());
}

std::vector<std::function<void()>> copies_of(const std::function<std::function<void()>()>& make,
                                             double bytes) {
  std::vector<std::function<void()>> runs{make()};
  while (static_cast<double>(runs.size()) * bytes < spread_bytes && runs.size() < most_copies)
    runs.push_back(make());
  return runs;
}

/// Bytes per second of y = a + b, as a function of the bytes of a call.
Curve bandwidth_of(const Device& device, double call_seconds) {
  Curve curve;
  for (int64_t numel = int64_t{1} << 14; numel <= int64_t{1} << 24; numel *= 4) {
    const auto make = [&]() -> std::function<void()> {
      const Binary add{.op = BinaryOp::add,
                       .a = Tensor::full({numel}, 1.0, DType::f32, device),
                       .b = Tensor::full({numel}, 2.0, DType::f32, device),
                       .y = Tensor::zeros({numel}, DType::f32, device)};
      return [add, device] { kernels::binary(add, device.compute()); };
    };
    const double bytes = 3.0 * bytes_of(numel, DType::f32);
    const double seconds = time_in_turns(copies_of(make, bytes));
    curve.points.emplace_back(bytes, bytes / std::max(seconds - call_seconds, seconds / 2));
  }
  return curve;
}

/// Seconds of an op on few elements in a forward and backward pass, divided by its launches.
double seconds_per_call(const DeviceOptions& options) {
  const Device device = Device::cpu(0, options);
  const Tensor start = Tensor::full({16}, 0.5, DType::f32, device);
  constexpr int ops = 64;
  const auto step = [&] {
    Tape tape(device);
    Var x = tape.variable(start);
    for (int i = 0; i < ops; ++i) x = gelu(x);
    tape.backward(sum(x));
  };
  const LaunchCounts before = device.launches()->counts();
  step();
  const auto launches = static_cast<double>(device.launches()->counts().since(before).launches());
  return quantile(measure(step, short_effort), 0.5) / launches;
}

/// True for work on one token at a time, which training does not have.
bool is_decoding(const Work& work) {
  return work.name.starts_with("attention decode") ||
         (work.name.starts_with("matmul") && work.shape.starts_with("1x"));
}

/// The cases of three sizes. A case that several sizes have is listed once.
std::vector<Case> cases_to_time() {
  std::vector<Case> all;
  std::set<std::string> names;
  for (const int64_t scale : {1, 4, 8}) {
    Sizes sizes(Device::Type::cpu);
    sizes.layer_width = 128 * scale;
    sizes.tokens = {1024 * scale, 96 * scale};
    sizes.logits = {32 * scale, 50257};
    sizes.scores = {1024 * scale, 128 * scale};
    sizes.hidden = 786432 * (scale + scale / 2);  // whole batches of 12 heads of 64, 1024 tokens
    sizes.flat = (int64_t{1} << 18) * scale * scale;
    sizes.parameters = (int64_t{1} << 18) * scale * scale;
    for (Case& c : kernel_cases(sizes))
      if (!is_decoding(c.work) && names.insert(c.text()).second) all.push_back(std::move(c));
  }
  return all;
}

/// Times one case on several copies of its operands, which together do not fit in the caches.
TimedCall time_case(const Case& c, const DeviceOptions& options) {
  LaunchRow launch;
  {
    const Device counting = Device::cpu(0, options);
    const std::function<void()> run = c.make(counting);
    const LaunchCounts before = counting.launches()->counts();
    run();
    const LaunchCounts since = counting.launches()->counts().since(before);
    for (const LaunchRow& row : since.rows)
      if (row.kind != KernelClass::copy) launch = row;
  }
  DeviceOptions uncounted = options;
  uncounted.count_launches = false;
  const Device device = Device::cpu(0, uncounted);
  const auto runs = copies_of([&] { return c.make(device); }, static_cast<double>(launch.bytes));
  return {launch, time_in_turns(runs)};
}

bool is_product(KernelClass kind) {
  return kind == KernelClass::product || kind == KernelClass::attention_forward ||
         kind == KernelClass::attention_backward;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Joins points whose sizes are within a factor of 1.5 of the smallest of them into one point.
Curve curve_of(std::vector<std::pair<double, double>> points) {
  std::ranges::sort(points);
  Curve curve;
  for (size_t first = 0; first < points.size();) {
    std::vector<double> sizes, values;
    size_t i = first;
    for (; i < points.size() && points[i].first <= 1.5 * points[first].first; ++i) {
      sizes.push_back(points[i].first);
      values.push_back(points[i].second);
    }
    curve.points.emplace_back(median(sizes), median(values));
    first = i;
  }
  return curve;
}

/// Rounds to three digits, because the noise of a measurement is larger.
Curve rounded(Curve curve) {
  for (auto& [size, value] : curve.points) value = std::stod(fmt::format("{:.3g}", value));
  return curve;
}

}  // namespace

std::vector<Efficiency> fit_efficiencies(const std::vector<TimedCall>& calls, const Peaks& peaks) {
  using Points = std::vector<std::pair<double, double>>;
  std::map<std::tuple<std::string, DType>, Points> by_op;
  std::map<std::tuple<KernelClass, DType>, std::vector<double>> by_kind;
  std::map<std::string, KernelClass> kinds;
  for (const TimedCall& call : calls) {
    const LaunchRow& row = call.launch;
    const double seconds = std::max(call.seconds - peaks.call_seconds, call.seconds / 10);
    const bool product = is_product(row.kind);
    const auto size = static_cast<double>(product ? row.operations : row.bytes);
    const auto peak = peaks.operations.find(name_of(row.dtype));
    if (size <= 0.0 || (product && peak == peaks.operations.end())) continue;
    const auto bytes = static_cast<double>(row.bytes);
    // A call that the bandwidth limits says nothing about the share of the operations.
    if (product && bytes / peaks.bandwidth.at(bytes) > seconds / 2) continue;
    const double limit = product ? peak->second : peaks.bandwidth.at(size);
    const double share = std::min(size / (seconds * limit), 100.0);
    by_op[{row.op, row.dtype}].emplace_back(size, share);
    by_kind[{row.kind, row.dtype}].push_back(share);
    kinds[row.op] = row.kind;
  }
  std::vector<Efficiency> all{
      {.bandwidth = {{{1.0, 1.0}}}, .source = "the bandwidth that y = a + b reached"}};
  const auto add = [&](Efficiency entry, KernelClass kind, Curve curve) {
    (is_product(kind) ? entry.operations : entry.bandwidth) = rounded(std::move(curve));
    all.push_back(std::move(entry));
  };
  for (const auto& [key, shares] : by_kind) {
    const auto& [kind, dtype] = key;
    // The first dtype of a class stands for the others too, if they were not timed.
    if (std::ranges::none_of(all,
                             [&, k = kind](const Efficiency& e) { return e.kind == name_of(k); }))
      add({.kind = name_of(kind), .source = "the median of its timed ops"}, kind,
          {{{1.0, median(shares)}}});
    add({.kind = name_of(kind), .dtype = name_of(dtype), .source = "the median of its timed ops"},
        kind, {{{1.0, median(shares)}}});
  }
  for (const auto& [key, points] : by_op) {
    const auto& [op, dtype] = key;
    add({.op = op, .dtype = name_of(dtype), .source = "bench kernels, measured"}, kinds[op],
        curve_of(points));
  }
  return all;
}

Peaks measure_peaks(const Device& device) {
  if (device.type() != Device::Type::cpu)
    raise<Unsupported>("peaks: only those of a CPU are measured, got {}; try a file of bench/peaks",
                       device.type());
  const Device::Traits& traits = device.traits();
  const DeviceOptions options{.threads = traits.threads, .isa = traits.isa, .count_launches = true};
  Peaks peaks{.name = fmt::format("{}, {} thread{}", traits.isa, traits.threads,
                                  traits.threads == 1 ? "" : "s"),
              .sources = {{.title = "measured by zerograd info --measure --peaks"}}};
  peaks.call_seconds = seconds_per_call(options);
  peaks.bandwidth = bandwidth_of(Device::cpu(0, {.threads = traits.threads, .isa = traits.isa}),
                                 peaks.call_seconds);
  peaks.operations["f32"] = matmul_peak_or_zero(device, DType::f32);
  peaks.operations["bf16"] = matmul_peak_or_zero(device, DType::bf16);
  // Without instructions for them, products of narrow dtypes are computed in f32.
  if (peaks.operations["bf16"] == 0.0) peaks.operations["bf16"] = peaks.operations["f32"];
  peaks.operations["f16"] = peaks.operations["f32"];
  if (peaks.operations["f32"] == 0.0)
    throw Unsupported(
        "peaks: the portable instruction set has no measured product rate; expected avx2 or more");
  std::vector<TimedCall> calls;
  for (const Case& c : cases_to_time()) calls.push_back(time_case(c, options));
  peaks.efficiencies = fit_efficiencies(calls, peaks);
  return peaks;
}

}  // namespace zg::bench
