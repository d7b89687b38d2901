#include "tools/speed.h"

#include "zerograd/kernels/peak.h"
#include "zerograd/runtime/error.h"

namespace zg::tools {

double matmul_peak(const Device& device, DType dtype) {
  try {
    return measure_matmul_peak(device, dtype);
  } catch (const Unsupported&) {
    return 0.0;
  }
}

double matmul_flops_per_token(const models::GPTConfig& model) {
  const double C = static_cast<double>(model.width), T = static_cast<double>(model.block_size);
  const double per_layer = 12.0 * C * C + T * C;
  return 6.0 * (static_cast<double>(model.layers) * per_layer +
                static_cast<double>(model.vocabulary) * C);
}

}  // namespace zg::tools
