#include "zerograd/runtime/cuda/library.h"

#include <cstdlib>
#include <map>
#include <string_view>

#include "cublasLt.h"
#include "tests/fakes/nccl/nccl.h"

// Replaces runtime/cuda/library.cpp: instead of opening a shared library it returns the functions
// of the test doubles in this folder and in tests/fakes/nccl.
namespace zg::cuda {
namespace {

using Symbols = std::map<std::string, void*>;

const Symbols& cublaslt_symbols() {
  const auto symbol = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const Symbols symbols = {
      {"cublasLtCreate", symbol(cublasLtCreate)},
      {"cublasLtGetVersion", symbol(cublasLtGetVersion)},
      {"cublasLtMatmul", symbol(cublasLtMatmul)},
      {"cublasLtMatmulAlgoCheck", symbol(cublasLtMatmulAlgoCheck)},
      {"cublasLtMatmulAlgoGetHeuristic", symbol(cublasLtMatmulAlgoGetHeuristic)},
      {"cublasLtMatmulDescCreate", symbol(cublasLtMatmulDescCreate)},
      {"cublasLtMatmulDescDestroy", symbol(cublasLtMatmulDescDestroy)},
      {"cublasLtMatmulDescSetAttribute", symbol(cublasLtMatmulDescSetAttribute)},
      {"cublasLtMatrixLayoutCreate", symbol(cublasLtMatrixLayoutCreate)},
      {"cublasLtMatrixLayoutDestroy", symbol(cublasLtMatrixLayoutDestroy)},
      {"cublasLtMatrixLayoutSetAttribute", symbol(cublasLtMatrixLayoutSetAttribute)},
      {"cublasLtMatmulPreferenceCreate", symbol(cublasLtMatmulPreferenceCreate)},
      {"cublasLtMatmulPreferenceDestroy", symbol(cublasLtMatmulPreferenceDestroy)},
      {"cublasLtMatmulPreferenceSetAttribute", symbol(cublasLtMatmulPreferenceSetAttribute)}};
  return symbols;
}

}  // namespace

Library::Library(const std::vector<std::string>& names) {
  const char* nccl = std::getenv("ZG_EMULATOR_NCCL");
  const bool has_nccl = !nccl || std::string_view(nccl) != "absent";
  for (const std::string& name : names) {
    if (name.starts_with("libcublasLt.so.")) handle_ = const_cast<Symbols*>(&cublaslt_symbols());
    if (name == "libnccl.so.2" && has_nccl)
      handle_ = const_cast<Symbols*>(&emulator::nccl_symbols());
  }
  if (!handle_) absence_ = names.front() + " has no double";
}

void* Library::symbol(const char* name) const {
  const auto* symbols = static_cast<const Symbols*>(handle_);
  if (!symbols) return nullptr;
  const auto found = symbols->find(name);
  return found == symbols->end() ? nullptr : found->second;
}

}  // namespace zg::cuda
