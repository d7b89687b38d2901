#include "zerograd/kernels/optimizer/optimizer.h"

#include <cmath>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"

using namespace zg;
using namespace zg::testing;

namespace {

constexpr DType gradient_dtypes[] = {DType::f32, DType::bf16, DType::f16};

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("fold_gradient rounds the new gradient and adds it, with equal bits at every level") {
  const DType every_kept[] = {DType::f32, DType::bf16};
  const bool is_first[] = {false, true};
  const int64_t lengths[] = {1, 31, 1023, 70001};
  for (const Device& device : devices_at_every_level()) {
    const std::vector<DType> dtypes = on_device(gradient_dtypes, device);
    for_cover(
        [&](DType leaf, DType rounding, DType kept, bool first, int64_t n) {
          INFO(level_of(device), ", n ", n);
          const Tensor x = random_tensor({n}, leaf, device, 1);
          const Tensor sum = random_tensor({n}, kept, device, 2, -100.0, 100.0);
          const std::vector<double> sums = sum.to_doubles(), leaves = x.to_doubles();
          std::vector<double> expected(sums.size());
          for (size_t i = 0; i < expected.size(); ++i) {
            float term = static_cast<float>(leaves[i]);
            if (rounding == DType::bf16) term = static_cast<float>(bf16(term));
            if (rounding == DType::f16) term = static_cast<float>(f16(term));
            const float total = (first ? 0.0f : static_cast<float>(sums[i])) + term;
            expected[i] = kept == DType::bf16 ? static_cast<double>(bf16(total)) : total;
          }
          kernels::fold_gradient(
              {.parts = {{.leaf = x, .sum = sum, .first = first}}, .rounding = rounding},
              device.compute());
          CHECK(sum.to_doubles() == expected);
        },
        dtypes, dtypes, every_kept, is_first, lengths);
  }
}

TEST_CASE("fold_gradient with first = true gives the bits of 0 + leaf, whatever sum held before") {
  for (const Device& device : devices_at_every_level()) {
    const Tensor leaf = Tensor::from(std::vector<float>(20, -0.0f), {20}, device);
    const Tensor sum = Tensor::full({20}, NAN, DType::f32, device);
    kernels::fold_gradient({.parts = {{.leaf = leaf, .sum = sum, .first = true}}},
                           device.compute());
    CHECK(same_bits(sum, Tensor::zeros({20}, DType::f32, device)));
  }
}

TEST_CASE("fold_gradient with first = true may write over the leaf and gives the same bits there") {
  for (const Device& device : devices_at_every_level())
    for (DType rounding : on_device(gradient_dtypes, device))
      for (int64_t n : {1, 31, 1023, 200001}) {
        INFO(level_of(device), ", n ", n);
        std::vector<float> values = random_tensor({n}, DType::f32, device, 1).to_host<float>();
        values[static_cast<size_t>(n / 2)] = -0.0f;
        const Tensor leaf = Tensor::from(values, {n}, device);
        const Tensor sum = Tensor::empty({n}, DType::f32, device);
        for (const Tensor& to : {sum, leaf})
          kernels::fold_gradient(
              {.parts = {{.leaf = leaf, .sum = to, .first = true}}, .rounding = rounding},
              device.compute());
        CHECK(same_bits(leaf, sum));
        CHECK_FALSE(std::signbit(leaf.to_host<float>()[static_cast<size_t>(n / 2)]));
      }
}

TEST_CASE("fold_gradient gives the same bits at every alignment of leaf and sum") {
  constexpr int64_t n = 1023;
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(gradient_dtypes, device))
      for (DType kept : {DType::f32, DType::bf16}) {
        const Tensor leaf = random_tensor({n}, dtype, device, 1);
        const auto folded = [&](int64_t leaf_begin, int64_t sum_begin) {
          const Tensor x = moved(leaf, leaf_begin);
          const Tensor sum = moved(Tensor::full({n}, 3.0, kept, device), sum_begin);
          kernels::fold_gradient({.parts = {{.leaf = x, .sum = sum}}, .rounding = dtype},
                                 device.compute());
          return sum;
        };
        const Tensor expected = folded(0, 0);
        for (int64_t begin : {1, 2, 4, 8}) {
          INFO(level_of(device), ", begin ", begin);
          CHECK(same_bits(folded(begin, 0), expected));
          CHECK(same_bits(folded(0, begin), expected));
        }
      }
}

TEST_CASE("fold_gradient gives each of many parts the bits that it has alone") {
  constexpr int64_t parts = 300;  // more than a launch on CUDA takes
  for (const Device& device : devices_at_every_level())
    for (DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(level_of(device));
      FoldGradient all{.parts = {}, .rounding = dtype};
      std::vector<Tensor> expected;
      for (int64_t i = 0; i < parts; ++i) {
        const int64_t n = i % 7 == 0 ? 0 : 1 + i * i % 1500;
        const Tensor leaf = moved(random_tensor({n}, dtype, device, 1), i % 3);
        const auto sum = [&] {
          return moved(random_tensor({n}, DType::f32, device, 2), i % 5 == 0 ? 1 : 0);
        };
        const FoldGradient::Part part{.leaf = leaf, .sum = sum(), .first = i % 4 == 0};
        all.parts.push_back(part);
        expected.push_back(sum());
        kernels::fold_gradient(
            {.parts = {{.leaf = leaf, .sum = expected.back(), .first = part.first}},
             .rounding = dtype},
            device.compute());
      }
      kernels::fold_gradient(all, device.compute());
      for (size_t i = 0; i < expected.size(); ++i) {
        CAPTURE(i);
        CHECK(all.parts[i].sum.to_host<float>() == expected[i].to_host<float>());
      }
    }
}

TEST_SUITE_END();

TEST_CASE("fold_gradient refuses other shapes and dtypes") {
  const Device device = Device::cpu();
  const Tensor four = Tensor::zeros({4}, DType::f32, device);
  const Tensor five = Tensor::zeros({5}, DType::f32, device);
  const Tensor wide = Tensor::zeros({4}, DType::f64, device);
  Stream& stream = device.compute();
  CHECK_THROWS_WITH_AS(kernels::fold_gradient({.parts = {{.leaf = four, .sum = five}}}, stream),
                       "fold_gradient: sum has shape [5]; expected [4]", ShapeError);
  CHECK_THROWS_WITH_AS(kernels::fold_gradient({.parts = {{.leaf = four, .sum = wide}}}, stream),
                       "fold_gradient: sum holds f64; expected f32 or bf16", DTypeError);
  CHECK_THROWS_WITH_AS(
      kernels::fold_gradient({.parts = {{.leaf = four, .sum = four}}, .rounding = DType::i32},
                             stream),
      "fold_gradient: rounding is i32; expected f32, bf16 or f16", DTypeError);
  const Tensor narrow = Tensor::zeros({4}, DType::bf16, device);
  CHECK_THROWS_WITH_AS(
      kernels::fold_gradient(
          {.parts = {{.leaf = four, .sum = four}, {.leaf = narrow, .sum = four}}}, stream),
      "fold_gradient: leaf holds bf16; expected f32", DTypeError);
  CHECK_NOTHROW(kernels::fold_gradient({}, stream));
}
