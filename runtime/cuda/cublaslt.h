#pragma once

#include <cublasLt.h>

#include <stdexcept>
#include <string>

namespace zg::cuda {

/// The functions of cuBLASLt that are used, named without the prefix cublasLt.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtGetVersion) version;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
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

/// The library, opened at the first call. Null if it is not installed or lacks one of the
/// functions, or if ZG_CUDA_MATMUL=own selects the project's own kernels. With
/// ZG_CUDA_MATMUL=cublaslt it throws ConfigError if the library is absent. Any thread may call.
const CublasLt* cublaslt();

/// Whether a plan counts products of matrices as calls of cuBLASLt, like a run on a machine that
/// has the library. This machine need not have it. False with ZG_CUDA_MATMUL=own.
bool plans_cublaslt();

/// "cuBLASLt 13.0.2", or "own matmul (reason)".
std::string describe_matmul();

/// A status of cuBLASLt that is not a success.
struct CublasLtError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Throws CublasLtError "what: cuBLASLt's status N" unless `status` is success.
void check(cublasStatus_t status, const char* what);

}  // namespace zg::cuda
