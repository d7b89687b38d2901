#pragma once

#include "zerograd/runtime/device.h"

namespace zg::cpu {

/// The highest level that this machine, its kernel and this build have. The first call asks the
/// kernel to let this process use tile registers.
Isa machine_isa();

}  // namespace zg::cpu
