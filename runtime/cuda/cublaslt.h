#pragma once

#include <cublasLt.h>

#include <string>

namespace zg::cuda {

/// The functions of cuBLASLt that are called here, named without the prefix cublasLt.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

/// Opened at the first call; null where the library is not installed or lacks one of them, or where
/// ZG_CUDA_MATMUL=own asks for the project's own product. ZG_CUDA_MATMUL=cublaslt insists: throws
/// ConfigError when it is absent. Any thread may call.
const CublasLt* cublaslt();

/// "cuBLASLt 13.0.2", or "own matmul (why)".
std::string describe_matmul();

/// Throws DeviceError "what: cuBLASLt's status N" unless the status is success.
void check(cublasStatus_t status, const char* what);

}  // namespace zg::cuda
