#include "zerograd/runtime/hpu/api.h"

#include <dlfcn.h>

#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::hpu {
namespace {

const Api& loader() {
  static const Api opened;
  return opened;
}

template <class Function>
Function extension(const char* name) {
  void* found = nullptr;
  if (api().driverGetExtensionFunctionAddress(driver().handle, name, &found) != ZE_RESULT_SUCCESS ||
      !found)
    raise<DeviceError>(
        "hpu: the driver has no {}, so that devices cannot use pinned memory; expected Intel's "
        "driver of 2022 or newer; try a newer driver, or cpu",
        name);
  return reinterpret_cast<Function>(found);
}

const char* name_of_result(ze_result_t result) {
  constexpr std::pair<ze_result_t, const char*> names[] = {
      {ZE_RESULT_ERROR_DEVICE_LOST, "the device is lost"},
      {ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY, "out of host memory"},
      {ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, "out of device memory"},
      {ZE_RESULT_ERROR_MODULE_BUILD_FAILURE, "the module does not build"},
      {ZE_RESULT_ERROR_UNINITIALIZED, "no driver could be initialised"},
      {ZE_RESULT_ERROR_UNSUPPORTED_FEATURE, "the driver does not support it"},
      {ZE_RESULT_ERROR_INVALID_KERNEL_NAME, "there is no kernel of that name"},
      {ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX, "there is no argument of that index"},
      {ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE, "the argument has another size"},
      {ZE_RESULT_ERROR_INVALID_ARGUMENT, "an invalid argument"},
      {ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT, "an alignment that it does not support"},
      {ZE_RESULT_ERROR_UNSUPPORTED_SIZE, "a size that it does not support"},
      {ZE_RESULT_NOT_READY, "not done within the time"}};
  for (const auto& [known, name] : names)
    if (known == result) return name;
  return nullptr;
}

/// The oldest build of Intel's driver: the end of driverVersion, the same number as in its
/// release, 24.31.30508. In older drivers memory fails in ways that they do not report: 22.43,
/// which Debian has, has no virtual memory, and those before 24.31 slow down with each mapping.
constexpr uint32_t oldest_build = 30508;

/// Why devices of this driver are not used; empty: they are.
std::string objection(ze_driver_handle_t driver) {
  ze_driver_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES};
  check(api().driverGetProperties(driver, &properties), "zeDriverGetProperties");
  const uint32_t version = properties.driverVersion, build = version & 0xffff;
  if (build >= oldest_build) return {};
  return fmt::format(
      "the Level Zero driver is version {}.{}.{}; expected build {} (Intel's compute runtime "
      "24.31) or newer; Debian's intel-opencl-icd is too old: install libze-intel-gpu1 and "
      "intel-opencl-icd from github.com/intel/compute-runtime/releases, or use cpu",
      version >> 24, version >> 16 & 0xff, build, oldest_build);
}

/// The accelerators of one driver; `others` gets the names of its other devices.
std::vector<ze_device_handle_t> devices_of(ze_driver_handle_t driver, std::string& others) {
  uint32_t count = 0;
  check(api().deviceGet(driver, &count, nullptr), "zeDeviceGet");
  std::vector<ze_device_handle_t> every(count), devices;
  check(api().deviceGet(driver, &count, every.data()), "zeDeviceGet");
  for (ze_device_handle_t device : every) {
    ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
    check(api().deviceGetProperties(device, &properties), "zeDeviceGetProperties");
    const std::string_view name = properties.name;
    if (properties.type == ZE_DEVICE_TYPE_GPU
            ? !(properties.flags & ZE_DEVICE_PROPERTY_FLAG_INTEGRATED)
            : properties.type == ZE_DEVICE_TYPE_CPU && name.starts_with("zerograd test driver"))
      devices.push_back(device);
    else
      others += fmt::format("{}{}", others.empty() ? "" : ", ", name);
  }
  return devices;
}

Driver find_driver() {
  Driver found;
  found.absence = loader().absence;
  if (!found.absence.empty()) return found;
  found.absence =
      "Level Zero finds no driver (libze-intel-gpu1 of Intel's compute runtime 24.31 or newer)";
  if (api().init(0) != ZE_RESULT_SUCCESS) return found;
  uint32_t count = 0;
  check(api().driverGet(&count, nullptr), "zeDriverGet");
  std::vector<ze_driver_handle_t> drivers(count);
  check(api().driverGet(&count, drivers.data()), "zeDriverGet");
  std::string others, refused;
  for (ze_driver_handle_t driver : drivers) {
    std::vector<ze_device_handle_t> devices = devices_of(driver, others);
    if (devices.empty()) continue;
    if (const std::string why = objection(driver); !why.empty()) {
      refused = why;
      continue;
    }
    const ze_context_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_CONTEXT_DESC};
    check(api().contextCreate(driver, &wanted, &found.context), "zeContextCreate");
    found.handle = driver;
    found.devices = std::move(devices);
    found.absence.clear();
    return found;
  }
  if (count > 0)
    found.absence = !refused.empty() ? refused
                                     : "the Level Zero driver shows no GPU with memory of its own" +
                                           (others.empty() ? "" : ", only " + others);
  return found;
}

}  // namespace

Api::Symbol Api::find(const char* name) {
  static void* const library = dlopen("libze_loader.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const address = library ? dlsym(library, name) : nullptr;
  if (!library)
    absence = "there is no Level Zero loader (libze_loader.so.1); on Debian it is in libze1";
  else if (!address && absence.empty())
    absence = fmt::format("the Level Zero loader lacks {}; expected API 1.4 or newer", name);
  return {address};
}

const Api& api() {
  if (!loader().absence.empty()) raise<DeviceError>("hpu: {}", loader().absence);
  return loader();
}

void check(ze_result_t result, const char* what) {
  if (result != ZE_RESULT_SUCCESS) raise<DeviceError>("hpu: {}: {}", what, text_of(result));
}

std::string text_of(ze_result_t result) {
  const char* const name = name_of_result(result);
  return name ? name : fmt::format("Level Zero's error {:#x}", static_cast<unsigned>(result));
}

void import_memory(void* begin, size_t bytes) {
  using Import = ze_result_t(ZE_APICALL*)(ze_driver_handle_t, void*, size_t);
  static const auto import = extension<Import>("zexDriverImportExternalPointer");
  check(import(driver().handle, begin, bytes), "zexDriverImportExternalPointer");
}

void release_memory(void* begin) {
  using Release = ze_result_t(ZE_APICALL*)(ze_driver_handle_t, void*);
  static const auto release = extension<Release>("zexDriverReleaseImportedPointer");
  release(driver().handle, begin);
}

// Never destroyed, because at exit the drivers are unloaded in an undefined order.
const Driver& driver() {
  static const Driver& found = *new Driver(find_driver());
  return found;
}

}  // namespace zg::hpu
