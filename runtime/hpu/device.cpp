#include "zerograd/runtime/hpu/device.h"

#include <string>

#include "zerograd/runtime/hpu/module.h"

namespace zg::hpu {
namespace {

int count_devices() { return static_cast<int>(driver().devices.size()); }

std::string absence() { return driver().absence; }

ze_device_properties_t properties_of(int index) {
  ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
  check(api().deviceGetProperties(handle_of(index), &properties), "zeDeviceGetProperties");
  return properties;
}

std::string describe(int index) {
  const ze_device_properties_t properties = properties_of(index);
  const Features& features = features_of(index);
  std::string sizes;
  for (const int size : features.sub_groups)
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  const uint32_t engines =
      properties.numSlices * properties.numSubslicesPerSlice * properties.numEUsPerSubslice;
  return std::string(properties.name) + ", " + std::to_string(engines) + " vector engines, " +
         (sizes.empty() ? "no sub-groups" : "sub-groups of " + sizes) + ", " +
         std::to_string(features.memory_bytes >> 20) + " MiB" +
         (features.rounded_divide_sqrt ? ""
                                       : ", divide and square root not correctly rounded: other "
                                         "bits with host offload than without");
}

std::string stand_in(int index) {
  const ze_device_properties_t properties = properties_of(index);
  return properties.type == ZE_DEVICE_TYPE_CPU ? properties.name : "";
}

}  // namespace

ze_device_handle_t handle_of(int index) { return driver().devices.at(static_cast<size_t>(index)); }

bool reaches(int index, int other) {
  if (index == other) return true;
  ze_bool_t can = 0;
  check(api().deviceCanAccessPeer(handle_of(index), handle_of(other), &can),
        "zeDeviceCanAccessPeer");
  return can != 0;
}

const Backend& backend() {
  static constexpr Backend present{.count = count_devices,
                                   .absence = absence,
                                   .describe = describe,
                                   .stand_in = stand_in,
                                   .reaches = reaches,
                                   .make_stream = make_stream,
                                   .memory = make_memory};
  return present;
}

}  // namespace zg::hpu
