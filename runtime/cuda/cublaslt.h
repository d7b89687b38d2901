#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "zerograd/runtime/cuda/library.h"

namespace zg::cuda {

/// The functions of cuBLASLt that are used, named without the prefix cublasLt.
struct CublasLt {
  // First the version whose header this file was compiled with, then 13 and 12, whose functions
  // have the same parameters.
  Library library{{"libcublasLt.so." + std::to_string(CUDART_VERSION / 1000), "libcublasLt.so.13",
                   "libcublasLt.so.12"}};

  decltype(&cublasLtCreate) create = library.find("cublasLtCreate");
  decltype(&cublasLtGetVersion) version = library.find("cublasLtGetVersion");
  decltype(&cublasLtMatmul) matmul = library.find("cublasLtMatmul");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic =
      library.find("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmulAlgoCheck) algo_check = library.find("cublasLtMatmulAlgoCheck");
  decltype(&cublasLtMatmulDescCreate) desc_create = library.find("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = library.find("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) desc_set =
      library.find("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) layout_create = library.find("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy =
      library.find("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set =
      library.find("cublasLtMatrixLayoutSetAttribute");
  decltype(&cublasLtMatmulPreferenceCreate) preference_create =
      library.find("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy =
      library.find("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set =
      library.find("cublasLtMatmulPreferenceSetAttribute");
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
