#include <cmath>
#include <cstdio>
#include <set>

#include "bench/op.h"
#include "tests/kernels/every_kernel.h"
#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;
using bench::Call;
using bench::Extents;

// Runs every op of bench::every_op() on every device and compares its results with those of the
// portable CPU kernels.
namespace {

Call run_case(const bench::OpKernel& kernel, const bench::Operands& operands,
              const Extents& extents) {
  Call call = kernel.call(operands, extents);
  call.run();
  operands.device.compute().synchronize();
  return call;
}

/// The worst element of a result, as text; empty when all are within the bounds.
std::string difference(const Call::Result& actual, const Call::Result& expected,
                       const bench::Error& error) {
  const DType dtype = actual.tensor.dtype();
  const std::vector<double> values = actual.tensor.to_doubles(),
                            wanted = expected.tensor.to_doubles();
  if (values.size() != wanted.size()) return actual.name + ": another shape than expected";
  // The rounding error is relative to the computed value, which may be larger than `wanted`.
  const double rounding = 1.01 * unit_roundoff(dtype);
  // Half of the smallest positive f16, which is subnormal.
  const double subnormal = dtype == DType::f16 ? 0x1p-25 : 0.0;
  double worst = 1.0, bound = 0.0;
  size_t place = values.size();
  for (size_t i = 0; i < values.size(); ++i) {
    const double allowed =
        error.absolute + subnormal + (error.relative + rounding) * std::fabs(wanted[i]);
    const double ratio = std::fabs(values[i] - wanted[i]) / allowed;
    if (ratio <= worst || values[i] == wanted[i]) continue;
    worst = ratio;
    bound = allowed;
    place = i;
    if (!(ratio <= INFINITY)) break;  // NaN
  }
  if (place == values.size()) return "";
  char most[32];
  std::snprintf(most, sizeof most, "%.3g", bound);
  return actual.name + "[" + std::to_string(place) + "] of " + actual.tensor.shape().str() +
         " is " + text_of_value(values[place]) + "; expected " + text_of_value(wanted[place]) +
         ", the value of the portable CPU kernel, with a difference of at most " + most;
}

/// The first element whose bits differ, as text; empty when none does.
std::string bit_difference(const Call::Result& actual, const Call::Result& expected) {
  if (bytes_of(actual.tensor) == bytes_of(expected.tensor)) return "";
  const std::vector<double> values = actual.tensor.to_doubles(),
                            wanted = expected.tensor.to_doubles();
  for (size_t i = 0; i < values.size(); ++i)
    if (values[i] != wanted[i])
      return actual.name + "[" + std::to_string(i) + "] of " + actual.tensor.shape().str() +
             " is " + text_of_value(values[i]) + "; expected exactly " + text_of_value(wanted[i]) +
             ", the value of the portable CPU kernel";
  return actual.name + ": the bits of zeros or NaNs differ from those of the portable CPU kernel";
}

/// Runs one kernel of an op at one size. A line for each result that differs.
std::vector<std::string> differences(const bench::OpKernel& kernel, const Extents& extents,
                                     DType dtype, const Device& device) {
  static const Device portable = Device::cpu(0, {.threads = 1, .isa = Isa::portable});
  const Call actual = run_case(kernel, {device, dtype}, extents);
  // With an error bound, the reference is computed in f64 from inputs that are rounded to `dtype`.
  // So both read the same values.
  const DType reference = kernel.error ? DType::f64 : dtype;
  const Call expected = run_case(kernel, {portable, reference, dtype}, extents);
  const bench::Error error = kernel.error ? kernel.error(dtype, extents) : bench::Error{};
  std::vector<std::string> lines;
  for (size_t i = 0; i < actual.results.size(); ++i) {
    const std::string line = kernel.error
                                 ? difference(actual.results[i], expected.results[i], error)
                                 : bit_difference(actual.results[i], expected.results[i]);
    if (!line.empty())
      lines.push_back(actual.kernel + " " + bench::extents_text(extents) + " " + name_of(dtype) +
                      " on " + device.name() + " (" + level_of(device) + "): " + line);
  }
  return lines;
}

}  // namespace

TEST_CASE("every op gives the values of its portable CPU version, over sizes, dtypes and devices" *
          doctest::test_suite("every device")) {
  for (const bench::OpFamily& family : bench::every_op())
    for (const bench::Op& op : family) {
      CAPTURE(op.name);
      CHECK(!op.tested.empty());
      size_t number = 0;
      for (const Device& device : devices_of_every_generation())
        for (const DType dtype : on_device(op.dtypes, device))
          for (const Extents& extents : op.tested) {
            // An emulated device is slow: it has every other case.
            if (device.type() != Device::Type::cpu && number++ % 2 == 1) continue;
            for (const bench::OpKernel& kernel : op.kernels)
              for (const std::string& line : differences(kernel, extents, dtype, device))
                FAIL_CHECK(line);
          }
    }
}

TEST_CASE("every op gives the same bits for one, two and three threads") {
  size_t number = 0;  // each op takes the next dtype for the next instruction set
  for (const bench::OpFamily& family : bench::every_op())
    for (const bench::Op& op : family) {
      ++number;
      for (Isa isa : available_levels()) {
        const DType dtype = op.dtypes[number++ % op.dtypes.size()];
        INFO(op.name, ", ", name_of(isa), ", ", name_of(dtype));
        Extents large = op.tested.back();
        large[0] *= 16;  // enough work for several threads
        for (const bench::OpKernel& kernel : op.kernels) {
          std::vector<Call> calls;
          for (const int threads : {1, 2, 3}) {
            const Device device = Device::cpu(0, {.threads = threads, .isa = isa});
            calls.push_back(run_case(kernel, {device, dtype}, large));
            for (size_t i = 0; i < calls[0].results.size(); ++i)
              CHECK(same_bits(calls.back().results[i].tensor, calls[0].results[i].tensor));
          }
        }
      }
    }
}

TEST_CASE("every kernel is called by an op of every_op()") {
  std::set<std::string> called;
  const Device device = Device::cpu(0, {.threads = 1});
  for (const bench::OpFamily& family : bench::every_op())
    for (const bench::Op& op : family)
      for (const bench::OpKernel& kernel : op.kernels)
        called.insert(kernel.call({device, op.dtypes.front()}, op.tested.front()).kernel);
  for_every_kernel([&](const auto& kernel) {
    CAPTURE(kernel.name);
    CHECK(called.count(kernel.name) == 1);
  });
}

TEST_CASE("a failed comparison of an op names the element that differs and both values") {
  const Device device = Device::cpu(0, {.threads = 1});
  const auto result = [&](std::vector<float> values) {
    const auto n = static_cast<int64_t>(values.size());
    return Call::Result{"dx", Tensor::from(values, {n}, device)};
  };
  const Call::Result right = result({1, 2, 4}), wrong = result({1, -2, 4});
  CHECK(difference(right, right, {}).empty());
  CHECK(difference(result({1, 2.25f, 4}), right, {.absolute = 0.25}).empty());
  CHECK(difference(wrong, right, {.absolute = 2.0}) ==
        "dx[1] of [3] is -2; expected 2, the value of the portable CPU kernel, with a difference "
        "of at most 2");
  CHECK(difference(result({1, NAN, 4}), right, {.absolute = 2.0}) ==
        "dx[1] of [3] is nan; expected 2, the value of the portable CPU kernel, with a difference "
        "of at most 2");
  CHECK(bit_difference(right, right).empty());
  CHECK(bit_difference(wrong, right) ==
        "dx[1] of [3] is -2; expected exactly 2, the value of the portable CPU kernel");
}
