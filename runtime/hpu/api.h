#pragma once

#include <level_zero/ze_api.h>

#include <string>
#include <vector>

namespace zg::hpu {

/// The functions of Level Zero (core API 1.4) that are used here, named without ze. The loader is
/// opened at run time, so a program also starts where none is installed.
class Api {
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  /// Null if there is no loader, or if it does not define the function.
  Symbol find(const char* name);

 public:
  std::string absence;  ///< why functions are null; empty: none is

  decltype(&::zeInit) init = find("zeInit");
  decltype(&::zeDriverGet) driverGet = find("zeDriverGet");
  decltype(&::zeDriverGetProperties) driverGetProperties = find("zeDriverGetProperties");
  decltype(&::zeDeviceGet) deviceGet = find("zeDeviceGet");
  decltype(&::zeDeviceGetProperties) deviceGetProperties = find("zeDeviceGetProperties");
  decltype(&::zeDeviceGetComputeProperties) deviceGetComputeProperties =
      find("zeDeviceGetComputeProperties");
  decltype(&::zeDeviceGetModuleProperties) deviceGetModuleProperties =
      find("zeDeviceGetModuleProperties");
  decltype(&::zeDeviceGetMemoryProperties) deviceGetMemoryProperties =
      find("zeDeviceGetMemoryProperties");
  decltype(&::zeDeviceGetCommandQueueGroupProperties) deviceGetCommandQueueGroupProperties =
      find("zeDeviceGetCommandQueueGroupProperties");
  decltype(&::zeContextCreate) contextCreate = find("zeContextCreate");
  decltype(&::zeMemAllocDevice) memAllocDevice = find("zeMemAllocDevice");
  decltype(&::zeMemAllocHost) memAllocHost = find("zeMemAllocHost");
  decltype(&::zeMemFree) memFree = find("zeMemFree");
  decltype(&::zeVirtualMemReserve) virtualMemReserve = find("zeVirtualMemReserve");
  decltype(&::zeVirtualMemFree) virtualMemFree = find("zeVirtualMemFree");
  decltype(&::zeVirtualMemQueryPageSize) virtualMemQueryPageSize =
      find("zeVirtualMemQueryPageSize");
  decltype(&::zeVirtualMemMap) virtualMemMap = find("zeVirtualMemMap");
  decltype(&::zeVirtualMemUnmap) virtualMemUnmap = find("zeVirtualMemUnmap");
  decltype(&::zePhysicalMemCreate) physicalMemCreate = find("zePhysicalMemCreate");
  decltype(&::zePhysicalMemDestroy) physicalMemDestroy = find("zePhysicalMemDestroy");
  decltype(&::zeCommandListCreateImmediate) commandListCreateImmediate =
      find("zeCommandListCreateImmediate");
  decltype(&::zeCommandListDestroy) commandListDestroy = find("zeCommandListDestroy");
  decltype(&::zeCommandListAppendBarrier) commandListAppendBarrier =
      find("zeCommandListAppendBarrier");
  decltype(&::zeCommandListAppendMemoryCopy) commandListAppendMemoryCopy =
      find("zeCommandListAppendMemoryCopy");
  decltype(&::zeCommandListAppendMemoryFill) commandListAppendMemoryFill =
      find("zeCommandListAppendMemoryFill");
  decltype(&::zeCommandListAppendLaunchKernel) commandListAppendLaunchKernel =
      find("zeCommandListAppendLaunchKernel");
  decltype(&::zeEventPoolCreate) eventPoolCreate = find("zeEventPoolCreate");
  decltype(&::zeEventPoolDestroy) eventPoolDestroy = find("zeEventPoolDestroy");
  decltype(&::zeEventCreate) eventCreate = find("zeEventCreate");
  decltype(&::zeEventDestroy) eventDestroy = find("zeEventDestroy");
  decltype(&::zeEventHostSynchronize) eventHostSynchronize = find("zeEventHostSynchronize");
  decltype(&::zeEventHostReset) eventHostReset = find("zeEventHostReset");
  decltype(&::zeEventQueryStatus) eventQueryStatus = find("zeEventQueryStatus");
  decltype(&::zeEventQueryKernelTimestamp) eventQueryKernelTimestamp =
      find("zeEventQueryKernelTimestamp");
  decltype(&::zeModuleCreate) moduleCreate = find("zeModuleCreate");
  decltype(&::zeModuleDestroy) moduleDestroy = find("zeModuleDestroy");
  decltype(&::zeModuleBuildLogGetString) moduleBuildLogGetString =
      find("zeModuleBuildLogGetString");
  decltype(&::zeModuleBuildLogDestroy) moduleBuildLogDestroy = find("zeModuleBuildLogDestroy");
  decltype(&::zeModuleGetNativeBinary) moduleGetNativeBinary = find("zeModuleGetNativeBinary");
  decltype(&::zeKernelCreate) kernelCreate = find("zeKernelCreate");
  decltype(&::zeKernelDestroy) kernelDestroy = find("zeKernelDestroy");
  decltype(&::zeKernelGetProperties) kernelGetProperties = find("zeKernelGetProperties");
  decltype(&::zeKernelSetGroupSize) kernelSetGroupSize = find("zeKernelSetGroupSize");
  decltype(&::zeKernelSetArgumentValue) kernelSetArgumentValue = find("zeKernelSetArgumentValue");
  decltype(&::zeDriverGetExtensionFunctionAddress) driverGetExtensionFunctionAddress =
      find("zeDriverGetExtensionFunctionAddress");
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
