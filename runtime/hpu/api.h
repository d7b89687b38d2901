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

#define ZG_ZE(function, name) decltype(&::ze##function) name = find("ze" #function)
  ZG_ZE(Init, init);
  ZG_ZE(DriverGet, driverGet);
  ZG_ZE(DriverGetProperties, driverGetProperties);
  ZG_ZE(DeviceGet, deviceGet);
  ZG_ZE(DeviceGetProperties, deviceGetProperties);
  ZG_ZE(DeviceGetComputeProperties, deviceGetComputeProperties);
  ZG_ZE(DeviceGetModuleProperties, deviceGetModuleProperties);
  ZG_ZE(DeviceGetMemoryProperties, deviceGetMemoryProperties);
  ZG_ZE(DeviceGetCommandQueueGroupProperties, deviceGetCommandQueueGroupProperties);
  ZG_ZE(ContextCreate, contextCreate);
  ZG_ZE(MemAllocDevice, memAllocDevice);
  ZG_ZE(MemAllocHost, memAllocHost);
  ZG_ZE(MemFree, memFree);
  ZG_ZE(VirtualMemReserve, virtualMemReserve);
  ZG_ZE(VirtualMemFree, virtualMemFree);
  ZG_ZE(VirtualMemQueryPageSize, virtualMemQueryPageSize);
  ZG_ZE(VirtualMemMap, virtualMemMap);
  ZG_ZE(VirtualMemUnmap, virtualMemUnmap);
  ZG_ZE(PhysicalMemCreate, physicalMemCreate);
  ZG_ZE(PhysicalMemDestroy, physicalMemDestroy);
  ZG_ZE(CommandListCreateImmediate, commandListCreateImmediate);
  ZG_ZE(CommandListDestroy, commandListDestroy);
  ZG_ZE(CommandListAppendBarrier, commandListAppendBarrier);
  ZG_ZE(CommandListAppendMemoryCopy, commandListAppendMemoryCopy);
  ZG_ZE(CommandListAppendMemoryFill, commandListAppendMemoryFill);
  ZG_ZE(CommandListAppendLaunchKernel, commandListAppendLaunchKernel);
  ZG_ZE(EventPoolCreate, eventPoolCreate);
  ZG_ZE(EventPoolDestroy, eventPoolDestroy);
  ZG_ZE(EventCreate, eventCreate);
  ZG_ZE(EventDestroy, eventDestroy);
  ZG_ZE(EventHostSynchronize, eventHostSynchronize);
  ZG_ZE(EventHostReset, eventHostReset);
  ZG_ZE(EventQueryStatus, eventQueryStatus);
  ZG_ZE(EventQueryKernelTimestamp, eventQueryKernelTimestamp);
  ZG_ZE(ModuleCreate, moduleCreate);
  ZG_ZE(ModuleDestroy, moduleDestroy);
  ZG_ZE(ModuleBuildLogGetString, moduleBuildLogGetString);
  ZG_ZE(ModuleBuildLogDestroy, moduleBuildLogDestroy);
  ZG_ZE(ModuleGetNativeBinary, moduleGetNativeBinary);
  ZG_ZE(KernelCreate, kernelCreate);
  ZG_ZE(KernelDestroy, kernelDestroy);
  ZG_ZE(KernelGetProperties, kernelGetProperties);
  ZG_ZE(KernelSetGroupSize, kernelSetGroupSize);
  ZG_ZE(KernelSetArgumentValue, kernelSetArgumentValue);
  ZG_ZE(DriverGetExtensionFunctionAddress, driverGetExtensionFunctionAddress);
#undef ZG_ZE
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
