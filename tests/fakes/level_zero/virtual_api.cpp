#include <level_zero/ze_ddi.h>

#include <map>
#include <string_view>

#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"

// Virtual memory: reserved addresses, and device memory mapped at them.
namespace zg::test_driver {
namespace {

/// Reserved, mapped and imported ranges. Guarded by the driver's mutex.
struct Addresses {
  std::map<std::byte*, size_t> reserved;
  std::map<std::byte*, PhysicalMemory*> mapped;
  std::map<std::byte*, size_t> imported;

  static Addresses& all() {
    static Addresses& addresses = *new Addresses;
    return addresses;
  }
  bool holds(std::byte* begin, size_t bytes) const {
    auto found = reserved.upper_bound(begin);
    if (found == reserved.begin()) return false;
    --found;
    return begin + bytes <= found->first + found->second;
  }
};

/// A pending command that accesses memory of the range.
const Command* command_in(const std::byte* begin, size_t bytes) {
  for (const Queue* queue : state().queues)
    for (const Command& command : queue->commands)
      for (const Range& range : command.memory)
        if (range.begin >= begin && range.begin < begin + bytes) return &command;
  return nullptr;
}

bool is_aligned(const void* begin, size_t bytes) {
  const size_t page = Memory::page_of(bytes);
  return reinterpret_cast<uintptr_t>(begin) % page == 0 && bytes % page == 0;
}

ze_result_t reserve(ze_context_handle_t, const void*, size_t bytes, void** begin) {
  Lock lock(state().mutex);
  if (!bytes || !is_aligned(nullptr, bytes))
    return refuse(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, "zeVirtualMemReserve: %zu bytes", bytes);
  std::byte* const made = Memory::reserve(bytes);
  if (!made) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  Addresses::all().reserved[made] = bytes;
  *begin = made;
  return ZE_RESULT_SUCCESS;
}

ze_result_t free_range(ze_context_handle_t, const void* pointer, size_t bytes) {
  Lock lock(state().mutex);
  auto& reserved = Addresses::all().reserved;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(pointer));
  const auto found = reserved.find(begin);
  if (found == reserved.end() || found->second != bytes)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "zeVirtualMemFree: %p, %zu bytes: not what was reserved", pointer, bytes);
  for (const auto& [at, memory] : Addresses::all().mapped)
    if (at >= begin && at < begin + bytes)
      return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                    "zeVirtualMemFree: memory is mapped behind %p", static_cast<void*>(at));
  Memory::free_reserved(begin, bytes);
  reserved.erase(found);
  return ZE_RESULT_SUCCESS;
}

ze_result_t page_size(ze_context_handle_t, ze_device_handle_t, size_t wanted, size_t* bytes) {
  *bytes = Memory::page_of(wanted);
  return ZE_RESULT_SUCCESS;
}

ze_result_t create(ze_context_handle_t, ze_device_handle_t handle, ze_physical_mem_desc_t* wanted,
                   ze_physical_mem_handle_t* made) {
  Lock lock(state().mutex);
  Device* const device = device_of(handle, "zePhysicalMemCreate");
  if (!device) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!wanted->size || !is_aligned(nullptr, wanted->size))
    return refuse(ZE_RESULT_ERROR_UNSUPPORTED_SIZE, "zePhysicalMemCreate: %zu bytes", wanted->size);
  if (device->allocated + wanted->size > settings().memory)
    return ZE_RESULT_ERROR_OUT_OF_DEVICE_MEMORY;
  device->allocated += wanted->size;
  *make_handle<PhysicalMemory>(made) = {device, wanted->size};
  return ZE_RESULT_SUCCESS;
}

ze_result_t destroy(ze_context_handle_t, ze_physical_mem_handle_t handle) {
  Lock lock(state().mutex);
  PhysicalMemory* const memory = from_handle<PhysicalMemory>(handle, "zePhysicalMemDestroy");
  if (!memory) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (memory->mapped)
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                  "zePhysicalMemDestroy: %zu bytes that are mapped", memory->bytes);
  memory->device->allocated -= memory->bytes;
  end_handle(memory);
  return ZE_RESULT_SUCCESS;
}

ze_result_t map(ze_context_handle_t, const void* pointer, size_t bytes,
                ze_physical_mem_handle_t handle, size_t offset,
                ze_memory_access_attribute_t access) {
  Lock lock(state().mutex);
  PhysicalMemory* const memory = from_handle<PhysicalMemory>(handle, "zeVirtualMemMap");
  if (!memory) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(pointer));
  Addresses& addresses = Addresses::all();
  if (!is_aligned(begin, bytes))
    return refuse(ZE_RESULT_ERROR_UNSUPPORTED_ALIGNMENT,
                  "zeVirtualMemMap: %p, %zu bytes: expected multiples of %zu", pointer, bytes,
                  Memory::page_of(bytes));
  if (offset != 0 || bytes != memory->bytes || memory->mapped || !addresses.holds(begin, bytes) ||
      state().memory.find(begin) || access != ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "zeVirtualMemMap: %p, %zu bytes: not reserved, in use, or not the whole memory",
                  pointer, bytes);
  if (!state().memory.map(begin, bytes, memory->device)) return ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY;
  addresses.mapped[begin] = memory;
  ++memory->mapped;
  if (settings().trace)
    report("%s: chunk %d, %zu bytes", memory->device->name, ++memory->device->chunks, bytes);
  return ZE_RESULT_SUCCESS;
}

ze_result_t unmap(ze_context_handle_t, const void* pointer, size_t bytes) {
  Lock lock(state().mutex);
  State& s = state();
  auto& mapped = Addresses::all().mapped;
  auto* const begin = static_cast<std::byte*>(const_cast<void*>(pointer));
  const auto found = mapped.find(begin);
  if (found == mapped.end() || found->second->bytes != bytes)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "zeVirtualMemUnmap: %p, %zu bytes: not what was mapped", pointer, bytes);
  if (const Command* const user = s.lost ? nullptr : command_in(begin, bytes))
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                  "zeVirtualMemUnmap: memory of which a command has not run: %s",
                  user->what.c_str());
  s.changed.wait(lock, [&] { return !s.running; });
  s.memory.unmap(begin, bytes);
  --found->second->mapped;
  mapped.erase(found);
  return ZE_RESULT_SUCCESS;
}

// Extensions of Intel's driver that are not in the standard.
ze_result_t ZE_APICALL import_pointer(ze_driver_handle_t, void* pointer, size_t bytes) {
  Lock lock(state().mutex);
  auto* const begin = static_cast<std::byte*>(pointer);
  if (!begin || !bytes || state().memory.find(begin))
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "zexDriverImportExternalPointer: %p, %zu bytes: nothing, or known already",
                  pointer, bytes);
  state().memory.import_host(begin, bytes);
  Addresses::all().imported[begin] = bytes;
  return ZE_RESULT_SUCCESS;
}

ze_result_t ZE_APICALL release_pointer(ze_driver_handle_t, void* pointer) {
  Lock lock(state().mutex);
  State& s = state();
  auto& imported = Addresses::all().imported;
  const auto found = imported.find(static_cast<std::byte*>(pointer));
  if (found == imported.end())
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                  "zexDriverReleaseImportedPointer: %p was not imported", pointer);
  if (const Command* const user = s.lost ? nullptr : command_in(found->first, found->second))
    return refuse(ZE_RESULT_ERROR_HANDLE_OBJECT_IN_USE,
                  "zexDriverReleaseImportedPointer: memory of which a command has not run: %s",
                  user->what.c_str());
  s.changed.wait(lock, [&] { return !s.running; });
  s.memory.release(found->first, found->second);
  imported.erase(found);
  return ZE_RESULT_SUCCESS;
}

}  // namespace

void* extension_function(const char* name) {
  const std::string_view wanted(name);
  if (wanted == "zexDriverImportExternalPointer") return reinterpret_cast<void*>(import_pointer);
  if (wanted == "zexDriverReleaseImportedPointer") return reinterpret_cast<void*>(release_pointer);
  return nullptr;
}

}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(VirtualMem, virtual_mem) {
  table->pfnReserve = reserve;
  table->pfnFree = free_range;
  table->pfnQueryPageSize = page_size;
  table->pfnMap = map;
  table->pfnUnmap = unmap;
}

ZG_TABLE(PhysicalMem, physical_mem) {
  table->pfnCreate = create;
  table->pfnDestroy = destroy;
}
