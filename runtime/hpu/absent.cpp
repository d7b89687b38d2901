#include "zerograd/runtime/backend.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {

const Backend& backend() {
  static constexpr Backend absent{.absence = [] {
    return std::string(
        "Level Zero is not in this build (ZG_HPU=OFF, or its tools were missing; on Debian: "
        "libze-dev clang-14 llvm-14 llvm-spirv-14 spirv-tools)");
  }};
  return absent;
}

void enqueue(Stream&, const Code&, const char*, const Groups&, std::span<const Argument>) {
  throw Unsupported(backend().absence());
}

void* fault_place(Stream&) { throw Unsupported(backend().absence()); }

}  // namespace zg::hpu
