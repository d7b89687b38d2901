#include "zerograd/runtime/hpu/module.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "zerograd/runtime/hpu/api.h"
#include "zerograd/runtime/hpu/features.h"
#include "zerograd/runtime/text/format.h"

namespace zg::hpu {

// --- NativeCache ---

namespace {

namespace fs = std::filesystem;

/// The header of a cache file, before the binary. Its length and checksum detect truncated and
/// damaged files.
struct Header {
  char magic[8] = {'z', 'g', 'h', 'p', 'u', '0', '0', '1'};
  uint64_t bytes = 0, sum = 0;
};

std::string cache_folder() {
  if (const char* own = std::getenv("ZG_HPU_CACHE")) return own;
  if (const char* caches = std::getenv("XDG_CACHE_HOME"); caches && *caches)
    return std::string(caches) + "/zerograd";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/zerograd";
  return {};
}

}  // namespace

NativeCache::NativeCache() : folder_(cache_folder()) {}

std::vector<uint8_t> NativeCache::find(const std::string& key) const noexcept try {
  if (folder_.empty()) return {};
  std::ifstream file(folder_ + "/" + key, std::ios::binary);
  Header header, expected;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return {};
  std::error_code ignored;
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 ||
      header.bytes + sizeof header != fs::file_size(folder_ + "/" + key, ignored))
    return {};
  std::vector<uint8_t> binary(header.bytes);
  if (!file.read(reinterpret_cast<char*>(binary.data()),
                 static_cast<std::streamsize>(binary.size())) ||
      XXH3_64bits(binary.data(), binary.size()) != header.sum)
    return {};
  return binary;
} catch (...) {
  return {};
}

void NativeCache::keep(const std::string& key, const std::vector<uint8_t>& binary) const noexcept
    try {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  // Written under a temporary name and renamed: other processes may read or write the same file.
  const std::string place = folder_ + "/" + key;
  const std::string unfinished = fmt::format("{}.{}", place, getpid());
  Header header;
  header.bytes = binary.size();
  header.sum = XXH3_64bits(binary.data(), binary.size());
  std::ofstream file(unfinished, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(reinterpret_cast<const char*>(binary.data()),
             static_cast<std::streamsize>(binary.size()));
  file.close();
  if (file)
    fs::rename(unfinished, place, error);
  else
    fs::remove(unfinished, error);
} catch (...) {
}

// --- Modules ---

namespace {

// Allocations may be larger than 4 GiB. Division and square root are rounded only if the driver's
// compiler is told so; the flag is not part of SPIR-V.
constexpr const char* build_flags =
    "-ze-opt-greater-than-4GB-buffer-required -cl-fp32-correctly-rounded-divide-sqrt";
// For modules with "_tiles." in their names, whose kernels use DPAS. They keep their sums in
// registers: the large register mode has half the threads, each with twice as many registers.
constexpr const char* tiles_build_flags =
    "-ze-opt-greater-than-4GB-buffer-required -cl-fp32-correctly-rounded-divide-sqrt "
    "-ze-opt-large-register-file";

const char* flags_of(const Code& code) {
  return std::strstr(code.name, "_tiles.") ? tiles_build_flags : build_flags;
}

std::string hex(const void* data, size_t bytes) {
  std::string text;
  for (size_t i = 0; i < bytes; ++i)
    text += fmt::format("{:02x}", static_cast<const uint8_t*>(data)[i]);
  return text;
}

/// Devices of one type, which run the same machine code: vendor, device and revision, with which
/// the UUID of Intel's driver begins; the rest of it is the device's place.
std::string type_of(ze_device_handle_t device) {
  ze_device_properties_t properties = {.stype = ZE_STRUCTURE_TYPE_DEVICE_PROPERTIES};
  check(api().deviceGetProperties(device, &properties), "zeDeviceGetProperties");
  return fmt::format("{} {} {} {}", properties.name, properties.vendorId, properties.deviceId,
                     hex(properties.uuid.id, 6));
}

/// The name of a cached native binary: a hash of everything that it depends on.
std::string cache_key(const std::string& type, const Code& code) {
  ze_driver_properties_t versions = {.stype = ZE_STRUCTURE_TYPE_DRIVER_PROPERTIES};
  check(api().driverGetProperties(driver().handle, &versions), "zeDriverGetProperties");
  const std::string built_by =
      fmt::format("{} {} {} {}", type, hex(versions.uuid.id, sizeof versions.uuid.id),
                  versions.driverVersion, flags_of(code));
  const uint64_t sums[] = {XXH3_64bits(code.spirv.data(), code.spirv.size()),
                           XXH3_64bits(built_by.data(), built_by.size())};
  return std::string(code.name) + "." + hex(sums, sizeof sums);
}

ze_result_t create(ze_device_handle_t device, ze_module_format_t format, const uint8_t* data,
                   size_t bytes, const char* flags, ze_module_handle_t& module, std::string& log) {
  const ze_module_desc_t wanted = {.stype = ZE_STRUCTURE_TYPE_MODULE_DESC,
                                   .format = format,
                                   .inputSize = bytes,
                                   .pInputModule = data,
                                   .pBuildFlags = flags};
  ze_module_build_log_handle_t build_log = nullptr;
  const ze_result_t result =
      api().moduleCreate(driver().context, device, &wanted, &module, &build_log);
  if (!build_log) return result;
  size_t length = 0;
  if (api().moduleBuildLogGetString(build_log, &length, nullptr) == ZE_RESULT_SUCCESS &&
      length > 0) {
    log.resize(length);
    api().moduleBuildLogGetString(build_log, &length, log.data());
    while (!log.empty() && log.back() == '\0') log.pop_back();
  }
  api().moduleBuildLogDestroy(build_log);
  return result;
}

/// A module on all devices of one type. One thread at a time builds it; the other devices load what
/// was built.
struct Module {
  std::mutex mutex;
  std::vector<uint8_t> native;
  std::map<int, ze_module_handle_t> by_device;
};

ze_module_handle_t build(int index, const std::string& type, const Code& code,
                         std::vector<uint8_t>& native) {
  static const NativeCache cache;
  const ze_device_handle_t device = handle_of(index);
  const std::string key = cache_key(type, code);
  ze_module_handle_t module = nullptr;
  std::string log;
  if (native.empty()) native = cache.find(key);
  if (!native.empty() && create(device, ZE_MODULE_FORMAT_NATIVE, native.data(), native.size(),
                                flags_of(code), module, log) == ZE_RESULT_SUCCESS)
    return module;
  log.clear();
  const ze_result_t result = create(device, ZE_MODULE_FORMAT_IL_SPIRV, code.spirv.data(),
                                    code.spirv.size(), flags_of(code), module, log);
  check(
      result,
      fmt::format("module {}{}", code.name, log.empty() ? "" : fmt::format(" ({})", log)).c_str());
  size_t bytes = 0;
  native.clear();
  if (api().moduleGetNativeBinary(module, &bytes, nullptr) == ZE_RESULT_SUCCESS && bytes > 0) {
    native.resize(bytes);
    if (api().moduleGetNativeBinary(module, &bytes, native.data()) == ZE_RESULT_SUCCESS)
      cache.keep(key, native);
    else
      native.clear();
  }
  return module;
}

Features query_features(ze_device_handle_t device) {
  ze_device_compute_properties_t compute = {.stype = ZE_STRUCTURE_TYPE_DEVICE_COMPUTE_PROPERTIES};
  check(api().deviceGetComputeProperties(device, &compute), "zeDeviceGetComputeProperties");
  // Intel's extension, which newer headers have: bit 1 of the flags is DPAS.
  struct DotProducts {
    ze_structure_type_t stype = static_cast<ze_structure_type_t>(0x00030013);
    void* pNext = nullptr;
    uint32_t flags = UINT32_MAX;  // kept by a driver without the extension
  } dot_products;
  ze_device_module_properties_t modules = {.stype = ZE_STRUCTURE_TYPE_DEVICE_MODULE_PROPERTIES,
                                           .pNext = &dot_products};
  check(api().deviceGetModuleProperties(device, &modules), "zeDeviceGetModuleProperties");
  uint32_t count = 0;
  check(api().deviceGetMemoryProperties(device, &count, nullptr), "zeDeviceGetMemoryProperties");
  std::vector<ze_device_memory_properties_t> parts(
      count, {.stype = ZE_STRUCTURE_TYPE_DEVICE_MEMORY_PROPERTIES});
  check(api().deviceGetMemoryProperties(device, &count, parts.data()),
        "zeDeviceGetMemoryProperties");
  Features features;
  for (uint32_t i = 0; i < compute.numSubGroupSizes; ++i)
    features.sub_groups.push_back(static_cast<int>(compute.subGroupSizes[i]));
  features.rounded_divide_sqrt = (modules.fp32flags & ZE_DEVICE_FP_FLAG_ROUNDED_DIVIDE_SQRT) != 0;
  features.may_have_dpas = (dot_products.flags & 2) != 0;
  for (const ze_device_memory_properties_t& part : parts)
    features.memory_bytes += static_cast<int64_t>(part.totalSize);
  features.local_bytes = static_cast<int64_t>(compute.maxSharedLocalMemory);
  return features;
}

/// The features and built modules of all devices of the process.
struct Devices {
  std::mutex mutex;
  std::map<int, Features> features;
  std::map<std::pair<std::string, const unsigned char*>, Module> modules;  // by type of device

  static Devices& all() {
    static Devices& devices = *new Devices;  // never destroyed, like the driver
    return devices;
  }
};

}  // namespace

const Features& features_of(int index) {
  Devices& devices = Devices::all();
  std::lock_guard lock(devices.mutex);
  const auto known = devices.features.find(index);
  if (known != devices.features.end()) return known->second;
  return devices.features.emplace(index, query_features(handle_of(index))).first->second;
}

ze_module_handle_t module_of(int index, const Code& code) {
  const std::string type = type_of(handle_of(index));
  Devices& devices = Devices::all();
  std::unique_lock lock(devices.mutex);
  Module& module = devices.modules[{type, code.spirv.data()}];
  lock.unlock();  // other modules are built at the same time
  std::lock_guard own(module.mutex);
  ze_module_handle_t& handle = module.by_device[index];
  if (!handle) handle = build(index, type, code, module.native);
  return handle;
}

}  // namespace zg::hpu
