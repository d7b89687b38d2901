#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/support/op_case.h"
#include "zerograd/kernels/matmul/matmul.h"

using namespace zg;
using namespace zg::testing;

namespace {

/// Levels whose products have the portable bits: all but AMX.
std::vector<Device> portable_devices() {
  std::vector<Device> devices = devices_at_every_level();
  std::erase_if(devices, [](const Device& d) { return d.traits().isa == Isa::amx_bf16; });
  return devices;
}

/// Values of both signs with exponents from `lowest` on: some are subnormal, and so are some of
/// their products.
std::vector<bf16> small_values(int64_t count, int lowest, uint64_t seed) {
  std::vector<bf16> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const Philox::Block words = Philox::block({static_cast<uint32_t>(i), 0, 0, 0}, seed);
    const double x =
        std::ldexp(1.0 + words[0] % 128 / 128.0, lowest + static_cast<int>(words[1] % 9));
    values[i] = words[2] % 16 == 0 ? bf16(0.0f) : bf16(static_cast<float>(words[2] % 2 ? x : -x));
  }
  return values;
}

/// Rounded to f32, where a result that is below the least normal number after it was rounded with
/// any exponent becomes 0.
float flushed(long double x) {
  const long double tie = 0x1p-126L - 0x1p-151L;
  return std::fabs(x) < tie ? std::copysign(0.0f, static_cast<float>(x)) : static_cast<float>(x);
}

/// As the instruction vdpbf16ps: the odd element of a pair, then the even one. Products of up to 8
/// rows by a transposed b have a sum in each of 16 lanes, then halves of the lanes are added.
float pair_product(const bf16* a, const bf16* b, int64_t K, bool has_lanes = false) {
  const auto operand = [](bf16 x) {
    const float value = static_cast<float>(x);
    return std::fabs(value) < 0x1p-126f ? std::copysign(0.0f, value) : value;
  };
  float sums[16] = {};
  for (int64_t k = 0; k < K; k += 2)
    for (const int64_t i : {k + 1, k}) {
      float& sum = sums[has_lanes ? k / 2 % 16 : 0];
      const long double product =
          i < K ? static_cast<long double>(operand(a[i])) * operand(b[i]) : 0.0L;
      sum = flushed(product + sum);
    }
  for (int width = has_lanes ? 8 : 0; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) sums[i] += sums[i + width];
  return has_lanes ? sums[0] + 0.0f : sums[0];
}

/// NaN has one pattern here: which operand's payload remains depends on the instruction.
std::vector<uint32_t> bits_of(const Tensor& tensor) {
  std::vector<uint32_t> bits(static_cast<size_t>(tensor.numel()));
  std::memcpy(bits.data(), tensor.raw(), bits.size() * sizeof(uint32_t));
  for (uint32_t& word : bits)
    if ((word & 0x7fffffffu) > 0x7f800000u) word = 0x7fc00000u;
  return bits;
}

}  // namespace

TEST_CASE(
    "products of bf16 add pairs as vdpbf16ps does, without subnormal numbers, at every level") {
  for (const int lowest : {-66, -130, -4})
    for (const auto& [M, K] :
         {std::pair{9, 1}, {9, 7}, {9, 64}, {9, 511}, {1, 7}, {2, 511}, {3, 70}}) {
      const int64_t N = 37;
      const std::vector<bf16> a = small_values(M * K, lowest, 1);
      const std::vector<bf16> b = small_values(N * K, std::max(lowest, -66), 2);
      std::vector<uint32_t> expected;
      int64_t zeros = 0;
      for (int64_t i = 0; i < M; ++i)
        for (int64_t j = 0; j < N; ++j) {
          const float sum = pair_product(&a[static_cast<size_t>(i * K)],
                                         &b[static_cast<size_t>(j * K)], K, M < 9);
          expected.push_back(std::bit_cast<uint32_t>(sum));
          zeros += sum == 0.0f;
        }
      for (const Device& device : portable_devices()) {
        const Tensor c = Tensor::zeros({M, N}, DType::f32, device);
        kernels::matmul({.a = Tensor::from(a, {M, K}, device),
                         .b = Tensor::from(b, {N, K}, device),
                         .c = c,
                         .M = M,
                         .N = N,
                         .K = K,
                         .transpose_b = true},
                        device.compute());
        CAPTURE(name_of(device.traits().isa));
        CAPTURE(M);
        CAPTURE(K);
        CAPTURE(lowest);
        CAPTURE(zeros);
        CHECK(bits_of(c) == expected);
      }
    }
}

TEST_CASE(
    "products of bf16 with infinities, NaN and subnormals have the bits of pairs in any shape") {
  for (uint32_t round = 0; round < 24; ++round) {
    const Philox::Block draw = Philox::block({round, 1, 0, 0}, 7);
    const bool few = round % 2;  // rows of a
    const int64_t M = few ? 1 + draw[0] % 8 : 9 + draw[0] % 60;
    const int64_t N = 1 + draw[1] % 90, K = 1 + draw[2] % 512;
    const bool transpose_a = !few && draw[3] & 1, transpose_b = few || draw[3] & 2;
    const int exponents[] = {-66, -130, -4, 60};
    std::vector<bf16> a = small_values(M * K, exponents[draw[3] / 4 % 4], round);
    std::vector<bf16> b = small_values(N * K, exponents[draw[3] / 16 % 4], round + 100);
    const float specials[] = {HUGE_VALF, -HUGE_VALF, std::nanf("")};
    for (uint32_t i = 0; i < 3; ++i) {
      const Philox::Block at = Philox::block({round, 2, i, 0}, 7);
      a[at[0] % a.size()] = bf16(specials[i]);
      b[at[1] % b.size()] = bf16(specials[i]);
    }
    std::vector<bf16> stored_a(a.size()), stored_b(b.size());
    for (int64_t k = 0; k < K; ++k) {
      for (int64_t i = 0; i < M; ++i)
        stored_a[static_cast<size_t>(transpose_a ? k * M + i : i * K + k)] =
            a[static_cast<size_t>(i * K + k)];
      for (int64_t j = 0; j < N; ++j)
        stored_b[static_cast<size_t>(transpose_b ? j * K + k : k * N + j)] =
            b[static_cast<size_t>(j * K + k)];
    }
    std::vector<float> products;
    for (int64_t i = 0; i < M; ++i)
      for (int64_t j = 0; j < N; ++j)
        products.push_back(
            pair_product(&a[static_cast<size_t>(i * K)], &b[static_cast<size_t>(j * K)], K, few));
    for (const Device& device : portable_devices()) {
      const Tensor c = Tensor::zeros({M, N}, DType::f32, device);
      kernels::matmul({.a = Tensor::from(stored_a, {M * K}, device),
                       .b = Tensor::from(stored_b, {N * K}, device),
                       .c = c,
                       .M = M,
                       .N = N,
                       .K = K,
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b},
                      device.compute());
      INFO(name_of(device.traits().isa), ", ", M, " x ", N, " x ", K, ", transposed: ", transpose_a,
           ", ", transpose_b);
      CHECK(bits_of(c) == bits_of(Tensor::from(products, {M, N}, device)));
    }
  }
}

TEST_CASE("products have the same bits at every level, of few rows, in blocks and with edges") {
  const int64_t sizes[][3] = {{1, 50, 600}, {3, 33, 100},   {8, 17, 31},    {9, 16, 257},
                              {64, 48, 48}, {130, 70, 515}, {30, 300, 1030}};
  for (const auto& [M, N, K] : sizes)
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const bool transpose_a : {false, true})
        for (const bool transpose_b : {false, true}) {
          std::vector<uint32_t> expected;
          for (const Device& device : portable_devices()) {
            const Tensor c = random_tensor({M, N}, DType::f32, device, 3);
            kernels::matmul({.a = random_tensor({M, K}, dtype, device, 1),
                             .b = random_tensor({K, N}, dtype, device, 2),
                             .c = c,
                             .M = M,
                             .N = N,
                             .K = K,
                             .transpose_a = transpose_a,
                             .transpose_b = transpose_b,
                             .accumulate = true},
                            device.compute());
            CAPTURE(name_of(device.traits().isa));
            CAPTURE(M);
            CAPTURE(name_of(dtype));
            if (expected.empty()) expected = bits_of(c);
            CHECK(bits_of(c) == expected);
          }
        }
}
