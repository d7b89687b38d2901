#include "tools/speed.h"

namespace zg::tools {

double matmul_flops_per_token(const models::GPTConfig& model) {
  const double C = static_cast<double>(model.width), T = static_cast<double>(model.block_size);
  const double per_layer = 12.0 * C * C + T * C;
  return 6.0 * (static_cast<double>(model.layers) * per_layer +
                static_cast<double>(model.vocabulary) * C);
}

}  // namespace zg::tools
