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

#define ZG_LT(function, name) \
  decltype(&cublasLt##function) name = library.find("cublasLt" #function)
  ZG_LT(Create, create);
  ZG_LT(GetVersion, version);
  ZG_LT(Matmul, matmul);
  ZG_LT(MatmulAlgoGetHeuristic, heuristic);
  ZG_LT(MatmulAlgoCheck, algo_check);
  ZG_LT(MatmulDescCreate, desc_create);
  ZG_LT(MatmulDescDestroy, desc_destroy);
  ZG_LT(MatmulDescSetAttribute, desc_set);
  ZG_LT(MatrixLayoutCreate, layout_create);
  ZG_LT(MatrixLayoutDestroy, layout_destroy);
  ZG_LT(MatrixLayoutSetAttribute, layout_set);
  ZG_LT(MatmulPreferenceCreate, preference_create);
  ZG_LT(MatmulPreferenceDestroy, preference_destroy);
  ZG_LT(MatmulPreferenceSetAttribute, preference_set);
#undef ZG_LT
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
