#include "zerograd/kernels/cuda/mma.cuh"

#include <doctest/doctest.h>

#include "tests/support/op_case.h"

// Each emulated instruction against its definition, in double and in plain C++.
using namespace zg;
using namespace zg::testing;

namespace {

constexpr int warp = 32;

/// Loads the fragments element by element, as the tables of the PTX ISA define them.
template <class T>
void multiply_by_warp(const T* a, const T* b, float* c) {  // [16, 16], [16, 8], [16, 8]
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4 * 2;
  const auto two = [](const T* low, const T* high) {
    return uint32_t{low->bits} | uint32_t{high->bits} << 16;
  };
  uint32_t of_a[4], of_b[2];
  for (int i = 0; i < 4; ++i) {
    const T* const from = a + (g + i % 2 * 8) * 16 + t + i / 2 * 8;
    of_a[i] = two(from, from + 1);
  }
  for (int i = 0; i < 2; ++i) of_b[i] = two(b + (t + 8 * i) * 8 + g, b + (t + 1 + 8 * i) * 8 + g);
  float d[4];
  for (int e = 0; e < 4; ++e) d[e] = c[(g + e / 2 * 8) * 8 + t + e % 2];
  cuda::multiply_fragments<T>(d, of_a, of_b[0], of_b[1]);
  for (int e = 0; e < 4; ++e) c[(g + e / 2 * 8) * 8 + t + e % 2] = d[e];
}

template <class T>
void check_warp_product() {
  const Device device = Device::cuda();
  const Tensor a = random_tensor({16, 16}, dtype_of<T>, device, 1);
  const Tensor b = random_tensor({16, 8}, dtype_of<T>, device, 2);
  const Tensor c = random_tensor({16, 8}, DType::f32, device, 3);
  const std::vector<double> left = a.to_doubles(), right = b.to_doubles();
  std::vector<double> expected = c.to_doubles();
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 8; ++j)
      for (size_t k = 0; k < 16; ++k) expected[i * 8 + j] += left[i * 16 + k] * right[k * 8 + j];
  cuda::launch("multiply", multiply_by_warp<T>, {dim3(1), dim3(warp)}, device.compute(),
               static_cast<const T*>(a.data<T>()), static_cast<const T*>(b.data<T>()),
               c.data<float>());
  CHECK(excess(c, expected, 17 * 16 * 0x1p-24) < 1.0);  // 17 terms, partial sums below 17
}

/// Copies four 8 x 8 matrices to shared memory, loads them and writes each lane's registers.
template <bool transposed>
void load(const bf16* from, int32_t* to) {
  const auto lane = static_cast<int>(threadIdx.x);
  const cuda::SharedAddress mine = cuda::dynamic_address() + 16 * lane;
  cuda::copy_async(mine, from + lane * 8, 16);
  cuda::commit_copies();
  cuda::wait_for_copies<0>();
  __syncthreads();
  uint32_t got[4];
  cuda::load_matrices<transposed>(got, mine);
  for (int i = 0; i < 4; ++i) to[lane * 4 + i] = static_cast<int32_t>(got[i]);
}

template <bool transposed>
void check_load() {
  const Device device = Device::cuda();
  const Tensor from = random_tensor({4, 8, 8}, DType::bf16, device, 4);
  const Tensor to = Tensor::empty({warp, 4}, DType::i32, device);
  cuda::launch("load", load<transposed>, {dim3(1), dim3(warp), 4 * 64 * sizeof(bf16)},
               device.compute(), static_cast<const bf16*>(from.data<bf16>()), to.data<int32_t>());
  const std::vector<bf16> matrices = from.to_host<bf16>();
  const std::vector<int32_t> got = to.to_host<int32_t>();
  for (size_t lane = 0; lane < warp; ++lane)
    for (size_t matrix = 0; matrix < 4; ++matrix)
      for (size_t half = 0; half < 2; ++half) {
        size_t row = lane / 4, column = lane % 4 * 2 + half;
        if (transposed) std::swap(row, column);
        const auto bits = static_cast<uint32_t>(got[lane * 4 + matrix]) >> (16 * half) & 0xffffu;
        CHECK(bits == matrices[matrix * 64 + row * 8 + column].bits);
      }
}

/// Four groups of one copy each, the third of 8 bytes; after each wait, what has arrived.
void copy_in_groups(const float* from, float* arrived) {
  auto* const shared = cuda::dynamic_shared<float>();
  for (int group = 0; group < 4; ++group) {
    cuda::copy_async(cuda::dynamic_address() + 16 * group, from + 4 * group, group == 2 ? 8 : 16);
    cuda::commit_copies();
  }
  const auto look = [&](int row) {
    for (int i = 0; i < 16; ++i) arrived[row * 16 + i] = shared[i];
  };
  look(0);
  cuda::wait_for_copies<3>();
  look(1);
  cuda::wait_for_copies<1>();
  look(2);
  cuda::wait_for_copies<0>();
  look(3);
}

}  // namespace

TEST_SUITE_BEGIN("every device");

TEST_CASE("the emulated mma.sync equals the definition of a product of fragments") {
  check_warp_product<bf16>();
  check_warp_product<f16>();
}

TEST_CASE("the emulated ldmatrix gives each lane its elements, transposed or not") {
  check_load<false>();
  check_load<true>();
}

TEST_CASE("asynchronous copies arrive when their group is waited for, and not before") {
  const Device device = Device::cuda();
  const Tensor from = Tensor::full({16}, 5.0, DType::f32, device);
  const Tensor arrived = Tensor::empty({4, 16}, DType::f32, device);
  cuda::launch("copy", copy_in_groups, {dim3(1), dim3(1), 16 * sizeof(float)}, device.compute(),
               static_cast<const float*>(from.data<float>()), arrived.data<float>());
  const std::vector<double> values = arrived.to_doubles();
  const size_t there[4] = {0, 1, 3, 4};  // groups, after each look
  for (size_t row = 0; row < 4; ++row)
    for (size_t i = 0; i < 16; ++i) {
      const double value = values[row * 16 + i], wanted = i == 10 || i == 11 ? 0.0 : 5.0;
      if (i / 4 < there[row])
        CHECK(value == wanted);
      else
        CHECK(std::isnan(value));
    }
}

TEST_SUITE_END();
