#pragma once

#include <string>

#include "zerograd/runtime/device.h"

namespace zg {

ZG_API const char* name_of(Device::Type type);  ///< "cpu", "cuda", "hpu", "meta"

/// The name of a driver for tests that computes in the place of the index-th accelerator, so that
/// its times say nothing of one; empty: the accelerator computes, or there is none.
ZG_API std::string stand_in(Device::Type type, int index);

/// For an error: how two devices differ that had to be one, and what to do about it.
ZG_API std::string difference(const Device& one, const Device& other);

}  // namespace zg
