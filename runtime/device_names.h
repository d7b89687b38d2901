#pragma once

#include <string>

#include "zerograd/runtime/device.h"

namespace zg {

ZG_API const char* name_of(Device::Type type);  ///< "cpu", "cuda", "hpu", "meta"

/// For an error: how two devices differ that had to be one, and what to do about it.
ZG_API std::string difference(const Device& one, const Device& other);

}  // namespace zg
