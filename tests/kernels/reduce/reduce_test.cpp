#include "zerograd/kernels/reduce/reduce.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/elementwise.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

struct ReduceCase {
  Shape shape;
  uint32_t axes;
};
const ReduceCase cases[] = {{{1}, 1},
                            {{1023}, 1},
                            {{31, 33}, 1},
                            {{31, 33}, 2},
                            {{31, 33}, 3},
                            {{31, 33}, 0},
                            {{5, 1, 7, 9}, 5},
                            {{5, 6, 7}, 2},
                            {{5, 6, 7}, 5},
                            {{3, 4, 2, 3, 4, 2}, 0b010101},
                            {{3, 4, 2, 3, 4, 2}, 0b101010},
                            {{3, 100001}, 2},
                            {{70001, 3}, 1},
                            {{40, 700, 5}, 0b011},
                            {{2, 3000, 300}, 0b010},
                            {{7, 2, 20000}, 0b101},
                            {{300, 64}, 1},
                            {{2, 300, 48}, 0b010},
                            {{5, 6, 7, 16}, 0b101}};

Shape kept_shape(const ReduceCase& c) {
  Shape shape = c.shape;
  for (int i = 0; i < shape.rank(); ++i)
    if (c.axes >> i & 1u) shape = shape.with(i, 1);
  return shape;
}

/// For every element of x in order, f(element, place of its result).
template <class F>
void for_each_element(const ReduceCase& c, const F& f) {
  for (int64_t flat = 0; flat < c.shape.numel(); ++flat) {
    int64_t rest = flat, place = 0, stride = 1;
    for (int axis = c.shape.rank() - 1; axis >= 0; --axis) {
      const int64_t i = rest % c.shape[axis];
      rest /= c.shape[axis];
      if (c.axes >> axis & 1u) continue;
      place += i * stride;
      stride *= c.shape[axis];
    }
    f(static_cast<size_t>(flat), static_cast<size_t>(place));
  }
}

std::vector<double> expected_reduction(ReduceOp op, const ReduceCase& c,
                                       const std::vector<double>& x) {
  const auto results = static_cast<size_t>(kept_shape(c).numel());
  std::vector<double> y(results, op == ReduceOp::max ? -infinity : 0.0);
  for_each_element(c, [&](size_t from, size_t to) {
    y[to] = op == ReduceOp::max ? std::fmax(y[to], x[from]) : y[to] + x[from];
  });
  if (op == ReduceOp::mean)
    for (double& value : y) value *= static_cast<double>(results) / static_cast<double>(x.size());
  return y;
}

Tensor run_reduce(ReduceOp op, const ReduceCase& c, const Tensor& x, DType to) {
  const Tensor y = Tensor::empty(kept_shape(c), to, x.device());
  kernels::reduce({.op = op, .x = x, .y = y, .axes = c.axes}, x.device().compute());
  return y;
}

Tensor rows(const std::vector<float>& values, int64_t columns) {
  return Tensor::from(values, {static_cast<int64_t>(values.size()) / columns, columns},
                      devices_at_every_level().back());
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("reduce sums, averages and finds the largest over any axes of every floating type") {
  const Device device = devices_at_every_level().back();
  const ReduceOp ops[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::max};
  for_cover(
      [&](const ReduceCase& c, DType dtype, ReduceOp op) {
        INFO(c.shape.str(), ", axes ", c.axes, ", ", name_of(dtype), ", ", static_cast<int>(op));
        const Tensor x = random_tensor(c.shape, dtype, device, 1);
        const std::vector<double> xs = x.to_doubles();
        const std::vector<double> expected = expected_reduction(op, c, xs);
        const double terms = static_cast<double>(c.shape.numel()) /
                             static_cast<double>(std::max<int64_t>(kept_shape(c).numel(), 1));
        // A block of 128 terms below 1 is a chain of up to 31 additions and a tree; the roundings
        // of sqrt(terms) partial sums add up. f64 sums blocks in f64: terms / 128 more.
        const double unit = unit_roundoff(accumulator(dtype));
        double absolute = op == ReduceOp::max ? 0 : 32 * std::sqrt(terms + 1) * unit;
        if (dtype == DType::f64) absolute *= 1 + terms / 128;
        if (op == ReduceOp::mean) absolute /= terms;
        if (dtype == DType::f16) absolute += 0x1p-25;
        CHECK(excess(run_reduce(op, c, x, accumulator(dtype)), expected, absolute, 2 * unit) <= 1);
        CHECK(excess(run_reduce(op, c, x, dtype), expected, absolute,
                     2 * unit + unit_roundoff(dtype)) <= 1);
      },
      cases, on_device(floating_dtypes, device), ops);
}

TEST_CASE("reduce gives the same bits at every alignment of x and y") {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device({DType::f32, DType::bf16}, device))
      for (const ReduceCase& c :
           {ReduceCase{{300, 64}, 1}, ReduceCase{{2, 70, 48}, 0b010}, ReduceCase{{31, 33}, 1}}) {
        const auto reduced = [&](int64_t x_begin, int64_t y_begin) {
          const Tensor x = moved(random_tensor(c.shape, dtype, device, 1), x_begin);
          const Tensor y = moved(Tensor::empty(kept_shape(c), DType::f32, device), y_begin);
          kernels::reduce({.op = ReduceOp::sum, .x = x, .y = y, .axes = c.axes}, device.compute());
          return y;
        };
        for (int64_t begin : {1, 2, 4}) {
          INFO(level_of(device), ", begin ", begin);
          CHECK(same_bits(reduced(begin, 0), reduced(0, 0)));
          CHECK(same_bits(reduced(0, begin), reduced(0, 0)));
        }
      }
}

TEST_CASE("a sum of a million f32 elements has a relative error of at most 1e-6") {
  for (const ReduceCase& c :
       {ReduceCase{{1 << 20}, 1}, ReduceCase{{1 << 20, 1, 3}, 1}, ReduceCase{{3, 1 << 20}, 2}}) {
    const Device device = devices_at_every_level().back();
    const Tensor x = random_tensor(c.shape, DType::f32, device, 2, 0.0, 1.0);
    const std::vector<double> expected = expected_reduction(ReduceOp::sum, c, x.to_doubles());
    CHECK(excess(run_reduce(ReduceOp::sum, c, x, DType::f32), expected, 0, 1e-6) <= 1);
  }
}

TEST_CASE("a sum keeps the small elements beside a very large one") {
  for (const ReduceCase& c :
       {ReduceCase{{1 << 20}, 1}, ReduceCase{{1 << 20, 1, 3}, 1}, ReduceCase{{3, 1 << 20}, 2}}) {
    const Device device = devices_at_every_level().back();
    std::vector<float> values(static_cast<size_t>(c.shape.numel()), 1.0f);
    values[0] = 0x1p24f;
    const Tensor x = Tensor::from(values, c.shape, device);
    const std::vector<double> expected = expected_reduction(ReduceOp::sum, c, x.to_doubles());
    // The largest may hide the 31 others of a block of 32; then one rounding.
    CHECK(excess(run_reduce(ReduceOp::sum, c, x, DType::f32), expected, 0, 33 * 0x1p-24) <= 1);
  }
}

TEST_SUITE_END();

TEST_CASE("sums and maxima of short rows have one order at every level, in groups of any size") {
  for (const int64_t n : {1, 15, 49, 128, 129, 196, 1024, 1025})
    for (const int64_t count : {1, 2, 15, 17, 40}) {
      const Tensor x = random_tensor({count, n}, DType::f32, Device::cpu(), 5);
      std::vector<float> xs = x.to_host<float>(), sums, maxima;
      xs[xs.size() / 2] = not_a_number;
      for (const float* row = xs.data(); row < xs.data() + xs.size(); row += n) {
        double total = 0;
        for (int64_t begin = 0; begin < n; begin += 128) {
          float lanes[16] = {};
          for (int64_t i = begin; i < std::min(n, begin + 128); ++i) lanes[i % 16] += row[i];
          for (int width = 8; width > 0; width /= 2)
            for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
          total += static_cast<double>(lanes[0]);
        }
        const bool has_nan = std::any_of(row, row + n, [](float value) { return value != value; });
        sums.push_back(static_cast<float>(total));
        maxima.push_back(has_nan ? not_a_number : *std::max_element(row, row + n));
      }
      for (const Device& device : devices_at_every_level()) {
        INFO(level_of(device), ", ", count, " rows of ", n);
        const Tensor in = Tensor::from(xs, {count, n}, device);
        const auto check = [&](ReduceOp op, const std::vector<float>& expected) {
          const Tensor y = run_reduce(op, {{count, n}, 2}, in, DType::f32);
          CHECK(excess(y, std::vector<double>(expected.begin(), expected.end()), 0) <= 0);
        };
        check(ReduceOp::sum, sums);
        check(ReduceOp::max, maxima);
      }
    }
}

TEST_CASE("reduce has the same bits for any thread count") {
  for (const ReduceCase& c : cases)
    for (DType dtype : {DType::f32, DType::bf16}) {
      std::vector<Tensor> results;
      for (int threads : {1, 2}) {
        const Device device = Device::cpu(0, {.threads = threads});
        results.push_back(
            run_reduce(ReduceOp::sum, c, random_tensor(c.shape, dtype, device, 3), DType::f32));
      }
      CAPTURE(c.shape.str());
      CHECK(same_bits(results[0], results[1]));
    }
}

TEST_SUITE_BEGIN("every device");

TEST_CASE("integer sums are exact and wrap around") {
  const Device device = devices_at_every_level().back();
  const Tensor x = Tensor::from<int32_t>({2147483647, 1, -5, 2147483647, 7, 9}, {2, 3}, device);
  CHECK(run_reduce(ReduceOp::sum, {{2, 3}, 2}, x, DType::i64).to_host<int64_t>() ==
        std::vector<int64_t>{2147483643, 2147483663});
  CHECK(run_reduce(ReduceOp::sum, {{2, 3}, 1}, x, DType::i32).to_host<int32_t>() ==
        std::vector<int32_t>{-2, 8, 4});
}

TEST_CASE("the maximum of integers is exact, also of negative ones and beyond 2^53") {
  for (const Device& device : devices_at_every_level()) {
    for (const DType dtype : {DType::i32, DType::i64})
      for (const ReduceCase& c : cases) {
        INFO(c.shape.str(), ", axes ", c.axes, ", ", name_of(dtype));
        const Tensor x = random_tensor(c.shape, dtype, device, 3, -2e9, -5);
        CHECK(run_reduce(ReduceOp::max, c, x, dtype).to_doubles() ==
              expected_reduction(ReduceOp::max, c, x.to_doubles()));
      }
    const int64_t most = std::numeric_limits<int64_t>::max();
    const Tensor x = Tensor::from<int64_t>({most - 2, most - 1, -most, -most - 1}, {2, 2}, device);
    CHECK(run_reduce(ReduceOp::max, {{2, 2}, 2}, x, DType::i64).to_host<int64_t>() ==
          std::vector<int64_t>{most - 1, -most});
  }
}

TEST_CASE("a sum with an infinity is infinite, and with both signs NaN") {
  for (int64_t C : {3, 1000}) {  // a result for a thread, and for many
    std::vector<float> values(static_cast<size_t>(3 * C), 1.0f);
    values[1] = infinity;
    values[static_cast<size_t>(C)] = -infinity;
    values[static_cast<size_t>(2 * C)] = infinity;
    values[static_cast<size_t>(2 * C + 2)] = -infinity;
    const std::vector<double> y =
        run_reduce(ReduceOp::sum, {{3, C}, 2}, rows(values, C), DType::f32).to_doubles();
    CHECK(y[0] == infinity);
    CHECK(y[1] == -infinity);
    CHECK(std::isnan(y[2]));
  }
}

TEST_CASE("max propagates NaN, and a sum of no elements is 0") {
  const Tensor x = rows({1, not_a_number, 3, -infinity, -infinity, -infinity}, 3);
  const std::vector<double> largest =
      run_reduce(ReduceOp::max, {{2, 3}, 2}, x, DType::f32).to_doubles();
  CHECK(std::isnan(largest[0]));
  CHECK(largest[1] == -infinity);
  CHECK(std::isnan(run_reduce(ReduceOp::max, {{2, 3}, 1}, x, DType::f32).to_doubles()[1]));
  for (const Device& at : devices_at_every_level())
    for (size_t place = 0; place < 165; ++place) {  // in a vector of a long row, or behind
      std::vector<float> row(165, 2.0f);
      row[place] = not_a_number;
      const Tensor in = Tensor::from(row, {1, 165}, at);
      INFO(level_of(at), " ", place);
      CHECK(std::isnan(run_reduce(ReduceOp::max, {{1, 165}, 2}, in, DType::f32).item()));
    }
  const Device device = devices_at_every_level().back();
  for (const ReduceCase& c : {ReduceCase{{0, 3}, 1}, ReduceCase{{3, 0}, 2},
                              ReduceCase{{3, 0, 2}, 6}, ReduceCase{{0}, 1}}) {
    const Tensor empty = Tensor::empty(c.shape, DType::f32, device);
    for (double value : run_reduce(ReduceOp::sum, c, empty, DType::f32).to_doubles())
      CHECK(value == 0);
    for (double value : run_reduce(ReduceOp::mean, c, empty, DType::f32).to_doubles())
      CHECK(std::isnan(value));
    CHECK_THROWS_AS(run_reduce(ReduceOp::max, c, empty, DType::f32), ShapeError);
  }
  const ReduceCase none{{0, 3}, 2};
  CHECK(run_reduce(ReduceOp::max, none, Tensor::empty({0, 3}, DType::f32, device), DType::f32)
            .numel() == 0);
}

TEST_CASE("sort gives the first indices in order, equal ones by index, NaN as largest") {
  const Device device = devices_at_every_level().back();
  std::vector<DType> dtypes = on_device(floating_dtypes, device);
  dtypes.insert(dtypes.end(), {DType::i32, DType::i64});
  for (DType dtype : dtypes)
    for (const Shape& shape : {Shape{1}, Shape{300}, Shape{31, 33}, Shape{4, 5, 6}, Shape{2, 5000}})
      for (int axis = 0; axis < shape.rank(); ++axis)
        for (bool descending : {true, false})
          for (const int64_t share : {1, 2, 40}) {
            INFO(name_of(dtype), " ", shape.str(), " axis ", axis, " 1/", share);
            const Tensor x = random_tensor(shape, dtype, device, 4, -300, 300);
            const int64_t extent = shape[axis], k = (extent + share - 1) / share;
            const Tensor y = Tensor::empty(shape.with(axis, k), DType::i64, device);
            kernels::sort({x, y, axis, descending}, device.compute());
            const std::vector<double> xs = x.to_doubles();
            std::vector<int64_t> expected(static_cast<size_t>(y.numel()));
            int64_t inner = 1;
            for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
            for (int64_t row = 0; row < x.numel() / extent; ++row) {
              const auto at = [&](int64_t i) {
                const int64_t place = row / inner * extent * inner + i * inner + row % inner;
                return xs[static_cast<size_t>(place)];
              };
              std::vector<int64_t> order(static_cast<size_t>(extent));
              std::iota(order.begin(), order.end(), int64_t{0});
              std::ranges::stable_sort(order, [&](int64_t i, int64_t j) {
                return descending ? at(i) > at(j) : at(i) < at(j);
              });
              for (int64_t i = 0; i < k; ++i)
                expected[static_cast<size_t>(row / inner * k * inner + i * inner + row % inner)] =
                    order[static_cast<size_t>(i)];
            }
            CHECK(y.to_host<int64_t>() == expected);
          }
  const Tensor special = rows({2, not_a_number, -infinity, -0.0, 0, -infinity, -not_a_number}, 7);
  const Tensor places = Tensor::empty({1, 7}, DType::i64, special.device());
  const auto sorted = [&](bool descending) {
    kernels::sort({special, places, 1, descending}, special.device().compute());
    return places.to_host<int64_t>();
  };
  CHECK(sorted(true) == std::vector<int64_t>{1, 6, 0, 3, 4, 2, 5});
  CHECK(sorted(false) == std::vector<int64_t>{2, 5, 3, 4, 0, 1, 6});
  const Tensor none = Tensor::empty({1, 0}, DType::i64, special.device());
  kernels::sort({.x = special, .y = none, .axis = 1}, special.device().compute());
}

TEST_CASE("cumsum and cummax take rows and columns of any length from both ends, in one order") {
  for (const Device& device : devices_at_every_level())
    for (const auto& [shape, axis] : {std::pair{Shape{3, 1030}, 1},
                                      {Shape{2, 1030, 3}, 1},
                                      {Shape{300, 2, 130}, 0},
                                      {Shape{5}, 0},
                                      {Shape{2, 0}, 1}})
      for (const DType dtype : {DType::i32, DType::i64, DType::f32, DType::bf16})
        for (const bool reversed : {false, true}) {
          INFO(name_of(dtype), " ", shape.str(), " axis ", axis, " ", reversed);
          // Small whole numbers, so that every order of the sum is exact.
          const Tensor x = random_tensor(shape, DType::i32, device, 3, -3, 6);
          const Tensor in = Tensor::empty(shape, dtype, device);
          const Tensor y = Tensor::empty(shape, dtype, device);
          kernels::cast({x, in}, device.compute());
          kernels::scan({ScanOp::sum, in, y, axis, reversed}, device.compute());
          int64_t inner = 1;
          for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
          std::vector<double> expected = x.to_doubles();
          const int64_t extent = shape[axis], step = reversed ? -inner : inner;
          const int64_t first = reversed ? extent - 1 : 0;
          const auto for_rows = [&](const auto& f) {  // f(offset of the first element)
            for (int64_t row = 0; extent > 0 && row < shape.numel() / extent; ++row)
              f(row / inner * extent * inner + row % inner + first * inner);
          };
          for_rows([&](int64_t at) {
            for (int64_t i = 1; i < extent; ++i, at += step)
              expected[static_cast<size_t>(at + step)] += expected[static_cast<size_t>(at)];
          });
          if (dtype == DType::bf16)  // rounded once
            for (double& sum : expected) sum = static_cast<float>(bf16(static_cast<float>(sum)));
          CHECK(y.to_doubles() == expected);
          const Tensor places = Tensor::empty(shape, DType::i64, device);
          const auto check_places = [&] {
            kernels::scan({ScanOp::place_of_largest, in, places, axis, reversed, y},
                          device.compute());
            const std::vector<double> values = in.to_doubles();
            std::vector<int64_t> wanted(values.size());
            std::vector<double> running(values.size());
            for_rows([&](int64_t at) {
              int64_t best = first;
              double largest = -infinity;
              for (int64_t i = 0, place = first; i < extent; ++i, at += step) {
                const double value = values[static_cast<size_t>(at)];
                if (value >= largest || std::isnan(value)) best = place, largest = value;
                wanted[static_cast<size_t>(at)] = best;
                running[static_cast<size_t>(at)] = largest;
                place += reversed ? -1 : 1;
              }
            });
            CHECK(places.to_host<int64_t>() == wanted);
            CHECK(excess(y, running, 0.0) <= 1);
          };
          check_places();
          if (!is_floating(dtype)) continue;
          kernels::binary({BinaryOp::multiply, in, in, y}, device.compute());
          kernels::binary({BinaryOp::divide, y, in, in}, device.compute());  // 0 becomes NaN
          check_places();
        }
}

TEST_CASE("softmax is correct for huge and masked elements, and in place") {
  for (const Device& device : devices_at_every_level()) {
    const Tensor x = Tensor::from<float>(
        {1e30f, 1e30f, -1e30f, 5, -float(infinity), 5, float(not_a_number), 1, 2}, {3, 3}, device);
    kernels::softmax_forward({.x = x, .y = x}, device.compute());
    const std::vector<double> y = x.to_doubles();
    CHECK(std::vector<double>(y.begin(), y.begin() + 6) ==
          std::vector<double>{0.5, 0.5, 0, 0.5, 0, 0.5});
    for (size_t i = 6; i < 9; ++i) CHECK(std::isnan(y[i]));
  }
}

TEST_SUITE_END();

TEST_CASE("reductions refuse wrong shapes, dtypes and axes, on meta devices too") {
  for (const Device& device : {Device::cpu(), Device::meta()}) {
    Stream& stream = device.compute();
    auto f32 = [&](const Shape& shape) { return Tensor::empty(shape, DType::f32, device); };
    CHECK_THROWS_WITH_AS(
        kernels::reduce({.op = ReduceOp::sum, .x = f32({2, 3}), .y = f32({3}), .axes = 2}, stream),
        "reduce: y has shape [3]; expected [2]", ShapeError);
    kernels::reduce({.op = ReduceOp::sum, .x = f32({2, 3}), .y = f32({2}), .axes = 2}, stream);
    CHECK_THROWS_AS(
        kernels::reduce({.op = ReduceOp::sum, .x = f32({2, 3}), .y = f32({2}), .axes = 4}, stream),
        ShapeError);
    CHECK_THROWS_WITH_AS(kernels::reduce({.op = ReduceOp::mean,
                                          .x = Tensor::empty({3}, DType::i32, device),
                                          .y = f32({}),
                                          .axes = 1},
                                         stream),
                         "reduce: x holds i32; expected f64 or f32 or bf16 or f16", DTypeError);
    const Tensor too_many = Tensor::empty({2, 4}, DType::i64, device);
    CHECK_THROWS_WITH_AS(
        kernels::sort({.x = f32({2, 3}), .y = too_many, .axis = 1}, stream),
        "sort: y has shape [2, 4]; expected [2, 3] with at most 3 elements along axis 1",
        ShapeError);
    Scan scan{ScanOp::sum, f32({2, 3}), f32({3}), 1};
    CHECK_THROWS_WITH_AS(kernels::scan(scan, stream), "scan: y has shape [3]; expected [2, 3]",
                         ShapeError);
    scan.op = ScanOp::place_of_largest;
    CHECK_THROWS_WITH_AS(kernels::scan(scan, stream), "scan: y holds f32; expected i64",
                         DTypeError);
    CHECK_THROWS_WITH_AS(kernels::softmax_forward({.x = f32({2, 3}), .y = f32({3, 2})}, stream),
                         "softmax_forward: y has shape [3, 2]; expected [2, 3]", ShapeError);
    CHECK_THROWS_AS(
        kernels::softmax_backward(
            {.y = f32({3}), .dy = Tensor::empty({3}, DType::bf16, device), .dx = f32({3})}, stream),
        DTypeError);
  }
}

TEST_CASE("one long row is sorted alike by one thread and by three") {
  std::vector<int64_t> one;
  for (const int threads : {1, 3}) {
    const Device device = Device::cpu(0, {.threads = threads});
    const Tensor x = random_tensor({100'000}, DType::f32, device, 4, -9.0, 9.0);
    const Tensor y = Tensor::empty({100'000}, DType::i64, device);
    kernels::sort({.x = x, .y = y, .axis = 0}, device.compute());
    if (one.empty()) one = y.to_host<int64_t>();
    CHECK(y.to_host<int64_t>() == one);
  }
  const std::vector<double> xs =
      random_tensor({100'000}, DType::f32, Device::cpu(), 4, -9.0, 9.0).to_doubles();
  CHECK(std::ranges::is_sorted(one, {}, [&](int64_t i) { return xs[static_cast<size_t>(i)]; }));
}

TEST_CASE("a reduction of some columns adds in the order of all of them, if it is told how many") {
  const Device device = Device::cpu();
  constexpr int64_t rows = 5000, columns = 60, some = 20;
  const Tensor x = Tensor::empty({rows, columns}, DType::f64, device);
  for (int64_t i = 0; i < x.numel(); ++i)
    x.data<double>()[i] = 1.0 / static_cast<double>(3 + i * 7919 % 1013);
  const Tensor part = Tensor::empty({rows, some}, DType::f64, device);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(x.data<double>() + row * columns, some, part.data<double>() + row * some);
  const auto sum_of = [&](const Tensor& values, int64_t order) {
    const Tensor sum = Tensor::empty({values.extent(1)}, DType::f64, device);
    kernels::reduce({ReduceOp::sum, values, sum, 1u << 0, order}, device.compute());
    return sum.to_host<double>();
  };
  std::vector<double> expected = sum_of(x, 0);
  expected.resize(some);
  CHECK(sum_of(part, columns) == expected);
  CHECK(sum_of(part, 0) != expected);
}
