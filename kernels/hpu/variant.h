#pragma once

#include "zerograd/runtime/device.h"

namespace zg::hpu {

/// The variants of a kernel: portable runs on every device; sub_groups needs sub-groups of 16; dpas
/// needs the DPAS instruction (matrix multiply-add), too, which some devices have with sub-groups
/// of 8.
enum class Variant : uint8_t { portable, sub_groups, dpas };

/// The best variant that the device supports, or the one that
/// ZG_HPU_VARIANT=portable|sub_groups|dpas requests. Throws ConfigError if the device does not
/// support the requested one. A meta device, whose launches a plan counts, supports all.
Variant variant_of(const Stream& stream);

/// The variant in a module's name if variant_of() is dpas: "dpas8" or "dpas16", by
/// dpas_sub_group_size().
const char* dpas_variant(const Stream& stream);

inline bool uses_sub_groups(const Stream& stream) {
  return variant_of(stream) != Variant::portable;
}

/// The sub-group size with which the device supports DPAS: 8 on Arc, 16 on later GPUs, 0 without
/// DPAS. Drivers report it by an extension only, and a module may build although the device lacks
/// the instruction. So the first call for a device that may have it computes a product whose result
/// is known.
int dpas_sub_group_size(int index);

}  // namespace zg::hpu
