#include "zerograd/kernels/cuda/hopper.cuh"

#include <doctest/doctest.h>

#include "tests/support/op_case.h"

// The emulated sm_90a instructions against their definition, in double and in plain C++.
using namespace zg;
using namespace zg::testing;

namespace {

constexpr int group = cuda::warpgroup_threads, row_bytes = cuda::panel_row_bytes;

/// Tensor map of [w, z, y, x] with boxes of [1, 1, rows, 64]. With `z_in_y`, as heads are in
/// tokens, the elements are in the order [w, y, z, x].
CUtensorMap map_of(const Tensor& x, int rows, bool z_in_y = false) {
  const Shape& shape = x.shape();
  const auto extent = [&](int axis) { return static_cast<cuuint64_t>(shape[axis]); };
  const cuuint64_t extents[4] = {extent(3), extent(2), extent(1), extent(0)};
  const cuuint64_t strides[3] = {extent(3) * (z_in_y ? extent(1) : 1) * 2,
                                 extent(3) * (z_in_y ? 1 : extent(2)) * 2,
                                 extent(3) * extent(2) * extent(1) * 2};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(rows), 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  cuda::check(cuda::encode_tensor_map()(
                  &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, x.raw(), extents, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "test");
  return map;
}

/// Copies a box of 16 rows at (x 64, y 3, z 1, w 1). Returns shared memory before and after the
/// wait.
void copy_box(CUtensorMap map, bf16* before, bf16* after) {
  const cuda::SharedAddress place = cuda::dynamic_address(), barrier = place + 16 * row_bytes;
  const auto* const shared = cuda::dynamic_shared<bf16>();
  cuda::init_barrier(barrier, 1);
  cuda::fence_barrier_init();
  cuda::arrive_expecting(barrier, 16 * row_bytes);
  cuda::copy_box(place, map, 64, 3, 1, 1, barrier);
  for (int i = 0; i < 16 * 64; ++i) before[i] = shared[i];
  cuda::wait_for_phase(barrier, 0);
  for (int i = 0; i < 16 * 64; ++i) after[i] = shared[i];
}

/// c = a b, with a in registers; or c = a b^T (`rows`). TMA copies the panels.
template <class T, int columns, bool registers, bool rows>
void multiply_by_warpgroup(CUtensorMap a_map, CUtensorMap b_map, const T* a_rows, float* c,
                           float* early) {
  const cuda::SharedAddress a = cuda::dynamic_address(), b = a + 64 * row_bytes;
  constexpr int b_panel = !rows ? 64 * row_bytes : 128 * row_bytes;
  const cuda::SharedAddress barrier = b + 2 * 64 * row_bytes;
  if (threadIdx.x == 0) {
    cuda::init_barrier(barrier, 1);
    cuda::fence_barrier_init();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::arrive_expecting(barrier, (64 + 128) * row_bytes);
    cuda::copy_box(a, a_map, 0, 0, 0, 0, barrier);
    cuda::copy_box(b, b_map, 0, 0, 0, 0, barrier);
    if (!rows) cuda::copy_box(b + b_panel, b_map, 64, 0, 0, 0, barrier);
  }
  cuda::wait_for_phase(barrier, 0);
  const int thread = static_cast<int>(threadIdx.x);
  const int row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4 * 2;
  float d[columns / 8][4];
  for (auto& values : d)
    for (float& value : values) value = rows ? NAN : 0.0f;
  uint32_t own[4][4] = {};
  if constexpr (registers)
    for (int k = 0; k < 4; ++k)
      for (int i = 0; i < 4; ++i) {
        const T* const from = a_rows + (row + i % 2 * 8) * 64 + k * 16 + t + i / 2 * 8;
        own[k][i] = uint32_t{from[0].bits} | uint32_t{from[1].bits} << 16;
      }
  cuda::begin_products(d, own);
  for (int k = 0; k < 4; ++k) {
    if constexpr (!rows)
      cuda::multiply_warpgroup<T>(d, own[k],
                                  cuda::matrix_descriptor(b + k * 16 * row_bytes, b_panel));
    else if constexpr (registers)  // the first replaces d, which is not a number
      cuda::multiply_warpgroup<T>(d, own[k], cuda::matrix_descriptor(b + k * 32), k > 0);
    else
      cuda::multiply_warpgroup<T>(d, cuda::matrix_descriptor(a + k * 32),
                                  cuda::matrix_descriptor(b + k * 32), k > 0);
    cuda::commit_products();
  }
  early[thread] = d[0][0];
  cuda::wait_for_products<0>();
  for (int n = 0; n < columns / 8; ++n)
    for (int e = 0; e < 4; ++e) c[(row + e / 2 * 8) * columns + n * 8 + t + e % 2] = d[n][e];
}

template <class T, int columns, bool registers, bool rows = !registers>
void check_warpgroup_product() {
  const Device device = Device::cuda();
  const Tensor a = random_tensor({1, 1, 64, 64}, dtype_of<T>, device, 1);
  // By rows b has a row for each column of c, else a row for each k.
  const Shape shape = !rows ? Shape{1, 1, 64, 128} : Shape{1, 1, 128, 64};
  const Tensor b = random_tensor(shape, dtype_of<T>, device, 2);
  const Tensor c = Tensor::empty({64, columns}, DType::f32, device);
  const Tensor early = Tensor::empty({group}, DType::f32, device);
  cuda::launch("multiply", multiply_by_warpgroup<T, columns, registers, rows>,
               {dim3(1), dim3(group), 192 * row_bytes + 8}, device.compute(), map_of(a, 64),
               map_of(b, rows ? 128 : 64), static_cast<const T*>(a.data<T>()), c.data<float>(),
               early.data<float>());
  const std::vector<double> left = a.to_doubles(), right = b.to_doubles();
  std::vector<double> expected(64 * columns);
  for (size_t i = 0; i < 64; ++i)
    for (size_t j = 0; j < columns; ++j)
      for (size_t k = 0; k < 64; ++k)
        expected[i * columns + j] +=
            left[i * 64 + k] * (rows ? right[j * 64 + k] : right[k * 128 + j]);
  CHECK(excess(c, expected, 64 * 64 * 0x1p-24) < 1.0);  // 64 terms below 1
  for (double value : early.to_doubles()) CHECK(std::isnan(value));
}

}  // namespace

TEST_CASE("the emulated TMA copy swizzles, fills with zeros, and completes at the wait" *
          doctest::test_suite("every device")) {
  const Device device = Device::cuda();
  const int64_t X = 120, Y = 13;
  const Tensor x = random_tensor({2, 2, Y, X}, DType::bf16, device, 1);
  const Tensor before = Tensor::empty({16, 64}, DType::bf16, device);
  const Tensor after = Tensor::empty({16, 64}, DType::bf16, device);
  for (const bool z_in_y : {false, true}) {
    CAPTURE(z_in_y);
    cuda::launch("copy", copy_box, {dim3(1), dim3(1), 16 * row_bytes + 8}, device.compute(),
                 map_of(x, 16, z_in_y), before.data<bf16>(), after.data<bf16>());
    for (double value : before.to_doubles()) CHECK(std::isnan(value));
    const std::vector<double> all = x.to_doubles(), got = after.to_doubles();
    for (int64_t row = 0; row < 16; ++row)
      for (int64_t column = 0; column < 64; ++column) {
        const int64_t y = 3 + row, at = 64 + column, line = z_in_y ? (Y + y) * 2 + 1 : 3 * Y + y;
        const double wanted = y < Y && at < X ? all[static_cast<size_t>(line * X + at)] : 0.0;
        const int64_t piece = (column / 8) ^ (row % 8);
        CHECK(got[static_cast<size_t>(row * 64 + piece * 8 + column % 8)] == wanted);
      }
  }
}

TEST_CASE("the emulated wgmma equals a matrix product, for both layouts of b, after the wait" *
          doctest::test_suite("every device")) {
  check_warpgroup_product<bf16, 64, false>();
  check_warpgroup_product<f16, 64, false>();
  check_warpgroup_product<bf16, 128, false>();
  check_warpgroup_product<f16, 128, false>();
  check_warpgroup_product<bf16, 64, true, true>();
  check_warpgroup_product<f16, 64, true, true>();
  check_warpgroup_product<bf16, 64, true>();
  check_warpgroup_product<bf16, 128, true>();
  check_warpgroup_product<f16, 128, true>();
}
