#include "zerograd/kernels/hpu/dpas.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "zerograd/kernels/matmul/matmul_hpu.h"
#include "zerograd/runtime/error.h"

namespace zg::hpu {
namespace {

/// Whether DPAS works on the device. It multiplies small integers, whose product is exact. No
/// extent is a multiple of a tile.
bool multiplies(int index, int lanes) try {
  constexpr int64_t M = 21, N = 37, K = 45;
  const Device device = Device::hpu(index);
  std::vector<bf16> a, b;
  for (int64_t i = 0; i < M * K; ++i) a.emplace_back(static_cast<float>(i * 7 % 17 - 8));
  for (int64_t i = 0; i < K * N; ++i) b.emplace_back(static_cast<float>(i * 5 % 13 - 6));
  const Matmul product{.a = Tensor::from(a, {M, K}, device),
                       .b = Tensor::from(b, {K, N}, device),
                       .c = Tensor::zeros({M, N}, DType::f32, device),
                       .M = M,
                       .N = N,
                       .K = K};
  multiply(product, module("matmul_tiles", DType::bf16, lanes == 8 ? "dpas8" : "dpas16"),
           device.compute());
  const std::vector<float> c = product.c.to_host<float>();
  for (int64_t m = 0; m < M; ++m)
    for (int64_t n = 0; n < N; ++n) {
      float sum = 0.0f;
      for (int64_t k = 0; k < K; ++k)
        sum += static_cast<float>(a[static_cast<size_t>(m * K + k)]) *
               static_cast<float>(b[static_cast<size_t>(k * N + n)]);
      if (c[static_cast<size_t>(m * N + n)] != sum) return false;
    }
  return true;
} catch (const DeviceError&) {  // it does not build, or does not run
  return false;
}

}  // namespace

int dpas_lanes(int index) {
  static std::mutex mutex;
  static std::map<int, int>& known = *new std::map<int, int>;
  std::lock_guard lock(mutex);
  const auto found = known.find(index);
  if (found != known.end()) return found->second;
  // Devices with sub-groups of 8 multiply by those alone.
  const std::vector<int>& sizes = features_of(index).sub_groups;
  const bool has8 = std::find(sizes.begin(), sizes.end(), 8) != sizes.end();
  const bool has16 = std::find(sizes.begin(), sizes.end(), 16) != sizes.end();
  const int lanes = !has16 ? 0 : has8 ? 8 : 16;
  return known[index] = lanes > 0 && multiplies(index, lanes) ? lanes : 0;
}

}  // namespace zg::hpu
