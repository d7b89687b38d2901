#include "zerograd/runtime/backend.h"

namespace zg::cuda {

const Backend& backend() {
  static constexpr Backend absent{
      .absence = [] { return std::string("CUDA is not in this build (ZG_CUDA=OFF, or no nvcc)"); }};
  return absent;
}

}  // namespace zg::cuda
