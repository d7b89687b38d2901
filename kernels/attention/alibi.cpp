#include "zerograd/kernels/attention/alibi.h"

#include <bit>
#include <cmath>
#include <string>

#include "zerograd/runtime/error.h"

namespace zg {

std::vector<float> alibi_slopes(int64_t heads) {
  if (heads < 1)
    throw ConfigError("alibi_slopes: heads is " + std::to_string(heads) + "; expected 1 or more");
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const auto power = [](int64_t i, int64_t of_heads) {
    return static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(i) / static_cast<double>(of_heads)));
  };
  std::vector<float> slopes;
  for (int64_t i = 1; i <= whole; ++i) slopes.push_back(power(i, whole));
  for (int64_t i = 1; i <= heads - whole; ++i) slopes.push_back(power(2 * i - 1, 2 * whole));
  return slopes;
}

}  // namespace zg
