#include "zerograd/runtime/cuda/cublaslt.h"

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string_view>

#include "zerograd/runtime/cuda/library.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cuda {
namespace {

struct Opened {
  CublasLt functions = {};
  std::string absence;
};

Opened open() {
  // First the version whose header this file was compiled with, then 13 and 12, whose functions
  // have the same parameters.
  static const Library library({fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000),
                                "libcublasLt.so.13", "libcublasLt.so.12"});
  Opened opened{.absence = library.absence()};
  if (!library.present()) return opened;
  opened.absence.clear();
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(library.symbol(name));
    if (!function && opened.absence.empty()) opened.absence = std::string("it lacks ") + name;
  };
  CublasLt& f = opened.functions;
  find(f.create, "cublasLtCreate");
  find(f.version, "cublasLtGetVersion");
  find(f.matmul, "cublasLtMatmul");
  find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f.algo_check, "cublasLtMatmulAlgoCheck");
  find(f.desc_create, "cublasLtMatmulDescCreate");
  find(f.desc_destroy, "cublasLtMatmulDescDestroy");
  find(f.desc_set, "cublasLtMatmulDescSetAttribute");
  find(f.layout_create, "cublasLtMatrixLayoutCreate");
  find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(f.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  return opened;
}

const Opened& opened() {
  static const Opened found = open();
  return found;
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
  if (opened().absence.empty()) return &opened().functions;
  if (wished == Wish::any) return nullptr;
  raise<ConfigError>(
      "ZG_CUDA_MATMUL=cublaslt, but cuBLASLt is absent: {}; install it, set LD_LIBRARY_PATH, or "
      "use ZG_CUDA_MATMUL=own",
      opened().absence);
}

bool plans_cublaslt() { return wish() != Wish::own; }

std::string describe_matmul() {
  if (const CublasLt* library = cublaslt()) {
    const size_t version = library->version();
    return fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  return fmt::format("own matmul ({})",
                     wish() == Wish::own ? std::string("ZG_CUDA_MATMUL=own") : opened().absence);
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    raise<CublasLtError>("cuda: {}: cuBLASLt's status {}", what, static_cast<int>(status));
}

}  // namespace zg::cuda
