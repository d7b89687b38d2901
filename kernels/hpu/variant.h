#pragma once

#include "zerograd/runtime/device.h"

namespace zg::hpu {

/// How kernels of a device are written: what every device runs; by sub-groups of 16; and products
/// by DPAS beside that.
enum class Variant : uint8_t { portable, sub_groups, dpas };

/// The best that the device has; ZG_HPU_VARIANT=portable|sub_groups|dpas says which. ConfigError
/// where the device lacks what the variable asks for.
Variant variant_of(const Stream& stream);

/// The module's name where variant_of() is dpas: by 8 or 16 lanes.
const char* dpas_variant(const Stream& stream);

inline bool uses_sub_groups(const Stream& stream) {
  return variant_of(stream) != Variant::portable;
}

/// Lanes of the sub-groups that multiply tiles of bf16 on the device (DPAS): 8 on Arc, 16 on later
/// GPUs, 0 where there is no such thing. Level Zero 1.4 cannot be asked, and a module whose
/// instruction is missing may build nevertheless: so a known product is made first, once for each
/// device of the process.
int dpas_lanes(int index);

}  // namespace zg::hpu
