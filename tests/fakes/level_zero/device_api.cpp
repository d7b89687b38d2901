#include <level_zero/ze_ddi.h>

#include <algorithm>
#include <cstdio>

#include "tests/fakes/level_zero/launch.h"
#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"
#include "tests/fakes/level_zero/ticks.h"

// The driver, its devices and what they can do.
namespace zg::test_driver {
namespace {

const uint8_t uuid[ZE_MAX_UUID_SIZE] = {'z', 'g', ' ', 't', 'e', 's', 't',
                                        ' ', 'd', 'r', 'i', 'v', 'e', 'r'};
constexpr uint32_t vendor = 0x8086, model = 0x0bd5, revision = 0x2f;

/// Intel's property of a module that says whether the device has DPAS.
struct DotProducts {
  ze_structure_type_t stype;
  void* pNext;
  uint32_t flags;
};
constexpr auto dot_products_type = static_cast<ze_structure_type_t>(0x00030013);

int driver;  // its address is the handle

/// Sets all fields of a result to 0, except its type and its chain of extensions.
template <class T>
void clear(T* properties) {
  T empty = {};
  empty.stype = properties->stype;
  empty.pNext = properties->pNext;
  *properties = empty;
}

ze_result_t init(ze_init_flags_t flags) {
  // No device is a GPU or a VPU, unless the settings say so.
  const bool none = settings().kind == "test" || settings().kind == "cpu";
  return none && flags & (ZE_INIT_FLAG_GPU_ONLY | ZE_INIT_FLAG_VPU_ONLY)
             ? ZE_RESULT_ERROR_UNINITIALIZED
             : ZE_RESULT_SUCCESS;
}

ze_result_t driver_get(uint32_t* count, ze_driver_handle_t* handles) {
  if (*count && handles) handles[0] = reinterpret_cast<ze_driver_handle_t>(&driver);
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

ze_result_t driver_api_version(ze_driver_handle_t, ze_api_version_t* version) {
  *version = ZE_API_VERSION_1_4;
  return ZE_RESULT_SUCCESS;
}

ze_result_t driver_properties(ze_driver_handle_t, ze_driver_properties_t* properties) {
  std::copy(std::begin(uuid), std::end(uuid), properties->uuid.id);
  properties->driverVersion = 1u << 24 | 3u << 16 | settings().version;
  return ZE_RESULT_SUCCESS;
}

ze_result_t driver_extensions(ze_driver_handle_t, uint32_t* count,
                              ze_driver_extension_properties_t*) {
  *count = 0;
  return ZE_RESULT_SUCCESS;
}

ze_result_t driver_function(ze_driver_handle_t, const char* name, void** address) {
  *address = settings().imports ? extension_function(name) : nullptr;
  return *address ? ZE_RESULT_SUCCESS : ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}

ze_result_t device_get(ze_driver_handle_t, uint32_t* count, ze_device_handle_t* handles) {
  Lock lock(state().mutex);
  const auto& devices = state().devices;
  const uint32_t there = static_cast<uint32_t>(devices.size());
  if (*count && handles) {
    *count = std::min(*count, there);
    for (uint32_t i = 0; i < *count; ++i)
      handles[i] = reinterpret_cast<ze_device_handle_t>(devices[i].get());
  } else {
    *count = there;
  }
  return ZE_RESULT_SUCCESS;
}

ze_result_t device_properties(ze_device_handle_t handle, ze_device_properties_t* properties) {
  Lock lock(state().mutex);
  const Device* const device = device_of(handle, "zeDeviceGetProperties");
  if (!device) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const bool in_cycles = properties->stype == ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES_1_2;
  clear(properties);
  const std::string& kind = settings().kind;
  properties->type =
      kind == "integrated" || kind == "gpu" ? ZE_DEVICE_TYPE_GPU : ZE_DEVICE_TYPE_CPU;
  if (kind == "integrated") properties->flags = ZE_DEVICE_PROPERTY_FLAG_INTEGRATED;
  properties->vendorId = vendor;
  properties->deviceId = model;
  // As in Intel's driver: two bytes each of vendor, device and revision, then the place.
  for (int i = 0; const uint32_t part : {vendor, model, revision}) {
    properties->uuid.id[i++] = static_cast<uint8_t>(part);
    properties->uuid.id[i++] = static_cast<uint8_t>(part >> 8);
  }
  properties->uuid.id[ZE_MAX_DEVICE_UUID_SIZE - 1] = static_cast<uint8_t>(device->index);
  properties->coreClockRate = 1000;
  properties->maxMemAllocSize = settings().memory;
  properties->maxHardwareContexts = 1;
  properties->numThreadsPerEU = properties->numEUsPerSubslice = 1;
  properties->numSubslicesPerSlice = properties->numSlices = 1;
  properties->physicalEUSimdWidth =
      settings().sub_groups.empty() ? 1 : settings().sub_groups.front();
  properties->timerResolution =
      in_cycles ? 1'000'000'000 / nanoseconds_of_a_tick : nanoseconds_of_a_tick;
  properties->timestampValidBits = timestamp_bits;
  properties->kernelTimestampValidBits = kernel_timestamp_bits;
  std::snprintf(properties->name, sizeof properties->name,
                kind == "test" ? "zerograd test driver (CPU), not an accelerator"
                               : ("a device of kind " + kind).c_str());
  return ZE_RESULT_SUCCESS;
}

ze_result_t device_compute(ze_device_handle_t, ze_device_compute_properties_t* properties) {
  clear(properties);
  properties->maxTotalGroupSize = most_items;
  properties->maxGroupSizeX = properties->maxGroupSizeY = properties->maxGroupSizeZ = most_items;
  properties->maxGroupCountX = properties->maxGroupCountY = properties->maxGroupCountZ = UINT32_MAX;
  properties->maxSharedLocalMemory = local_memory;
  properties->numSubGroupSizes = static_cast<uint32_t>(settings().sub_groups.size());
  std::ranges::copy(settings().sub_groups, properties->subGroupSizes);
  return ZE_RESULT_SUCCESS;
}

ze_result_t device_module(ze_device_handle_t, ze_device_module_properties_t* properties) {
  clear(properties);
  auto* const more = static_cast<DotProducts*>(properties->pNext);
  if (more && more->stype == dot_products_type && settings().products != 3)
    more->flags = settings().products ? 3 : 1;
  properties->spirvVersionSupported = ZE_MAKE_VERSION(1, 2);
  properties->fp32flags = ZE_DEVICE_FP_FLAG_DENORM | ZE_DEVICE_FP_FLAG_INF_NAN |
                          ZE_DEVICE_FP_FLAG_ROUND_TO_NEAREST | ZE_DEVICE_FP_FLAG_FMA;
  if (settings().rounded_divide) properties->fp32flags |= ZE_DEVICE_FP_FLAG_ROUNDED_DIVIDE_SQRT;
  properties->maxArgumentsSize = 2048;
  return ZE_RESULT_SUCCESS;
}

ze_result_t device_queue_groups(ze_device_handle_t, uint32_t* count,
                                ze_command_queue_group_properties_t* properties) {
  // As many as the setting says: one that computes, and copy engines.
  for (uint32_t i = 0; properties && i < std::min(*count, settings().groups); ++i) {
    clear(properties + i);
    properties[i].flags = ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COPY |
                          (i ? 0u : uint32_t{ZE_COMMAND_QUEUE_GROUP_PROPERTY_FLAG_COMPUTE});
    properties[i].maxMemoryFillPatternSize = 16;
    properties[i].numQueues = 1;
  }
  *count = settings().groups;
  return ZE_RESULT_SUCCESS;
}

ze_result_t device_memory(ze_device_handle_t, uint32_t* count,
                          ze_device_memory_properties_t* properties) {
  if (*count && properties) {
    clear(properties);
    properties->maxClockRate = 1000;
    properties->maxBusWidth = 64;
    properties->totalSize = settings().memory;
    std::snprintf(properties->name, sizeof properties->name, "memory of the host");
  }
  *count = 1;
  return ZE_RESULT_SUCCESS;
}

ze_result_t device_can_access_peer(ze_device_handle_t a, ze_device_handle_t b, ze_bool_t* can) {
  *can = a == b || settings().peers;
  return ZE_RESULT_SUCCESS;
}

}  // namespace
}  // namespace zg::test_driver

using namespace zg::test_driver;

ZE_DLLEXPORT ze_result_t ZE_APICALL zeGetGlobalProcAddrTable(ze_api_version_t version,
                                                             ze_global_dditable_t* table) {
  if (ZE_MAJOR_VERSION(version) != ZE_MAJOR_VERSION(ZE_API_VERSION_1_4))
    return ZE_RESULT_ERROR_UNSUPPORTED_VERSION;
  table->pfnInit = init;
  return ZE_RESULT_SUCCESS;
}

ZG_TABLE(Driver, driver) {
  table->pfnGet = driver_get;
  table->pfnGetApiVersion = driver_api_version;
  table->pfnGetProperties = driver_properties;
  table->pfnGetExtensionProperties = driver_extensions;
  table->pfnGetExtensionFunctionAddress = driver_function;
}

ZG_TABLE(Device, device) {
  table->pfnGet = device_get;
  table->pfnGetProperties = device_properties;
  table->pfnGetComputeProperties = device_compute;
  table->pfnGetModuleProperties = device_module;
  table->pfnGetCommandQueueGroupProperties = device_queue_groups;
  table->pfnGetMemoryProperties = device_memory;
  table->pfnCanAccessPeer = device_can_access_peer;
}
