#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/pending.h"

namespace zg::cuda {

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);

/// Queues a copy to the host through pinned memory. The result is filled by synchronize().
std::shared_ptr<const std::vector<std::byte>> fetch(Stream& stream, const void* from, size_t bytes);
/// Marks the end of the work that is queued now, with an event.
std::unique_ptr<StreamMark> mark(Stream& stream);
/// True if the queued work is done or has failed. In the second case the next wait throws the
/// error.
bool is_idle(Stream& stream);

/// The number of CUDA streams that this process has on a device.
int streams_on(int index);

}  // namespace zg::cuda
