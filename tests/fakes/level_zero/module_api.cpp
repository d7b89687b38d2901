#include <level_zero/ze_ddi.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <thread>

#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"

// Modules, their native form and their build logs.
namespace zg::test_driver {
namespace {

// The header of a native module; SPIR-V follows it. A real native module holds machine code. Like
// one, this format is rejected by another driver or device.
std::string native_head() {
  std::string head = "zerograd test driver, module 1, sub-groups";
  for (const unsigned size : settings().sub_groups) head += " " + std::to_string(size);
  return head + "\n";
}

std::span<const std::byte> bytes_of(const ze_module_desc_t& description) {
  return {reinterpret_cast<const std::byte*>(description.pInputModule), description.inputSize};
}

/// The SPIR-V of a native module; throws if it belongs to another driver or is truncated.
std::span<const std::byte> from_native(std::span<const std::byte> bytes) {
  const std::string head = native_head();
  if (bytes.size() <= head.size() || std::memcmp(bytes.data(), head.data(), head.size()) != 0)
    throw std::invalid_argument("not a native module of this driver and device");
  return bytes.subspan(head.size());
}

/// The name of a function that the module calls and that the device lacks, or "": DPAS needs a
/// device that supports it, and sub-groups of the smallest size.
std::string lacks(const SpirvModule& contents) {
  for (const std::string& import : contents.imports) {
    if (import.find("matrix_mad") == std::string::npos) continue;
    const unsigned lanes = import.find("Dv8_s") != std::string::npos ? 16 : 8;
    const auto& sizes = settings().sub_groups;
    if (!settings().products || sizes.empty() || sizes.front() != lanes) return import;
  }
  return {};
}

void check(const SpirvModule& contents) {
  const auto& sizes = settings().sub_groups;
  if (contents.halves) throw std::runtime_error("half type is not supported on this platform");
  if (contents.doubles) throw std::runtime_error("double type is not supported on this platform");
  if (contents.sub_groups && sizes.empty())
    throw std::runtime_error("sub-groups are not supported on this platform");
  for (const KernelSignature& kernel : contents.kernels) {
    const uint32_t size = kernel.required_sub_group;
    if (size && std::ranges::find(sizes, size) == sizes.end())
      throw std::runtime_error("kernel " + kernel.name + " needs a sub-group of " +
                               std::to_string(size) + ", which the device lacks");
  }
}

/// A build from SPIR-V takes the time of the settings.
void take_time() {
  std::this_thread::sleep_for(std::chrono::milliseconds(settings().build_ms));
  static int began = 0;
  Lock lock(state().mutex);
  ++began;
  state().changed.notify_all();
  if (!state().changed.wait_for(lock, std::chrono::milliseconds(settings().patience_ms),
                                [] { return began >= settings().builds_meet; }))
    report("zeModuleCreate: %d of %d builds run at the same time", began, settings().builds_meet);
}

ze_result_t build(Module& module, const ze_module_desc_t& description, std::string& log) {
  const bool native = description.format == ZE_MODULE_FORMAT_NATIVE;
  try {
    const auto spirv = native ? from_native(bytes_of(description)) : bytes_of(description);
    module.contents = read_spirv(spirv);
    module.spirv.assign(spirv.begin(), spirv.end());
    check(module.contents);
    module.unlinked = lacks(module.contents);
    if (module.unlinked.empty()) {
      const std::string_view flags(description.pBuildFlags ? description.pBuildFlags : "");
      const bool rounded = settings().rounded_divide &&
                           flags.find("-cl-fp32-correctly-rounded-divide-sqrt") != flags.npos;
      module.program =
          std::make_shared<const Program>(module.spirv, module.contents.kernels, rounded);
      if (!native) take_time();
    } else {
      log = "undefined reference to " + module.unlinked;
    }
    if (settings().trace)
      report("%s: module from %s", module.device->name, native ? "native code" : "SPIR-V");
    return ZE_RESULT_SUCCESS;
  } catch (const std::invalid_argument& error) {
    log = error.what();
    return ZE_RESULT_ERROR_INVALID_NATIVE_BINARY;
  } catch (const std::exception& error) {
    log = error.what();
    return native ? ZE_RESULT_ERROR_INVALID_NATIVE_BINARY : ZE_RESULT_ERROR_MODULE_BUILD_FAILURE;
  }
}

ze_result_t module_create(ze_context_handle_t, ze_device_handle_t device,
                          const ze_module_desc_t* description, ze_module_handle_t* handle,
                          ze_module_build_log_handle_t* log_handle) {
  auto made = std::make_unique<Module>();
  {
    Lock lock(state().mutex);
    made->device = device_of(device, "zeModuleCreate");
  }
  if (!made->device) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  std::string log;
  const ze_result_t result =
      build(*made, *description, log);  // compiles, which takes long: without the mutex
  Lock lock(state().mutex);
  ++state().activity;
  if (log_handle) {
    make_handle<BuildLog>(log_handle)->words = log;
  } else if (result != ZE_RESULT_SUCCESS) {
    report("zeModuleCreate: %s", log.c_str());
  }
  if (result == ZE_RESULT_SUCCESS) *make_handle<Module>(handle) = std::move(*made);
  return result;
}

ze_result_t module_destroy(ze_module_handle_t handle) {
  Lock lock(state().mutex);
  Module* const module = from_handle<Module>(handle, "zeModuleDestroy");
  if (!module) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  for (const Kernel* kernel : std::get<std::unordered_set<const Kernel*>>(state().live)) {
    if (kernel->module == module)
      return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                    "zeModuleDestroy: its kernel %s was not destroyed",
                    kernel->signature.name.c_str());
  }
  end_handle(module);
  return ZE_RESULT_SUCCESS;
}

ze_result_t module_native(ze_module_handle_t handle, size_t* bytes, uint8_t* binary) {
  Lock lock(state().mutex);
  const Module* const module = from_handle<Module>(handle, "zeModuleGetNativeBinary");
  if (!module) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const std::string head = native_head();
  const size_t all = head.size() + module->spirv.size();
  if (binary) {
    if (*bytes < all)
      return refuse(ZE_RESULT_ERROR_INVALID_SIZE, "zeModuleGetNativeBinary: %zu bytes for %zu",
                    *bytes, all);
    std::memcpy(binary, head.data(), head.size());  // NOLINT: bytes, not a string
    std::memcpy(binary + head.size(), module->spirv.data(), module->spirv.size());
  }
  *bytes = all;
  return ZE_RESULT_SUCCESS;
}

ze_result_t module_kernel_names(ze_module_handle_t handle, uint32_t* count, const char** names) {
  Lock lock(state().mutex);
  const Module* const module = from_handle<Module>(handle, "zeModuleGetKernelNames");
  if (!module) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const auto& kernels = module->contents.kernels;
  const uint32_t there = static_cast<uint32_t>(kernels.size());
  if (*count && names) {
    *count = std::min(*count, there);
    for (uint32_t i = 0; i < *count; ++i) names[i] = kernels[i].name.c_str();
  } else {
    *count = there;
  }
  return ZE_RESULT_SUCCESS;
}

ze_result_t log_destroy(ze_module_build_log_handle_t handle) {
  Lock lock(state().mutex);
  BuildLog* const log = from_handle<BuildLog>(handle, "zeModuleBuildLogDestroy");
  if (!log) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  end_handle(log);
  return ZE_RESULT_SUCCESS;
}

ze_result_t log_string(ze_module_build_log_handle_t handle, size_t* bytes, char* words) {
  Lock lock(state().mutex);
  const BuildLog* const log = from_handle<BuildLog>(handle, "zeModuleBuildLogGetString");
  if (!log) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const size_t all = log->words.size() + 1;
  if (words) std::memcpy(words, log->words.c_str(), std::min(*bytes, all));
  *bytes = all;
  return ZE_RESULT_SUCCESS;
}

}  // namespace
}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(Module, module) {
  table->pfnCreate = module_create;
  table->pfnDestroy = module_destroy;
  table->pfnGetNativeBinary = module_native;
  table->pfnGetKernelNames = module_kernel_names;
}

ZG_TABLE(ModuleBuildLog, module_build_log) {
  table->pfnDestroy = log_destroy;
  table->pfnGetString = log_string;
}
