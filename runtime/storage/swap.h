#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "zerograd/runtime/tensor.h"

namespace zg {

/// Identifies transfers between memory and Space::file that start_swap() has queued.
struct SwapTicket {
  int64_t ahead = 0, other = 0;  ///< the last one of each queue; 0: none

  /// After this the ticket identifies the transfers of both.
  void add(const SwapTicket& ticket) {
    ahead = std::max(ahead, ticket.ahead);
    other = std::max(other, ticket.other);
  }
};

/// Queues a copy from a tensor in Space::file to one in memory, or from memory to Space::file. Both
/// must have the same numel and dtype and be on one device. Transfers run in the order of the
/// calls, on a worker thread of the device. One with `ahead` overtakes those in the queue if they
/// touch neither its memory nor its blocks. The memory must not be used until wait_for_swap(). A
/// meta device counts the bytes and moves none. The parts of `name` are joined for traces. If there
/// are none, traces show the name of the current NameScope.
ZG_API SwapTicket start_swap(const Tensor& from, const Tensor& to,
                             std::initializer_list<std::string_view> name = {}, bool ahead = false);
/// Blocks until these transfers are done. Throws FileError if the disk failed or returned other
/// bytes than were written.
ZG_API void wait_for_swap(const Device& device, SwapTicket ticket);
/// Whether wait_for_swap() would return, or throw, at once.
ZG_API bool is_swapped(const Device& device, SwapTicket ticket);
/// For a read by a second thread, in two calls. First the thread that uses the device calls
/// count_read(), so that the byte counts do not depend on timing. Then the second thread calls
/// read_counted(), which returns when the read is done and throws FileError. Traces do not record
/// this read.
ZG_API void count_read(const Tensor& file);
ZG_API void read_counted(const Tensor& file, const Tensor& memory);

ZG_API SwapCount swapped(const Device& device);  ///< bytes read and written so far
/// Bytes of all file blocks that the tensor touches, wholly or partly: those of its transfer.
ZG_API int64_t block_bytes(const Tensor& file);
/// Counts bytes that a value made necessary, which no plan has. RankReport::file_io is without
/// them.
ZG_API void count_unplanned(const Device& device, const SwapCount& bytes);
ZG_API SwapCount swapped_as_planned(const Device& device);  ///< swapped() without those

/// How Space::file is accessed, "io_uring past the page cache"; empty: Space::file was not used
/// yet.
ZG_API std::string swap_description(const Device& device);
/// Number and size of concurrent requests, "8 requests of 1048576 bytes"; empty: Space::file was
/// not used yet.
ZG_API std::string swap_requests(const Device& device);

/// The reason why io_uring cannot be used on this machine; empty: it can.
ZG_API std::string io_uring_absence();

}  // namespace zg
