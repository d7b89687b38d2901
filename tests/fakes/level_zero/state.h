#pragma once

#include <condition_variable>
#include <mutex>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "tests/fakes/level_zero/memory.h"
#include "tests/fakes/level_zero/objects.h"
#include "tests/fakes/level_zero/report.h"

namespace zg::test_driver {

/// The driver's state. Each function of the interface locks the one mutex.
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<Device>> devices;
  Memory memory;
  std::vector<Queue*> queues;  ///< in order of creation
  uint64_t queues_made = 0;
  uint64_t activity = 0;  ///< incremented by every event that may end a wait
  bool running = false;   ///< a command runs; only one at a time, on any device
  bool lost = false;      ///< a command failed; every later call fails
  std::tuple<std::unordered_set<const Context*>, std::unordered_set<const EventPool*>,
             std::unordered_set<const Event*>, std::unordered_set<const Queue*>,
             std::unordered_set<const CommandList*>, std::unordered_set<const BuildLog*>,
             std::unordered_set<const Module*>, std::unordered_set<const Kernel*>,
             std::unordered_set<const PhysicalMemory*>>
      live;
};
State& state();  ///< never destroyed: threads may outlive main()

/// Create and destroy handles and look up their objects. The lookup reports an invalid or destroyed
/// handle and returns null. The caller holds the mutex.
template <class T, class Handle>
T* make_handle(Handle* handle) {
  T* const made = new T;
  std::get<std::unordered_set<const T*>>(state().live).insert(made);
  *handle = reinterpret_cast<Handle>(made);
  return made;
}

template <class T, class Handle>
T* from_handle(Handle handle, const char* function) {
  T* const object = reinterpret_cast<T*>(handle);
  if (std::get<std::unordered_set<const T*>>(state().live).contains(object)) return object;
  report("%s: %p is not a handle of its kind, or was destroyed", function,
         static_cast<const void*>(object));
  return nullptr;
}

template <class T>
void end_handle(T* object) {
  std::get<std::unordered_set<const T*>>(state().live).erase(object);
  delete object;
}

template <class Handle>
Device* device_of(Handle handle, const char* function) {
  for (const auto& device : state().devices) {
    if (reinterpret_cast<Handle>(device.get()) == handle) return device.get();
  }
  report("%s: no such device", function);
  return nullptr;
}

/// Result of zeDriverGetExtensionFunctionAddress; null: unknown name.
void* extension_function(const char* name);

}  // namespace zg::test_driver

/// Begins the function that fills the loader's table of functions for objects of one kind.
#define ZG_TABLE(Kind, kind)                                                                      \
  static void fill_##kind(ze_##kind##_dditable_t* table);                                         \
  ZE_DLLEXPORT ze_result_t ZE_APICALL zeGet##Kind##ProcAddrTable(ze_api_version_t,                \
                                                                 ze_##kind##_dditable_t* table) { \
    *table = {};                                                                                  \
    fill_##kind(table);                                                                           \
    return ZE_RESULT_SUCCESS;                                                                     \
  }                                                                                               \
  static void fill_##kind(ze_##kind##_dditable_t* table)
