#include "zerograd/kernels/movement/movement.h"

#include <numeric>

#include "tests/support/op_case.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr DType any_type[] = {DType::f64, DType::f32, DType::bf16, DType::f16,
                              DType::i32, DType::i64, DType::u8};

std::array<int64_t, Shape::max_rank> contiguous(const Shape& shape) {
  std::array<int64_t, Shape::max_rank> strides{};
  int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = stride;
    stride *= shape[i];
  }
  return strides;
}

/// Calls f(offset of x, offset of y) for every index, the slow way.
template <class F>
void for_each_index(const StridedCopy& copy, const F& f) {
  for (int64_t flat = 0; flat < copy.extents.numel(); ++flat) {
    int64_t rest = flat, x = copy.x_offset, y = copy.y_offset;
    for (int axis = copy.extents.rank() - 1; axis >= 0; --axis) {
      const int64_t i = rest % copy.extents[axis];
      rest /= copy.extents[axis];
      x += i * copy.x_strides[static_cast<size_t>(axis)];
      y += i * copy.y_strides[static_cast<size_t>(axis)];
    }
    f(static_cast<size_t>(x), static_cast<size_t>(y));
  }
}

void check_copy(StridedCopy copy, const Shape& x, const Shape& y) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(any_type, device)) {
      INFO(name_of(dtype), ", ", copy.extents.str());
      copy.x = random_tensor(x, dtype, device, 1, 0, 100);
      copy.y = random_tensor(y, dtype, device, 2, 0, 100);
      const std::vector<double> xs = copy.x.to_doubles();
      std::vector<double> expected = copy.y.to_doubles();
      for_each_index(copy, [&](size_t from, size_t to) { expected[to] = xs[from]; });
      kernels::strided_copy(copy, device.compute());
      CHECK(copy.y.to_doubles() == expected);
    }
}

std::vector<int64_t> random_indices(int64_t n, int64_t bound, uint64_t seed) {
  std::vector<int64_t> indices(static_cast<size_t>(n));
  for (size_t i = 0; i < indices.size(); ++i)
    indices[i] = static_cast<int64_t>(Philox::block({static_cast<uint32_t>(i)}, seed)[0] %
                                      static_cast<uint64_t>(bound));
  return indices;
}

struct IndexCase {
  Shape index;
  int axis;
  Shape other;        ///< gather's x, scatter_add's y
  Shape source = {};  ///< scatter_add's x; rank 0: like index
};
const IndexCase index_cases[] = {
    {{33}, 0, {7}},
    {{31, 5}, 0, {3, 5}},
    {{31, 5}, 1, {31, 9}},
    {{4, 1023}, 0, {2, 1023}},
    {{3, 17, 600}, 1, {3, 20, 600}},
    {{2, 3, 1, 4}, -2, {2, 3, 6, 4}},
    {{2, 1, 40000}, 2, {2, 1, 5}},
    // Smaller than the others before the axis, behind it, and on both sides.
    {{5, 9}, 1, {7, 4}, {6, 11}},
    {{9, 5}, 0, {4, 8}, {9, 6}},
    {{2, 30, 3}, 1, {3, 5, 7}, {2, 31, 4}},
    {{1, 2, 40, 1}, -2, {2, 3, 5, 600}, {3, 2, 41, 2}},
};

/// The places of another tensor that meets each element of index: the same in all axes, or in all
/// but `axis`, where it is the index's value.
std::vector<size_t> places_in(const Shape& other, const IndexCase& c,
                              const std::vector<int64_t>& at, bool by_index) {
  std::vector<size_t> places;
  for (int64_t flat = 0; flat < c.index.numel(); ++flat) {
    int64_t rest = flat, place = 0, stride = 1;
    for (int i = c.index.rank() - 1; i >= 0; --i) {
      const int64_t own = rest % c.index[i];
      rest /= c.index[i];
      place +=
          stride * (by_index && i == c.index.axis(c.axis) ? at[static_cast<size_t>(flat)] : own);
      stride *= other[i];
    }
    places.push_back(static_cast<size_t>(place));
  }
  return places;
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("strided_copy permutes, slices, concatenates, repeats and flips any type") {
  // [3, 5, 7, 4] to [4, 7, 3, 5]
  const std::array<int64_t, 6> permuted = {5, 1, 15, 105};
  check_copy(
      {.extents = {3, 5, 7, 4}, .x_strides = contiguous({3, 5, 7, 4}), .y_strides = permuted},
      {3, 5, 7, 4}, {4, 7, 3, 5});
  check_copy({.extents = {1023, 33}, .x_strides = {33, 1}, .y_strides = {1, 1023}}, {1023, 33},
             {33, 1023});
  // columns 2 to 4 of [31, 9] into columns 1 to 3 of [31, 5]
  check_copy(
      {.extents = {31, 3}, .x_strides = {9, 1}, .y_strides = {5, 1}, .x_offset = 2, .y_offset = 1},
      {31, 9}, {31, 5});
  check_copy({.extents = {6, 8}, .x_strides = {0, 1}, .y_strides = {8, 1}}, {8}, {6, 8});
  check_copy({.extents = {11}, .x_strides = {-1}, .y_strides = {1}, .x_offset = 10}, {11}, {11});
  check_copy({.extents = {2, 3, 2, 3, 2, 3},
              .x_strides = contiguous({2, 3, 2, 3, 2, 3}),
              .y_strides = {1, 2, 6, 12, 36, 72}},
             {216}, {216});
  check_copy({.extents = {}, .x_offset = 3, .y_offset = 1}, {4}, {2});
  check_copy({.extents = {4, 0, 2}, .x_strides = {}, .y_strides = {2, 2, 1}}, {4}, {4});
  // Rows of 64 that are contiguous on both sides, which begin at 0, 1, 2, ... elements; then rows
  // of 65 elements, of which 64 are read.
  for (int64_t begin : {0, 1, 2, 4, 8, 16})
    for (int64_t row : {64, 65}) {
      CAPTURE(begin);
      check_copy({.extents = {3, 5, 64},
                  .x_strides = {row, 3 * row, 1},
                  .y_strides = {320, 64, 1},
                  .x_offset = begin},
                 {15 * row + 16}, {15 * 64});
      check_copy({.extents = {3, 5, 64},
                  .x_strides = {0, 64, 1},
                  .y_strides = {5 * row, row, 1},
                  .y_offset = begin},
                 {5 * 64}, {15 * row + 16});
      check_copy({.extents = {5, 64}, .x_strides = {1, 0}, .y_strides = {64, 1}, .x_offset = begin},
                 {21}, {5 * 64});
    }
  check_copy({.extents = {200000}, .x_strides = {1}, .y_strides = {1}}, {200000}, {200000});
  check_copy({.extents = {7, 9}, .x_strides = {18, 2}, .y_strides = {27, 3}}, {126}, {189});
  // Short axes, which runs copy, and longer ones, which tiles copy.
  for (const auto& [rows, columns] : {std::pair{15, 63}, {15, 64}, {16, 63}})
    check_copy({.extents = {rows, columns}, .x_strides = {1, rows}, .y_strides = {columns, 1}},
               {columns, rows}, {rows, columns});
}

TEST_CASE("strided_copy writes rows of any alignment into 17 MB, more than caches keep") {
  constexpr int64_t rows = 65000;
  // Rows of 264 bytes, of which no whole one is copied past the caches, and of 272 bytes.
  for (const Device& device : devices_at_every_level())
    for (const auto& [row, begin] : {std::pair{33, 0}, {33, 1}, {34, 0}, {34, 1}}) {
      std::vector<int64_t> numbers(static_cast<size_t>(row));
      std::iota(numbers.begin(), numbers.end(), 0);
      const Tensor x = Tensor::from(numbers, {row}, device);
      const Tensor y = Tensor::zeros({rows * row + 1}, DType::i64, device);
      kernels::strided_copy({.x = x,
                             .y = y,
                             .extents = {rows, row},
                             .x_strides = {0, 1},
                             .y_strides = {row, 1},
                             .y_offset = begin},
                            device.compute());
      const std::vector<int64_t> values = y.to_host<int64_t>();
      int64_t wrong = 0;
      for (int64_t i = 0; i < rows * row; ++i)
        wrong += values[static_cast<size_t>(i + begin)] != i % row;
      CHECK(wrong == 0);
    }
}

TEST_CASE("gather reads where the index points, for every type and axis") {
  for (const Device& device : devices_at_every_level())
    for (const IndexCase& c : index_cases)
      for (DType dtype : on_device(any_type, device)) {
        INFO(c.index.str(), ", ", name_of(dtype));
        const Tensor x = random_tensor(c.other, dtype, device, 3, 0, 100);
        const std::vector<int64_t> at = random_indices(c.index.numel(), c.other[c.axis], 4);
        const Tensor y = Tensor::empty(c.index, dtype, device);
        kernels::gather(
            {.x = x, .index = Tensor::from(at, c.index, device), .y = y, .axis = c.axis},
            device.compute());
        const std::vector<double> xs = x.to_doubles();
        std::vector<double> expected;
        for (const size_t place : places_in(c.other, c, at, true)) expected.push_back(xs[place]);
        CHECK(y.to_doubles() == expected);
      }
}

TEST_CASE("scatter_add sums in the accumulator, with the same bits for any thread count") {
  std::vector<DType> dtypes = on_device(floating_dtypes, devices_at_every_level()[0]);
  dtypes.insert(dtypes.end(), {DType::i32, DType::i64});
  for (DType dtype : dtypes)
    for (const IndexCase& c : index_cases) {
      INFO(c.index.str(), ", ", name_of(dtype));
      const double limit = is_floating(dtype) ? 1 : 100;
      std::vector<Tensor> results;
      for (int threads : {1, 2}) {
        const Device device = devices_at_every_level(threads).back();
        const Shape source = c.source.rank() > 0 ? c.source : c.index;
        const Tensor x = random_tensor(source, dtype, device, 5, -limit, limit);
        const Tensor y = random_tensor(c.other, dtype, device, 6, -limit, limit);
        const std::vector<int64_t> at = random_indices(c.index.numel(), c.other[c.axis], 7);
        const std::vector<int32_t> narrow(at.begin(), at.end());
        std::vector<double> expected = y.to_doubles(), magnitude(expected.size(), 1.0);
        const std::vector<double> xs = x.to_doubles();
        int64_t terms = 0;
        const std::vector<size_t> from = places_in(source, c, at, false);
        const std::vector<size_t> to = places_in(c.other, c, at, true);
        for (size_t i = 0; i < at.size(); ++i) expected[to[i]] += xs[from[i]];
        terms = c.index[c.axis];
        kernels::scatter_add(
            {.x = x, .index = Tensor::from(narrow, c.index, device), .y = y, .axis = c.axis},
            device.compute());
        results.push_back(y);
        if (!is_floating(dtype)) {
          CHECK(y.to_doubles() == expected);
          continue;
        }
        // n additions of terms below 1 in the accumulator, then one rounding.
        const double n = static_cast<double>(terms);
        const double sums = unit_roundoff(accumulator(dtype)) * n * std::sqrt(n);
        const double subnormal = dtype == DType::f16 ? 0x1p-25 : 0.0;
        CHECK(excess(y, expected, sums + subnormal, unit_roundoff(dtype)) <= 1);
      }
      CHECK(same_bits(results[0], results[1]));
    }
}

TEST_CASE("an index [n] names the same places as one that repeats it along the other axes") {
  std::vector<Device> devices = devices_at_every_level();
  if (tested_type == Device::Type::cpu)
    for (const int threads : {1, 3}) devices.push_back(Device::cpu(0, {.threads = threads}));
  for (const Device& device : devices)
    for (const auto& [shape, axis] : {std::pair{Shape{7, 300}, 0},
                                      {Shape{300, 7}, 1},
                                      {Shape{3, 7, 20}, 1},
                                      {Shape{2, 3, 1, 7}, -1}})
      for (const DType dtype : on_device({DType::f32, DType::bf16}, device)) {
        INFO(shape.str(), ", ", name_of(dtype));
        const std::vector<int64_t> at = {3, 0, 6, 3, 3};
        const Tensor index = Tensor::from(at, {5}, device);
        const Shape named = shape.with(axis, 5);
        std::vector<int64_t> repeated;
        int64_t inner = 1;
        for (int i = named.axis(axis) + 1; i < named.rank(); ++i) inner *= named[i];
        for (int64_t i = 0; i < named.numel(); ++i)
          repeated.push_back(at[static_cast<size_t>(i / inner % 5)]);
        const Tensor whole = Tensor::from(repeated, named, device);
        const Tensor x = random_tensor(shape, dtype, device, 3);
        const Tensor source = random_tensor(named, dtype, device, 4);
        std::vector<Tensor> picked, sums;
        for (const Tensor& places : {index, whole}) {
          picked.push_back(Tensor::empty(named, dtype, device));
          kernels::gather({x, places, picked.back(), axis}, device.compute());
          sums.push_back(random_tensor(shape, dtype, device, 5));
          kernels::scatter_add({source, places, sums.back(), axis}, device.compute());
        }
        CHECK(same_bits(picked[0], picked[1]));
        CHECK(same_bits(sums[0], sums[1]));
      }
}

TEST_CASE("scatter_add in bf16 counts beyond 256") {
  for (const Device& device : devices_at_every_level()) {
    const Tensor x = Tensor::full({1000}, 1, DType::bf16, device);
    const Tensor index = Tensor::zeros({1000}, DType::i32, device);
    const Tensor y = Tensor::zeros({1}, DType::bf16, device);
    kernels::scatter_add({.x = x, .index = index, .y = y, .axis = 0}, device.compute());
    CHECK(y.item() == 1000);
  }
}

TEST_SUITE_END();

TEST_CASE(
    "strided_copy, gather and scatter_add refuse accesses out of range and wrong shapes and "
    "dtypes") {
  const Device device = Device::cpu();
  Stream& stream = device.compute();
  auto f32 = [&](const Shape& shape) { return Tensor::full(shape, 1, DType::f32, device); };
  auto i32 = [&](const std::vector<int32_t>& values) {
    return Tensor::from(values, {static_cast<int64_t>(values.size())}, device);
  };
  CHECK_THROWS_WITH_AS(
      kernels::strided_copy({.x = f32({6}),
                             .y = f32({6}),
                             .extents = {2, 3},
                             .x_strides = {3, 1},
                             .y_strides = {3, 1},
                             .x_offset = 1},
                            stream),
      "strided_copy: elements 1 to 6 of x are accessed; expected 0 to 5, the elements of shape [6]",
      ShapeError);
  CHECK_THROWS_AS(
      kernels::strided_copy(
          {.x = f32({6}), .y = f32({6}), .extents = {6}, .x_strides = {-1}, .y_strides = {1}},
          stream),
      ShapeError);
  CHECK_THROWS_AS(kernels::strided_copy(
                      {.x = f32({6}), .y = f32({6}), .extents = {6}, .x_strides = {1}}, stream),
                  ShapeError);
  CHECK_THROWS_AS(kernels::strided_copy({.x = f32({6}), .y = i32({1, 2}), .extents = {1}}, stream),
                  DTypeError);

  const Tensor y = f32({3});
  CHECK_THROWS_WITH_AS(
      kernels::gather({.x = f32({4}), .index = i32({0, 3, 4}), .y = y, .axis = 0}, stream),
      "gather: index holds 4 at element 2; expected 0 to 3", ShapeError);
  CHECK_THROWS_WITH_AS(
      kernels::scatter_add({.x = y, .index = i32({0, -1, 1}), .y = f32({2}), .axis = 0}, stream),
      "scatter_add: index holds -1 at element 1; expected 0 to 1", ShapeError);
  CHECK_THROWS_WITH_AS(
      kernels::gather({.x = f32({4}), .index = i32({0, 3}), .y = y, .axis = 0}, stream),
      "gather: y has shape [3]; expected [2]", ShapeError);
  CHECK_THROWS_AS(
      kernels::gather({.x = f32({4, 2}), .index = i32({0, 3, 1}), .y = y, .axis = 0}, stream),
      ShapeError);
  CHECK_THROWS_AS(
      kernels::gather({.x = f32({4}), .index = i32({0, 3, 1}), .y = y, .axis = 1}, stream),
      ShapeError);
  const Tensor flag = Tensor::zeros({1}, DType::boolean, device);
  CHECK_THROWS_AS(
      kernels::scatter_add({.x = flag, .index = i32({0}), .y = flag, .axis = 0}, stream),
      DTypeError);
}
