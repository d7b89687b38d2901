#include "tools/speed.h"

#include <algorithm>
#include <chrono>

#include "kernels/peak.h"
#include "runtime/cpu/team.h"
#include "runtime/error.h"
#include "runtime/tensor.h"

namespace zg::tools {

double matmul_peak(const Device& device, DType dtype) {
  try {
    return measure_matmul_peak(device, dtype);
  } catch (const Unsupported&) {
    return 0.0;
  }
}

double memory_bandwidth(const Device& device) {
  constexpr int64_t numel = int64_t{32} << 20, grain = int64_t{1} << 16;
  constexpr int passes = 6;
  const Tensor x = Tensor::full({numel}, 1.0, DType::f32, device);
  const Tensor y = Tensor::full({numel}, 2.0, DType::f32, device);
  const float* from = x.data<float>();
  float* to = y.data<float>();
  double best = 0.0;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    cpu::parallel_for(device.traits().threads, numel, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] += from[i];
    });
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, 3.0 * numel * sizeof(float) / seconds);
  }
  return best;
}

double matmul_flops_per_token(const models::GPTConfig& model) {
  const double C = static_cast<double>(model.width), T = static_cast<double>(model.block_size);
  const double per_layer = 12.0 * C * C + T * C;
  return 6.0 * (static_cast<double>(model.layers) * per_layer +
                static_cast<double>(model.vocabulary) * C);
}

}  // namespace zg::tools
