#pragma once

#include <level_zero/ze_api.h>

#include <string>
#include <vector>

namespace zg::hpu {

/// The functions of Level Zero (core API 1.4) that are used here, named without ze. The loader is
/// opened at run time, so a program also starts where none is installed.
struct Api {
  decltype(&::zeInit) init;
  decltype(&::zeDriverGet) driverGet;
  decltype(&::zeDriverGetProperties) driverGetProperties;
  decltype(&::zeDeviceGet) deviceGet;
  decltype(&::zeDeviceGetProperties) deviceGetProperties;
  decltype(&::zeDeviceGetComputeProperties) deviceGetComputeProperties;
  decltype(&::zeDeviceGetModuleProperties) deviceGetModuleProperties;
  decltype(&::zeDeviceGetMemoryProperties) deviceGetMemoryProperties;
  decltype(&::zeDeviceGetCommandQueueGroupProperties) deviceGetCommandQueueGroupProperties;
  decltype(&::zeContextCreate) contextCreate;
  decltype(&::zeMemAllocDevice) memAllocDevice;
  decltype(&::zeMemAllocHost) memAllocHost;
  decltype(&::zeMemFree) memFree;
  decltype(&::zeVirtualMemReserve) virtualMemReserve;
  decltype(&::zeVirtualMemFree) virtualMemFree;
  decltype(&::zeVirtualMemQueryPageSize) virtualMemQueryPageSize;
  decltype(&::zeVirtualMemMap) virtualMemMap;
  decltype(&::zeVirtualMemUnmap) virtualMemUnmap;
  decltype(&::zePhysicalMemCreate) physicalMemCreate;
  decltype(&::zePhysicalMemDestroy) physicalMemDestroy;
  decltype(&::zeCommandListCreateImmediate) commandListCreateImmediate;
  decltype(&::zeCommandListDestroy) commandListDestroy;
  decltype(&::zeCommandListAppendBarrier) commandListAppendBarrier;
  decltype(&::zeCommandListAppendMemoryCopy) commandListAppendMemoryCopy;
  decltype(&::zeCommandListAppendMemoryFill) commandListAppendMemoryFill;
  decltype(&::zeCommandListAppendLaunchKernel) commandListAppendLaunchKernel;
  decltype(&::zeEventPoolCreate) eventPoolCreate;
  decltype(&::zeEventPoolDestroy) eventPoolDestroy;
  decltype(&::zeEventCreate) eventCreate;
  decltype(&::zeEventDestroy) eventDestroy;
  decltype(&::zeEventHostSynchronize) eventHostSynchronize;
  decltype(&::zeEventHostReset) eventHostReset;
  decltype(&::zeEventQueryStatus) eventQueryStatus;
  decltype(&::zeEventQueryKernelTimestamp) eventQueryKernelTimestamp;
  decltype(&::zeModuleCreate) moduleCreate;
  decltype(&::zeModuleDestroy) moduleDestroy;
  decltype(&::zeModuleBuildLogGetString) moduleBuildLogGetString;
  decltype(&::zeModuleBuildLogDestroy) moduleBuildLogDestroy;
  decltype(&::zeModuleGetNativeBinary) moduleGetNativeBinary;
  decltype(&::zeKernelCreate) kernelCreate;
  decltype(&::zeKernelDestroy) kernelDestroy;
  decltype(&::zeKernelGetProperties) kernelGetProperties;
  decltype(&::zeKernelSetGroupSize) kernelSetGroupSize;
  decltype(&::zeKernelSetArgumentValue) kernelSetArgumentValue;
  decltype(&::zeDriverGetExtensionFunctionAddress) driverGetExtensionFunctionAddress;
};

/// Throws DeviceError if the loader is absent or lacks one of the functions.
const Api& api();

/// Throws DeviceError "hpu: WHAT: NAME_OF_THE_ERROR" unless `result` is success.
void check(ze_result_t result, const char* what);
/// "out of device memory", or the number of an error without a name.
std::string text_of(ze_result_t result);

/// The accelerators of the first driver that has any: GPUs with memory of their own, or the devices
/// of the test driver. Other CPUs, and GPUs that are part of a processor, are not taken.
struct Driver {
  ze_driver_handle_t handle = nullptr;
  ze_context_handle_t context = nullptr;
  std::vector<ze_device_handle_t> devices;
  std::string absence;  ///< why there are no devices; empty if there are
};

/// The drivers are searched at the first call. Any thread may call.
const Driver& driver();
inline ze_device_handle_t handle_of(int index) {
  return driver().devices.at(static_cast<size_t>(index));
}

struct Code;  // runtime/hpu/module.h
/// The module that a device's driver built from the code, built at the first call. Any thread may
/// call.
ze_module_handle_t module_of(int index, const Code& code);

/// An extension of Intel's driver: devices can reach this range of the process's own memory until
/// it is released. Throws DeviceError where the driver has no such function.
void import_memory(void* begin, size_t bytes);
void release_memory(void* begin);

}  // namespace zg::hpu
