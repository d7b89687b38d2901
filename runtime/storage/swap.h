#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "zerograd/runtime/tensor.h"

namespace zg {

/// A transfer between memory and Space::file that has been asked for.
using SwapTicket = int64_t;

/// Starts to copy a tensor of Space::file to memory, or memory to Space::file: equal numel and
/// dtype, on one device. Transfers are done in the order of the calls, on a worker of the device;
/// memory must be left alone until wait_for_swap(). A meta device counts the bytes and moves none.
/// The name is joined from its parts, for traces; without one it is what allocations are for
/// (NameScope).
ZG_API SwapTicket start_swap(const Tensor& from, const Tensor& to,
                             std::initializer_list<std::string_view> name = {});
/// Returns when this transfer and all before it are done. FileError: a disk failed, or returned
/// other bytes than were written.
ZG_API void wait_for_swap(const Device& device, SwapTicket ticket);
/// A read by a second thread. The thread that uses the device calls count_read(), so that
/// accounting does not depend on timing. The second thread calls read_counted(), which returns when
/// the read is done. Throws FileError. Traces do not record it.
ZG_API void count_read(const Tensor& file);
ZG_API void read_counted(const Tensor& file, const Tensor& memory);

/// Bytes of Space::file that were asked for so far, in whole blocks of 4096.
struct SwapCount {
  int64_t read = 0, written = 0;
  bool operator==(const SwapCount&) const = default;
};
ZG_API SwapCount swapped(const Device& device);

/// How Space::file is read, "io_uring past the page cache"; empty: nothing is in it.
ZG_API std::string swap_description(const Device& device);
/// The requests under way at once, "8 requests of 1048576 bytes"; empty: nothing is in Space::file.
ZG_API std::string swap_requests(const Device& device);

/// Why io_uring does not read disks here; empty: it does.
ZG_API std::string io_uring_absence();

}  // namespace zg
