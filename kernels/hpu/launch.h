#pragma once

#include <array>
#include <cstddef>
#include <type_traits>

#include "zerograd/kernels/kernel.h"
#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {

/// The argument for a __local pointer: the bytes of local memory of a work-group.
struct LocalBytes {
  size_t bytes;
};

/// The argument for a long8: eight numbers.
struct alignas(64) Long8 {
  int64_t v[8] = {};
};

/// The argument for a long16: one number for each of up to 16 tensors of a launch.
struct alignas(128) Long16 {
  static constexpr size_t size = 16;
  int64_t v[size] = {};
};

/// The size and address of an argument, which must exist until enqueue() has read it. Arguments are
/// pointers, numbers of types that OpenCL C has, Long8, Long16 and LocalBytes.
template <class T>
Argument argument(const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);
  if constexpr (std::is_same_v<T, LocalBytes>)
    return {value.bytes, nullptr};
  else if constexpr (std::is_pointer_v<T>)  // null has no value: some drivers look it up
    return {sizeof(T), value ? &value : nullptr};
  else
    return {sizeof(T), &value};
}

/// Queues the kernel, or in a plan only counts it. The arguments must have the order and the sizes
/// of the parameters in the .cl source.
template <class... Args>
void launch(Stream& stream, const Code& code, const char* kernel, const Groups& groups,
            const Args&... args) {
  count_launch(stream, kernel, groups.x * groups.y * groups.z);
  if (stream.type() == Device::Type::meta) return;
  enqueue(stream, code, kernel, groups, std::array{argument(args)...});
}

/// The number of work-groups of `size` work-items for n work-items.
inline int64_t groups_for(int64_t n, int64_t size = 256) { return (n + size - 1) / size; }

/// The number of work-groups for n elements where a work-item has a span of them (tile.clh).
inline int64_t span_groups(int64_t n) { return groups_for(n, 256 * 8); }

/// The address of a string literal as a number, which a kernel copies into a fault record.
inline int64_t literal(const char* text) { return reinterpret_cast<int64_t>(text); }

}  // namespace zg::hpu
