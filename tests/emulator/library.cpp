#include "runtime/cuda/library.h"

#include <map>

#include "cublasLt.h"

// Libraries that runtime/cuda opens at run time, here their doubles.
namespace zg::cuda {
namespace {

using Symbols = std::map<std::string, void*>;

const Symbols& cublaslt_symbols() {
  const auto symbol = [](auto* function) { return reinterpret_cast<void*>(function); };
  static const Symbols symbols = {
      {"cublasLtCreate", symbol(cublasLtCreate)},
      {"cublasLtGetVersion", symbol(cublasLtGetVersion)},
      {"cublasLtMatmul", symbol(cublasLtMatmul)},
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
  for (const std::string& name : names)
    if (name.starts_with("libcublasLt.so.")) handle_ = const_cast<Symbols*>(&cublaslt_symbols());
  if (!handle_) absence_ = names.front() + " has no double";
}

void* Library::symbol(const char* name) const {
  const auto* symbols = static_cast<const Symbols*>(handle_);
  const auto found = symbols->find(name);
  return found == symbols->end() ? nullptr : found->second;
}

}  // namespace zg::cuda
