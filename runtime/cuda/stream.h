#pragma once

#include <memory>

#include "zerograd/runtime/device.h"

namespace zg::cuda {

std::unique_ptr<Stream> make_stream(DeviceState& state, const char* name);

/// The number of CUDA streams that this process has on a device.
int streams_on(int index);

}  // namespace zg::cuda
