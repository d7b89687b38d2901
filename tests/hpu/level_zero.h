#pragma once

#include <level_zero/ze_api.h>

#include <span>
#include <stdexcept>
#include <string>
#include <vector>

// A thin layer over Level Zero for tests that do not use the backend.
namespace zg::test {

inline void check(ze_result_t result, const char* call) {
  if (result == ZE_RESULT_SUCCESS) return;
  char code[32];
  std::snprintf(code, sizeof code, " gave 0x%x", result);
  throw std::runtime_error(call + std::string(code));
}
#define ZG_CHECK_ZE(call) ::zg::test::check(call, #call)

/// A device with one asynchronous immediate list and an event to wait for it.
class LevelZero {
 public:
  explicit LevelZero(uint32_t index = 0);
  ~LevelZero();
  LevelZero(const LevelZero&) = delete;
  LevelZero& operator=(const LevelZero&) = delete;

  void* allocate(size_t bytes);       ///< device memory; lives as long as this object
  void* allocate_host(size_t bytes);  ///< host memory; lives as long as this object
  void barrier();
  void wait();  ///< waits until all appended commands have finished
  void copy(void* to, const void* from, size_t bytes);

  template <class T>
  T* upload(std::span<const T> values) {
    T* const place = static_cast<T*>(allocate(values.size_bytes()));
    copy(place, values.data(), values.size_bytes());
    wait();
    return place;
  }
  template <class T>
  std::vector<T> download(const T* place, size_t count) {
    std::vector<T> values(count);
    copy(values.data(), place, count * sizeof(T));
    wait();
    return values;
  }

  ze_module_handle_t module(const char* embedded_name, const char* flags = rounded);
  /// Without this build flag, divisions are not correctly rounded.
  static constexpr const char* rounded = "-cl-fp32-correctly-rounded-divide-sqrt";
  ze_kernel_handle_t kernel(ze_module_handle_t module, const char* name);

  ze_driver_handle_t driver;
  ze_device_handle_t device;
  ze_context_handle_t context;
  ze_command_list_handle_t list;
  ze_event_pool_handle_t pool;
  ze_event_handle_t done;

 private:
  std::vector<void*> allocations_;
  std::vector<ze_module_handle_t> modules_;
  std::vector<ze_kernel_handle_t> kernels_;
};

/// Local memory as an argument.
struct LocalBytes {
  size_t bytes;
};

template <class T>
void set_argument(ze_kernel_handle_t kernel, uint32_t index, const T& value) {
  ZG_CHECK_ZE(zeKernelSetArgumentValue(kernel, index, sizeof value, &value));
}
inline void set_argument(ze_kernel_handle_t kernel, uint32_t index, const LocalBytes& local) {
  ZG_CHECK_ZE(zeKernelSetArgumentValue(kernel, index, local.bytes, nullptr));
}

/// Appends a launch in one dimension, and a barrier.
template <class... Arguments>
void launch(LevelZero& l0, ze_kernel_handle_t kernel, uint32_t groups, uint32_t items,
            const Arguments&... arguments) {
  uint32_t index = 0;
  (set_argument(kernel, index++, arguments), ...);
  ZG_CHECK_ZE(zeKernelSetGroupSize(kernel, items, 1, 1));
  const ze_group_count_t count{groups, 1, 1};
  ZG_CHECK_ZE(zeCommandListAppendLaunchKernel(l0.list, kernel, &count, nullptr, 0, nullptr));
  l0.barrier();
}

}  // namespace zg::test
