#pragma once

#include <array>
#include <type_traits>

#include "zerograd/kernels/kernel.h"
#include "zerograd/kernels/staged_operands.h"

// ZG_KERNEL(GeluForward, gelu_forward), at the end of an op's source, declares
// zg::cpu::gelu_forward, zg::cuda::gelu_forward and zg::hpu::gelu_forward, which the backends
// define, and defines zg::kernels::gelu_forward with them in its slots. If a backend does not
// define the function, linking fails. Further arguments are the functions that return the bytes of
// scratch, in the order of the backends; nullptr, or no argument, means no scratch. They are
// compiled in every build, because a plan may be for another machine, and use only shapes and
// traits.
//
// A new backend needs a column here, a Device::Type and its sources. No op changes.
#define ZG_FOR_EACH_BACKEND(DO, Args, name) \
  DO(cpu, Args, name) DO(cuda, Args, name) DO(hpu, Args, name)

// The function of a backend; nullptr if this build does not have the backend.
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

#define ZG_SLOT(backend, Args, name) {ZG_FUNCTION_##backend(name)},

#define ZG_KERNEL(Args, name, ...)                                                     \
  ZG_FOR_EACH_BACKEND(ZG_DECLARE_FUNCTION, Args, name)                                 \
  constexpr auto name##_slots =                                                        \
      with_scratch<Args>({{ZG_FOR_EACH_BACKEND(ZG_SLOT, Args, name)}}, {__VA_ARGS__}); \
  namespace kernels {                                                                  \
  constinit Kernel<Args> name{#name, on_device_memory<Args, name##_slots>()};          \
  }

namespace zg {

template <class Args, class Slots = decltype(Kernel<Args>::slots)>
constexpr Slots with_scratch(
    Slots slots,
    std::array<typename Kernel<Args>::WorkspaceBytes, std::tuple_size_v<Slots>> bytes) {
  for (size_t i = 0; i < slots.size(); ++i) slots[i].workspace_bytes = bytes[i];
  return slots;
}

// By type: under -fsanitize=undefined "function != nullptr" is not a constant for GCC 12.
template <auto pointer>
constexpr bool is_set = !std::is_same_v<std::integral_constant<decltype(pointer), pointer>,
                                        std::integral_constant<decltype(pointer), nullptr>>;

template <class Args, const auto& plain>
constexpr auto on_device_memory() {
  constexpr auto hpu = static_cast<size_t>(Device::Type::hpu);
  auto slots = plain;
  if constexpr (requires(const Args& args) { operands(args); }) {
    slots[hpu].workspace_bytes = [](const Args& args, const Device::Traits& traits) {
      const int64_t staged = StagedOperands::bytes_for(operands(args));
      int64_t own = 0;
      if constexpr (is_set<plain[hpu].workspace_bytes>)
        own = plain[hpu].workspace_bytes(args, traits);
      return staged ? arena_bytes(own) + staged : own;
    };
    if constexpr (is_set<plain[hpu].function>)
      slots[hpu].function = [](const Args& args, Workspace scratch, Stream& stream) {
        if (!StagedOperands::bytes_for(operands(args)))
          return plain[hpu].function(args, scratch, stream);
        Args near = args;
        const StagedOperands staged(operands(near), scratch, stream);
        plain[hpu].function(near, scratch, stream);
        staged.store();
      };
  }
  return slots;
}

// Shared by validate() of several ops.
inline constexpr auto floating = {DType::f64, DType::f32, DType::bf16, DType::f16};

inline void check_like(const char* op, const char* name, const Tensor& tensor,
                       const Tensor& model) {
  check_shape(op, name, tensor, model.shape());
  check_dtype(op, name, tensor, model.dtype());
}

}  // namespace zg
