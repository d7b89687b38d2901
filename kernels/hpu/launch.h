#pragma once

#include <array>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {

/// Memory of a work-group that a kernel takes as a __local pointer.
struct LocalBytes {
  size_t bytes;
};

/// Eight numbers as one argument: a kernel's long8.
struct alignas(64) Long8 {
  int64_t v[8] = {};
};

/// The module of a .cl file that is compiled once, or once for each dtype of its elements. Throws
/// Unsupported for a dtype without one ("gelu: no hpu kernel for f16").
Code module(const char* file);
Code module(const char* file, DType dtype, const char* variant = "");

/// The dtype as a part of a kernel's name. Throws Unsupported as module() does unless the op knows
/// it.
const char* word(const char* op, DType dtype, std::initializer_list<DType> known);

/// Where an argument lies until enqueue() has read it. Pointers, numbers that OpenCL C has, Long8
/// and LocalBytes.
template <class T>
Argument argument(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);
  if constexpr (std::is_same_v<T, LocalBytes>)
    return {value.bytes, nullptr};
  else
    return {sizeof(T), &value};
}

/// Queues the kernel; arguments are those of its source, in order and of the very sizes.
template <class... Args>
void launch(Stream& stream, const Code& code, const char* kernel, const Groups& groups,
            const Args&... args) {
  enqueue(stream, code, kernel, groups, std::array{argument(args)...});
}

/// Work-groups of `size` work-items for n of them.
inline int64_t groups_for(int64_t n, int64_t size = 256) { return (n + size - 1) / size; }

/// A literal as a number that a kernel passes on to where it tells a fault.
inline int64_t literal(const char* text) { return reinterpret_cast<int64_t>(text); }

}  // namespace zg::hpu
