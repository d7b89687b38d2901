#include "zerograd/kernels/cuda/nest.cuh"

#include <doctest/doctest.h>

#include <vector>

using namespace zg;

TEST_CASE("Divisor gives the exact quotients of numbers below 2^31") {
  std::vector<unsigned> numbers;
  for (unsigned shift = 0; shift < 31; ++shift)
    for (unsigned near = 0; near < 7; ++near)
      if (const unsigned x = (1u << shift) + near - 3; x < 1u << 31) numbers.push_back(x);
  for (unsigned x = 1; x < 300; ++x) numbers.push_back(x * 7151537u % (1u << 31));
  for (const unsigned by : numbers) {
    if (by == 0) continue;
    const cuda::Divisor divisor(by);
    for (const unsigned x : numbers)
      for (const unsigned n : {x, x / by * by, x / by * by - 1u})
        if (n < 1u << 31 && divisor.quotient(n) != n / by) {
          INFO("n ", n, ", by ", by);
          REQUIRE(divisor.quotient(n) == n / by);
        }
  }
}

TEST_CASE("a nest computes the offsets that strides give, for indices below and beyond 2^31") {
  for (const Shape& shape : {Shape{3, 5, 7}, Shape{1000, 3, 700}, Shape{70000, 9, 60007}}) {
    const Strides by_rows = {shape[1] * shape[2], shape[2], 1};
    const Strides by_columns = {1, shape[0], shape[0] * shape[1]};
    const cuda::Nest<2> nest(shape, {by_rows, by_columns});
    CHECK((nest.fits_31_bits == 1) == (shape.numel() < int64_t{1} << 31));
    for (int64_t i = 0; i < 1000; ++i) {
      const int64_t index = i < 500 ? i * 6700417 % shape.numel() : shape.numel() - 1 - (i - 500);
      if (index < 0) continue;
      int64_t at[2];
      nest.locate(index, at);
      const int64_t row = index / by_rows[0], rest = index % by_rows[0];
      INFO(shape.str(), ", index ", index);
      REQUIRE(at[0] == index);
      REQUIRE(at[1] == row + rest / shape[2] * shape[0] + rest % shape[2] * shape[0] * shape[1]);
    }
  }
}
