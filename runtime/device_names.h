#pragma once

#include "runtime/device.h"

namespace zg {

ZG_API const char* name_of(Device::Type type);  ///< "cpu", "cuda", "hpu", "meta"

}  // namespace zg
