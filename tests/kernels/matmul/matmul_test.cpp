#include "zerograd/kernels/matmul/matmul.h"

#include <cmath>

#include "tests/support/cover.h"
#include "tests/support/op_case.h"
#include "zerograd/kernels/elementwise/gelu.h"
#include "zerograd/kernels/reduce/reduce.h"
#include "zerograd/runtime/error.h"

using namespace zg;
using namespace zg::testing;

namespace {

double gelu_of(double x, Activation form) {
  if (form == Activation::gelu_tanh)
    return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
  return form == Activation::gelu_erf ? 0.5 * x * (1.0 + std::erf(x / std::sqrt(2.0))) : x;
}

/// The expected result in exact arithmetic. `c` starts from the tensor's values before the call.
struct ExpectedProduct {
  std::vector<double> c, pre_activation;
};
ExpectedProduct expect(const Matmul& m) {
  const std::vector<double> a = m.a.to_doubles(), b = m.b.to_doubles();
  const std::vector<double> bias = m.bias ? m.bias.to_doubles() : std::vector<double>();
  const int64_t lda = m.lda ? m.lda : m.transpose_a ? m.M : m.K;
  const int64_t ldb = m.ldb ? m.ldb : m.transpose_b ? m.K : m.N;
  const int64_t ldc = m.ldc ? m.ldc : m.N;
  ExpectedProduct e{m.c.to_doubles(), m.c.to_doubles()};
  for (int64_t item = 0; item < m.batch; ++item)
    for (int64_t i = 0; i < m.M; ++i)
      for (int64_t j = 0; j < m.N; ++j) {
        const int64_t at = item * m.stride_c + i * ldc + j;
        double sum = m.accumulate ? e.c[at] : 0.0;
        if (m.bias) sum += bias[j];
        for (int64_t k = 0; k < m.K; ++k)
          sum += a[item * m.stride_a + (m.transpose_a ? k * lda + i : i * lda + k)] *
                 b[item * m.stride_b + (m.transpose_b ? j * ldb + k : k * ldb + j)];
        e.pre_activation[at] = sum;
        e.c[at] = gelu_of(sum, m.activation);
      }
  return e;
}

// Products below 1 add up to partial sums of about sqrt(K) / 3, and each of K additions in the
// accumulator type S rounds by at most u_S of that: errors of random sign come to u_S K / 3, those
// of one sign to u_S K^1.5 / 3. 4 u_S K covers the largest of thousands of elements. GELU's slope
// is at most 1.13 and its own error a few u_S of |x| < 2 sqrt(K). Storing rounds the result once.
double absolute_tolerance(const Matmul& m) {
  const double sum = unit_roundoff(accumulator(m.a.dtype()));
  return 4.0 * sum * (static_cast<double>(m.K) + 8.0 * std::sqrt(m.K + 1.0) + 1.0);
}
double relative_tolerance(const Matmul& m) { return 1.01 * unit_roundoff(m.c.dtype()); }

void check_close(const Matmul& m, const ExpectedProduct& e) {
  CHECK(excess(m.c, e.c, absolute_tolerance(m), relative_tolerance(m)) < 1.0);
  if (m.pre_activation)
    CHECK(excess(m.pre_activation, e.pre_activation, absolute_tolerance(m), relative_tolerance(m)) <
          1.0);
}

struct Size {
  int64_t M, N, K;
};
Matmul packed(const Size& s, DType dtype, DType out, const Device& device, bool transpose_a,
              bool transpose_b) {
  return {.a = random_tensor({s.M, s.K}, dtype, device, 1),
          .b = random_tensor({s.K, s.N}, dtype, device, 2),
          .c = random_tensor({s.M, s.N}, out, device, 3),
          .M = s.M,
          .N = s.N,
          .K = s.K,
          .transpose_a = transpose_a,
          .transpose_b = transpose_b};
}

void run_matmul(const Matmul& m) { kernels::matmul(m, m.a.device().compute()); }

}  // namespace

TEST_CASE("matmul equals a product in doubles for odd sizes, every transpose, dtype and level" *
          doctest::test_suite("every device")) {
  const Size sizes[] = {{1, 1, 1},      {1, 33, 31},    {31, 1, 33},   {33, 31, 1},  {13, 17, 19},
                        {64, 48, 48},   {3, 45, 77},    {6, 19, 64},   {8, 300, 33}, {37, 64, 300},
                        {121, 257, 63}, {12, 32, 1023}, {127, 65, 511}};
  const int every_transposes[] = {0, 1, 2, 3};
  for (const Device& device : devices_at_every_level())
    for_cover(
        [&](DType dtype, const Size& size, int transposes) {
          const Matmul m = packed(size, dtype, dtype, device, transposes & 1, transposes & 2);
          INFO(level_of(device), ", ", name_of(dtype), ", M ", m.M, ", N ", m.N, ", K ", m.K,
               ", transposes ", transposes);
          const ExpectedProduct e = expect(m);
          run_matmul(m);
          check_close(m, e);
        },
        on_device(floating_dtypes, device), sizes, every_transposes);
}

TEST_CASE("matmul adds to c in the accumulator type" * doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device)) {
      for (Matmul m : {packed({37, 61, 600}, dtype, accumulator(dtype), device, true, false),
                       packed({3, 61, 600}, dtype, accumulator(dtype), device, false, true)}) {
        m.accumulate = true;
        const ExpectedProduct e = expect(m);
        run_matmul(m);
        check_close(m, e);
      }
    }
}

TEST_CASE("matmul's epilogue adds the bias, stores the sum and gives gelu_forward's bits of it" *
          doctest::test_suite("every device")) {
  const Size sizes[] = {{29, 83, 24},  {29, 83, 700}, {2, 83, 24},
                        {29, 300, 24}, {2, 300, 24},  {24, 40, 24}};
  const Activation forms[] = {Activation::none, Activation::gelu_tanh, Activation::gelu_erf};
  const bool is_wide[] = {false, true};
  for (const Device& device : devices_at_every_level())
    for_cover(
        [&](DType dtype, bool wide, Activation form, const Size& size) {
          const DType out = wide ? accumulator(dtype) : dtype;
          Matmul m = packed(size, dtype, out, device, false, true);
          m.bias = random_tensor({size.N}, dtype, device, 4, -3.0, 3.0);
          m.activation = form;
          if (form != Activation::none)
            m.pre_activation = Tensor::zeros({size.M, size.N}, out, device);
          INFO(level_of(device), ", ", name_of(dtype));
          ExpectedProduct e = expect(m);
          run_matmul(m);
          Tensor again = m.c;
          if (form != Activation::none) {
            // The activation is computed from the stored pre-activation.
            const std::vector<double> kept = m.pre_activation.to_doubles();
            for (size_t i = 0; i < kept.size(); ++i) e.c[i] = gelu_of(kept[i], form);
            again = Tensor::empty(m.c.shape(), out, device);
            kernels::gelu_forward({m.pre_activation, again, form}, device.compute());
            CHECK(same_bits(again, m.c));
          }
          check_close(m, e);
          m.pre_activation = {};
          m.c = Tensor::empty(m.c.shape(), out, device);
          run_matmul(m);
          CHECK(same_bits(again, m.c));
        },
        on_device(floating_dtypes, device), is_wide, forms, sizes);
}

TEST_CASE("matmul's row_sums are the sums of the columns of the stored a, beside the same product" *
          doctest::test_suite("every device")) {
  const Size sizes[] = {{24, 40, 700},  {24, 8, 64}, {23, 37, 65}, {3, 40, 16},
                        {2000, 16, 33}, {8, 0, 40},  {5, 7, 0}};
  const bool is_wide[] = {false, true};
  for (const Device& device : devices_at_every_level())
    for_cover(
        [&](DType dtype, bool wide, bool wide_sums, const Size& size) {
          const DType out = wide ? accumulator(dtype) : dtype;
          const DType sums = wide_sums ? accumulator(dtype) : dtype;
          Matmul m = packed(size, dtype, out, device, true, false);
          m.row_sums = random_tensor({size.M}, sums, device, 4);
          INFO(level_of(device), ", ", name_of(dtype), ", ", name_of(out), ", ", name_of(sums),
               ", M ", size.M, ", N ", size.N, ", K ", size.K);
          const ExpectedProduct e = expect(m);
          const std::vector<double> a = m.a.to_doubles();
          std::vector<double> expected(static_cast<size_t>(size.M));
          for (size_t i = 0; i < a.size(); ++i) expected[i % expected.size()] += a[i];
          run_matmul(m);
          check_close(m, e);
          CHECK(excess(m.row_sums, expected, absolute_tolerance(m), 1.01 * unit_roundoff(sums)) <
                1.0);
        },
        on_device(floating_dtypes, device), is_wide, is_wide, sizes);
}

TEST_CASE("matmul's row_sums have the bits of reduce on the cpu") {
  for (DType dtype : floating_dtypes) {
    const Device device = Device::cpu(0, {.threads = 2});
    Matmul m = packed({70, 40, 3000}, dtype, accumulator(dtype), device, true, false);
    m.row_sums = Tensor::empty({70}, accumulator(dtype), device);
    run_matmul(m);
    const Tensor sums = Tensor::empty({70}, accumulator(dtype), device);
    kernels::reduce({ReduceOp::sum, m.a.view({3000, 70}), sums, 1u << 0}, device.compute());
    CHECK(same_bits(sums, m.row_sums));
    const Matmul alone = packed({70, 40, 3000}, dtype, accumulator(dtype), device, true, false);
    run_matmul(alone);
    CHECK(same_bits(alone.c, m.c));
  }
}

TEST_CASE("matmul follows batch strides and leading dimensions, and writes nothing in the gaps" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device)) {
      Matmul m = packed({1, 1, 1}, dtype, dtype, device, false, false);
      m.M = 19, m.N = 35, m.K = 21, m.batch = 3;
      m.a = random_tensor({3000}, dtype, device, 1);
      m.b = random_tensor({3000}, dtype, device, 2);
      m.c = random_tensor({3000}, dtype, device, 3);
      m.lda = 23, m.ldb = 37, m.ldc = 41;
      m.stride_a = 500, m.stride_b = 800, m.stride_c = 19 * 41 + 5;
      ExpectedProduct e = expect(m);
      run_matmul(m);
      check_close(m, e);  // gaps keep their values: `expect` starts from c

      m.stride_a = 19 * 23, m.stride_b = 0, m.stride_c = 19 * 41;  // one tall product
      e = expect(m);
      run_matmul(m);
      check_close(m, e);

      // b is shared, but this is not a tall product: a is transposed, or apart, or c is side by
      // side.
      for (int reason = 0; reason < 3; ++reason) {
        Matmul other = m;
        if (reason == 0) other.transpose_a = true;
        if (reason == 1) other.stride_a = 500;
        if (reason == 2) other.ldc = 3 * 35 + 2, other.stride_c = 35;
        e = expect(other);
        run_matmul(other);
        check_close(other, e);
      }

      m.transpose_a = true, m.stride_a = 0;  // shared a, [21, 23] stored
      m.transpose_b = true, m.stride_b = 777;
      e = expect(m);
      run_matmul(m);
      check_close(m, e);

      m.ldc = 3 * 35 + 2, m.stride_c = 35;  // products side by side in the rows of c
      e = expect(m);
      run_matmul(m);
      check_close(m, e);

      m.M = 5, m.transpose_a = false;  // few rows, read in place
      e = expect(m);
      run_matmul(m);
      check_close(m, e);

      m.M = 16, m.N = 32, m.K = 24;  // all strides are multiples of 16 bytes, as libraries prefer
      m.lda = 32, m.ldb = 40, m.ldc = 48;
      m.stride_a = 768, m.stride_b = 800, m.stride_c = 16 * 48;
      for (int transposes = 0; transposes < 4; ++transposes) {
        m.transpose_a = transposes & 1, m.transpose_b = transposes & 2;
        e = expect(m);
        run_matmul(m);
        check_close(m, e);
      }
    }
}

TEST_CASE("matmul gives the same bits for any number of threads") {
  // Workers pack blocks of a for themselves in the fourth, of b in the last.
  const Size sizes[] = {
      {251, 263, 129}, {7, 1501, 256}, {600, 300, 520}, {600, 200, 520}, {200, 1501, 520}};
  for_cover(
      [&](Isa isa, DType dtype, const Size& size) {
        std::vector<Tensor> results;
        for (int threads : {1, 2, 5}) {
          const Device device = Device::cpu(0, {.threads = threads, .isa = isa});
          const Matmul m = packed(size, dtype, dtype, device, false, true);
          run_matmul(m);
          results.push_back(m.c);
        }
        INFO(name_of(isa), ", ", name_of(dtype));
        CHECK(same_bits(results[0], results[1]));
        CHECK(same_bits(results[0], results[2]));
      },
      available_levels(), floating_dtypes, sizes);
}

TEST_CASE("matmul cuts operands that exceed its scratch into slabs") {
  // K alone fills the 16 MiB of packed panels with one block, so every block is its own slab. Rows
  // of a are packed where a is transposed; the last slab of them is shorter and writes no more.
  const Size size{150, 300, 40000};
  constexpr int64_t behind = 150;
  for (const Device& device : devices_at_every_level())
    for (bool transpose_a : {false, true}) {
      const Tensor memory = Tensor::full({size.M + behind, size.N}, -1.0, DType::f32, device);
      const Tensor c = memory.slice(0, size.M), rest = memory.slice(size.M, size.M + behind);
      run_matmul({.a = Tensor::full({size.M, size.K}, 0.5, DType::f32, device),
                  .b = Tensor::full({size.K, size.N}, 2.0, DType::f32, device),
                  .c = c,
                  .M = size.M,
                  .N = size.N,
                  .K = size.K,
                  .transpose_a = transpose_a});
      CAPTURE(transpose_a);
      CHECK(excess(c, std::vector<double>(150 * 300, 40000.0), 1e-9) < 1.0);  // exact in f32
      CHECK(rest.to_host<float>() == std::vector<float>(static_cast<size_t>(rest.numel()), -1.0f));
    }
}

TEST_CASE("matmul of a batch that packs b for each product reads the right a for each" *
          doctest::test_suite("every device")) {
  constexpr int64_t M = 9, N = 1024, K = 2100;
  for (const Device& device : devices_at_every_level()) {
    std::vector<float> a(2 * M * K), expected(2 * M * N);
    for (size_t i = 0; i < a.size(); ++i) a[i] = i < a.size() / 2 ? 1.0f : 2.0f;
    for (size_t i = 0; i < expected.size(); ++i) expected[i] = i < expected.size() / 2 ? K : 2 * K;
    const Matmul m = {.a = Tensor::from(a, {2, M, K}, device),
                      .b = Tensor::full({2, K, N}, 1.0, DType::f32, device),
                      .c = Tensor::zeros({2, M, N}, DType::f32, device),
                      .M = M,
                      .N = N,
                      .K = K,
                      .transpose_b = true,
                      .batch = 2,
                      .stride_a = M * K,
                      .stride_b = K * N,
                      .stride_c = M * N};
    run_matmul(m);
    CHECK(m.c.to_host<float>() == expected);
  }
}

TEST_CASE("matmul with K = 0 writes its epilogue applied to zeros" *
          doctest::test_suite("every device")) {
  for (const Device& device : devices_at_every_level())
    for (DType dtype : on_device(floating_dtypes, device)) {
      Matmul m = packed({5, 7, 0}, dtype, dtype, device, false, false);
      m.bias = random_tensor({7}, dtype, device, 4);
      const ExpectedProduct e = expect(m);
      run_matmul(m);
      check_close(m, e);
      run_matmul(packed({0, 7, 3}, dtype, dtype, device, false, false));
    }
}

TEST_CASE("matmul takes the scratch on a meta device that it takes on a cpu") {
  for (DType dtype : floating_dtypes) {
    int64_t peaks[2];
    int which = 0;
    for (const Device& device : {Device::cpu(0, {.threads = 2}), Device::meta(0, {.threads = 2})}) {
      const Tensor a = Tensor::empty({300, 200}, dtype, device);
      const Tensor b = Tensor::empty({200, 500}, dtype, device);
      const Tensor c = Tensor::empty({300, 500}, dtype, device);
      run_matmul({.a = a, .b = b, .c = c, .M = 300, .N = 500, .K = 200});
      peaks[which++] = device.memory().peak();
    }
    CHECK(peaks[0] == peaks[1]);
  }
}

TEST_CASE("matmul refuses operands that do not fit, by name, before any work") {
  const Device device = Device::cpu();
  const Matmul good = packed({8, 6, 4}, DType::f32, DType::f32, device, false, false);
  const auto message = [](const Matmul& m) -> std::string {
    try {
      run_matmul(m);
    } catch (const Error& error) {
      return std::string(error.type()) + " " + error.what();
    }
    return "";
  };
  CHECK(message(good) == "");
  Matmul m = good;
  m.K = 5;
  CHECK(message(m) ==
        "ShapeError matmul: a [8, 4] has 32 elements; expected at least 40 for 1 of [8, 5]");
  m = good;
  m.lda = 3;
  CHECK(message(m) == "ShapeError matmul: rows of a are 3 apart; expected at least 4");
  m = good;
  m.b = Tensor::zeros({4, 6}, DType::bf16, device);
  CHECK(message(m) == "DTypeError matmul: b holds bf16; expected f32");
  m = good;
  m.a = Tensor::zeros({8, 4}, DType::i32, device);
  CHECK(message(m) == "DTypeError matmul: a holds i32; expected f64 or f32 or bf16 or f16");
  m = good;
  m.c = {};
  CHECK(message(m) == "ShapeError matmul: c is absent; expected a tensor");
  m = good;
  m.bias = Tensor::zeros({8}, DType::f32, device);
  CHECK(message(m) == "ShapeError matmul: bias has shape [8]; expected [6]");
  m = good;
  m.M = 4, m.batch = 2, m.stride_a = 16, m.stride_c = 12;
  CHECK(message(m) ==
        "ShapeError matmul: products of a batch overlap in c; stride_c is 12, expected at least "
        "24");
  m = good;
  m.accumulate = true;
  m.activation = Activation::gelu_erf;
  CHECK(message(m).starts_with("Unsupported matmul: accumulate with an epilogue"));
  m = good;
  m.pre_activation = Tensor::zeros({8, 6}, DType::f32, device);
  CHECK(message(m).starts_with("Unsupported matmul: pre_activation without an activation"));
  m = packed({8, 6, 4}, DType::f32, DType::f32, device, true, false);
  m.row_sums = Tensor::zeros({6}, DType::f32, device);
  CHECK(message(m) == "ShapeError matmul: row_sums has shape [6]; expected [8]");
  m.row_sums = Tensor::zeros({8}, DType::f32, device);
  m.transpose_a = false;
  CHECK(message(m) ==
        "Unsupported matmul: row_sums; expected one product, a transposed with rows 8 apart, no "
        "accumulate; got M 8, N 6, K 4, a not transposed, rows 4 apart; try reduce");
  m.transpose_a = m.accumulate = true;
  CHECK(message(m).ends_with("a transposed, rows 8 apart, accumulate; try reduce"));
  m = packed({8, 6, 4}, DType::bf16, DType::bf16, device, true, false);
  m.row_sums = Tensor::zeros({8}, DType::f16, device);
  CHECK(message(m) == "DTypeError matmul: row_sums holds f16; expected bf16 or f32");
  m = packed({8, 6, 4}, DType::bf16, DType::bf16, device, false, false);
  m.accumulate = true;
  CHECK(message(m) == "DTypeError matmul: c to accumulate into holds bf16; expected f32");
}
