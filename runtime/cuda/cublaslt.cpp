#include "zerograd/runtime/cuda/cublaslt.h"

#include <cstdlib>
#include <string_view>

#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

const CublasLt& opened() {
  static const CublasLt functions;
  return functions;
}

// Empty: cuBLASLt can be used.
std::string why_unusable() {
  const Library& library = opened().library;
  if (!library.absence().empty() || library.lacking().empty()) return library.absence();
  return "it lacks " + library.lacking();
}

enum class Wish { any, own, cublaslt };

Wish wish() {
  const char* value = std::getenv("ZG_CUDA_MATMUL");
  const std::string_view text = value ? value : "";
  if (text.empty()) return Wish::any;
  if (text == "own") return Wish::own;
  if (text == "cublaslt") return Wish::cublaslt;
  raise<ConfigError>(
      "ZG_CUDA_MATMUL is '{}'; expected own, cublaslt or unset (cublaslt where installed)", text);
}

}  // namespace

const CublasLt* cublaslt() {
  const Wish wished = wish();
  if (wished == Wish::own) return nullptr;
  if (why_unusable().empty()) return &opened();
  if (wished == Wish::any) return nullptr;
  raise<ConfigError>(
      "ZG_CUDA_MATMUL=cublaslt, but cuBLASLt is absent: {}; install it, set LD_LIBRARY_PATH, or "
      "use ZG_CUDA_MATMUL=own",
      why_unusable());
}

bool plans_cublaslt() { return wish() != Wish::own; }

std::string describe_matmul() {
  if (const CublasLt* library = cublaslt()) {
    const size_t version = library->version();
    return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  return fmt::format("own matmul ({})",
                     wish() == Wish::own ? std::string("ZG_CUDA_MATMUL=own") : why_unusable());
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    raise<CublasLtError>("cuda: {}: cuBLASLt's status {}", what, static_cast<int>(status));
}

}  // namespace zg::cuda
