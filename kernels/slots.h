#pragma once

#include <type_traits>

#include "zerograd/kernels/cpu/workspace.h"
#include "zerograd/kernels/cuda/workspace.h"
#include "zerograd/kernels/hpu/workspace.h"
#include "zerograd/kernels/kernel.h"

// ZG_KERNEL(GeluForward, gelu_forward), at the end of an op's source, declares
// zg::cpu::gelu_forward, zg::cuda::gelu_forward and zg::hpu::gelu_forward, which the backends
// define, and defines zg::kernels::gelu_forward with them in its slots. If a backend does not
// define the function, linking fails. The size of the scratch is a backend's workspace_bytes(const
// GeluForward&, traits); without such a function there is no scratch.
//
// A new backend is a column here, a Device::Type and its sources. No op changes.
#define ZG_FOR_EACH_BACKEND(DO, Args, name) \
  DO(cpu, Args, name) DO(cuda, Args, name) DO(hpu, Args, name)

// Whether this build has the backend.
#define ZG_FUNCTION_cpu(name) ::zg::cpu::name
#ifdef ZG_CUDA
#define ZG_FUNCTION_cuda(name) ::zg::cuda::name
#else
#define ZG_FUNCTION_cuda(name) nullptr
#endif
#ifdef ZG_HPU
#define ZG_FUNCTION_hpu(name) ::zg::hpu::name
#else
#define ZG_FUNCTION_hpu(name) nullptr
#endif

#define ZG_DECLARE_FUNCTION(backend, Args, name) \
  namespace backend {                            \
  void name(const Args&, Workspace, Stream&);    \
  }

// The scratch size is known also in builds without the backend: a plan may be for another machine.
#define ZG_WORKSPACE_BYTES(backend, Args)                                    \
  []<class A>(std::type_identity<A>) -> typename Kernel<A>::WorkspaceBytes { \
    if constexpr (requires(const A& args, const Device::Traits& traits) {    \
                    ::zg::backend::workspace_bytes(args, traits);            \
                  })                                                         \
      return ::zg::backend::workspace_bytes;                                 \
    else                                                                     \
      return nullptr;                                                        \
  }(std::type_identity<Args>{})

#define ZG_SLOT(backend, Args, name) \
  {ZG_FUNCTION_##backend(name), ZG_WORKSPACE_BYTES(backend, Args)},

#define ZG_KERNEL(Args, name)                                                       \
  ZG_FOR_EACH_BACKEND(ZG_DECLARE_FUNCTION, Args, name)                              \
  namespace kernels {                                                               \
  constinit Kernel<Args> name{#name, {{ZG_FOR_EACH_BACKEND(ZG_SLOT, Args, name)}}}; \
  }

namespace zg {

// Shared by validate() of several ops.
inline constexpr auto floating = {DType::f64, DType::f32, DType::bf16, DType::f16};

inline void check_like(const char* op, const char* name, const Tensor& tensor,
                       const Tensor& model) {
  check_shape(op, name, tensor, model.shape());
  check_dtype(op, name, tensor, model.dtype());
}

}  // namespace zg
