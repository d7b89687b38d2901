#include "tests/hpu/level_zero.h"

#include "zerograd/kernels/hpu/modules.h"

namespace zg::test {
namespace {

template <class T>
T described(ze_structure_type_t type) {
  T description = {};
  description.stype = type;
  return description;
}

}  // namespace

LevelZero::LevelZero(uint32_t index) {
  ZG_CHECK_ZE(zeInit(0));
  uint32_t count = 1;
  ZG_CHECK_ZE(zeDriverGet(&count, &driver));
  count = 0;
  ZG_CHECK_ZE(zeDeviceGet(driver, &count, nullptr));
  std::vector<ze_device_handle_t> devices(count);
  ZG_CHECK_ZE(zeDeviceGet(driver, &count, devices.data()));
  device = devices.at(index);
  const auto of_context = described<ze_context_desc_t>(ZE_STRUCTURE_TYPE_CONTEXT_DESC);
  ZG_CHECK_ZE(zeContextCreate(driver, &of_context, &context));
  auto of_list = described<ze_command_queue_desc_t>(ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC);
  of_list.mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
  ZG_CHECK_ZE(zeCommandListCreateImmediate(context, device, &of_list, &list));
  auto of_pool = described<ze_event_pool_desc_t>(ZE_STRUCTURE_TYPE_EVENT_POOL_DESC);
  of_pool.flags = ZE_EVENT_POOL_FLAG_HOST_VISIBLE | ZE_EVENT_POOL_FLAG_KERNEL_TIMESTAMP;
  of_pool.count = 4;
  ZG_CHECK_ZE(zeEventPoolCreate(context, &of_pool, 1, &device, &pool));
  auto of_event = described<ze_event_desc_t>(ZE_STRUCTURE_TYPE_EVENT_DESC);
  of_event.signal = of_event.wait = ZE_EVENT_SCOPE_FLAG_HOST;
  ZG_CHECK_ZE(zeEventCreate(pool, &of_event, &done));
}

LevelZero::~LevelZero() {
  for (const auto kernel : kernels_) zeKernelDestroy(kernel);
  for (const auto module : modules_) zeModuleDestroy(module);
  zeCommandListDestroy(list);
  zeEventDestroy(done);
  zeEventPoolDestroy(pool);
  for (void* const p : allocations_) zeMemFree(context, p);
  zeContextDestroy(context);
}

void* LevelZero::allocate(size_t bytes) {
  const auto description =
      described<ze_device_mem_alloc_desc_t>(ZE_STRUCTURE_TYPE_DEVICE_MEM_ALLOC_DESC);
  void* p = nullptr;
  ZG_CHECK_ZE(zeMemAllocDevice(context, &description, bytes, 64, device, &p));
  allocations_.push_back(p);
  return p;
}

void* LevelZero::allocate_host(size_t bytes) {
  const auto description =
      described<ze_host_mem_alloc_desc_t>(ZE_STRUCTURE_TYPE_HOST_MEM_ALLOC_DESC);
  void* p = nullptr;
  ZG_CHECK_ZE(zeMemAllocHost(context, &description, bytes, 64, &p));
  allocations_.push_back(p);
  return p;
}

void LevelZero::barrier() { ZG_CHECK_ZE(zeCommandListAppendBarrier(list, nullptr, 0, nullptr)); }

void LevelZero::wait() {
  ZG_CHECK_ZE(zeEventHostReset(done));
  ZG_CHECK_ZE(zeCommandListAppendBarrier(list, done, 0, nullptr));
  ZG_CHECK_ZE(zeEventHostSynchronize(done, UINT64_MAX));
}

void LevelZero::copy(void* to, const void* from, size_t bytes) {
  ZG_CHECK_ZE(zeCommandListAppendMemoryCopy(list, to, from, bytes, nullptr, 0, nullptr));
}

ze_module_handle_t LevelZero::module(const char* embedded_name, const char* flags) {
  const hpu::EmbeddedModule* const embedded = hpu::find_module(embedded_name);
  if (!embedded) throw std::runtime_error(std::string("no module ") + embedded_name);
  auto description = described<ze_module_desc_t>(ZE_STRUCTURE_TYPE_MODULE_DESC);
  description.format = ZE_MODULE_FORMAT_IL_SPIRV;
  description.inputSize = embedded->bytes;
  description.pInputModule = embedded->spirv;
  description.pBuildFlags = flags;
  ze_module_handle_t made = nullptr;
  ze_module_build_log_handle_t log = nullptr;
  const ze_result_t result = zeModuleCreate(context, device, &description, &made, &log);
  std::string words(4096, '\0');
  size_t bytes = words.size();
  ZG_CHECK_ZE(zeModuleBuildLogGetString(log, &bytes, words.data()));
  ZG_CHECK_ZE(zeModuleBuildLogDestroy(log));
  if (result != ZE_RESULT_SUCCESS) throw std::runtime_error(words.c_str());
  modules_.push_back(made);
  return made;
}

ze_kernel_handle_t LevelZero::kernel(ze_module_handle_t of, const char* name) {
  auto description = described<ze_kernel_desc_t>(ZE_STRUCTURE_TYPE_KERNEL_DESC);
  description.pKernelName = name;
  ze_kernel_handle_t made = nullptr;
  ZG_CHECK_ZE(zeKernelCreate(of, &description, &made));
  kernels_.push_back(made);
  return made;
}

}  // namespace zg::test
