#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "zerograd/runtime/tensor.h"

namespace zg {

/// A transfer between memory and Space::file that has been asked for.
using SwapTicket = int64_t;

/// Starts to bring a tensor of Space::file to memory, or memory to it: equal numel and dtype, of
/// one device. Transfers are done in the order of the calls, on a worker of the device; memory must
/// be left alone until wait_for_swap(). A meta device counts the bytes and moves none. The name is
/// joined from its parts, for traces; without one it is what allocations are for (NameScope).
ZG_API SwapTicket start_swap(const Tensor& from, const Tensor& to,
                             std::initializer_list<std::string_view> name = {});
/// Returns when this transfer and all before it are done. FileError: a drive failed, or gave back
/// something else than was written.
ZG_API void wait_for_swap(const Device& device, SwapTicket ticket);
/// A read for a thread beside the one that drives the device: the driving thread counts its bytes,
/// so that books do not depend on timing; the other one reads, and returns when it is done.
/// FileError. It is in no trace.
ZG_API void count_read(const Tensor& file);
ZG_API void read_counted(const Tensor& file, const Tensor& memory);

/// Bytes of Space::file that were asked for so far, in whole blocks of 4096.
struct SwapCount {
  int64_t read = 0, written = 0;
  bool operator==(const SwapCount&) const = default;
};
ZG_API SwapCount swapped(const Device& device);

/// How the device's drive is read, "io_uring past the page cache"; empty: nothing is on one.
ZG_API std::string swap_description(const Device& device);
/// The requests under way at once, "8 requests of 1048576 bytes"; empty: nothing is on one.
ZG_API std::string swap_requests(const Device& device);

/// Why drives are not read by io_uring here; empty: they are.
ZG_API std::string io_uring_absence();

}  // namespace zg
