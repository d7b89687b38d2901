#include <level_zero/ze_ddi.h>

#include <algorithm>
#include <cstring>

#include "tests/fakes/level_zero/append.h"
#include "tests/fakes/level_zero/launch.h"
#include "tests/fakes/level_zero/scheduler.h"
#include "tests/fakes/level_zero/settings.h"

// Kernels, their arguments and their launch.
namespace zg::test_driver {
namespace {

ze_result_t kernel_create(ze_module_handle_t module_handle, const ze_kernel_desc_t* description,
                          ze_kernel_handle_t* handle) {
  Lock lock(state().mutex);
  Module* const module = from_handle<Module>(module_handle, "zeKernelCreate");
  if (!module) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  if (!module->unlinked.empty())
    return refuse(ZE_RESULT_ERROR_INVALID_MODULE_UNLINKED, "zeKernelCreate: the device lacks %s",
                  module->unlinked.c_str());
  const auto& kernels = module->contents.kernels;
  const auto found = std::ranges::find(kernels, description->pKernelName, &KernelSignature::name);
  if (found == kernels.end())
    return refuse(ZE_RESULT_ERROR_INVALID_KERNEL_NAME, "zeKernelCreate: the module has no %s",
                  description->pKernelName);
  Kernel* const kernel = make_handle<Kernel>(handle);
  kernel->module = module;
  kernel->program = module->program;
  kernel->signature = *found;
  kernel->arguments.resize(found->arguments.size());
  return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_destroy(ze_kernel_handle_t handle) {
  Lock lock(state().mutex);
  Kernel* const kernel = from_handle<Kernel>(handle, "zeKernelDestroy");
  if (!kernel) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  end_handle(kernel);
  return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_group_size(ze_kernel_handle_t handle, uint32_t x, uint32_t y, uint32_t z) {
  Lock lock(state().mutex);
  Kernel* const kernel = from_handle<Kernel>(handle, "zeKernelSetGroupSize");
  if (!kernel) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const Extent group{x, y, z};
  const auto& required = kernel->signature.required_group;
  if (!x || !y || !z || uint64_t{x} * y * z > most_items || (required[0] && required != group))
    return refuse(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION,
                  "zeKernelSetGroupSize: %s in groups of %u,%u,%u; %s %u,%u,%u",
                  kernel->signature.name.c_str(), x, y, z,
                  required[0] ? "it requires" : "the most items are 1024, not", required[0],
                  required[1], required[2]);
  kernel->group = group;
  return ZE_RESULT_SUCCESS;
}

const char* kind_of(const Argument& argument) {
  return argument.kind == ArgumentKind::value    ? "a value"
         : argument.kind == ArgumentKind::global ? "a pointer"
                                                 : "local memory";
}

ze_result_t kernel_argument(ze_kernel_handle_t handle, uint32_t index, size_t bytes,
                            const void* value) {
  Lock lock(state().mutex);
  Kernel* const kernel = from_handle<Kernel>(handle, "zeKernelSetArgumentValue");
  if (!kernel) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const char* const name = kernel->signature.name.c_str();
  const auto& arguments = kernel->signature.arguments;
  if (index >= arguments.size())
    return refuse(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_INDEX, "argument %u of %s: it has %zu",
                  index, name, arguments.size());
  const Argument& argument = arguments[index];
  ArgumentValue set{.set = true};
  if (argument.kind == ArgumentKind::local) {
    if (value || !bytes || bytes > local_memory)
      return refuse(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE,
                    "argument %u of %s is local memory: %zu bytes %s; expected 1 to %zu and null",
                    index, name, bytes, value ? "and an address" : "", local_memory);
    set.local_bytes = bytes;
  } else {
    if (bytes != argument.bytes)
      return refuse(ZE_RESULT_ERROR_INVALID_KERNEL_ARGUMENT_SIZE,
                    "argument %u of %s is %s of %zu bytes; got %zu", index, name, kind_of(argument),
                    argument.bytes, bytes);
    set.bytes.resize(bytes);
    if (value) {
      std::memcpy(set.bytes.data(), value, bytes);
      constexpr void* none = nullptr;
      if (argument.kind == ArgumentKind::global && !std::memcmp(value, &none, sizeof none))
        return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                      "argument %u of %s: its value is a pointer that is null; expected no value",
                      index, name);
    } else if (argument.kind == ArgumentKind::value) {
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "argument %u of %s: its value is at null",
                    index, name);
    }
  }
  kernel->arguments[index] = std::move(set);
  return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_properties(ze_kernel_handle_t handle, ze_kernel_properties_t* properties) {
  Lock lock(state().mutex);
  Kernel* const kernel = from_handle<Kernel>(handle, "zeKernelGetProperties");
  if (!kernel) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  ze_kernel_properties_t answer = {};
  answer.stype = properties->stype;
  answer.pNext = properties->pNext;
  const KernelSignature& signature = kernel->signature;
  answer.numKernelArgs = static_cast<uint32_t>(signature.arguments.size());
  answer.requiredGroupSizeX = signature.required_group[0];
  answer.requiredGroupSizeY = signature.required_group[1];
  answer.requiredGroupSizeZ = signature.required_group[2];
  answer.requiredSubgroupSize = signature.required_sub_group;
  answer.maxSubgroupSize = signature.required_sub_group ? signature.required_sub_group : 16;
  answer.maxNumSubgroups = static_cast<uint32_t>(most_items) / answer.maxSubgroupSize;
  *properties = answer;
  return ZE_RESULT_SUCCESS;
}

ze_result_t kernel_indirect(ze_kernel_handle_t, ze_kernel_indirect_access_flags_t) {
  return ZE_RESULT_SUCCESS;
}

/// Checks that all arguments are set and that the list's device can access the memory that they
/// point to; writes that memory to `memory`.
ze_result_t check_arguments(const Kernel& kernel, const CommandList& list,
                            std::vector<Range>& memory) {
  const char* const name = kernel.signature.name.c_str();
  size_t local_bytes = 0;
  for (size_t i = 0; i < kernel.arguments.size(); ++i) {
    const ArgumentValue& value = kernel.arguments[i];
    if (!value.set)
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "argument %zu of %s was never set", i, name);
    local_bytes += value.local_bytes;
    if (kernel.signature.arguments[i].kind != ArgumentKind::global) continue;
    const void* pointer;
    std::memcpy(&pointer, value.bytes.data(), sizeof pointer);
    if (!pointer) continue;
    const Allocation* const a = state().memory.find(pointer);
    if (!a)
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                    "argument %zu of %s: %p is not memory of Level Zero", i, name, pointer);
    if (a->imported)
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                    "argument %zu of %s: %p is imported memory of the process, which has another "
                    "address on the device; only copies may use it",
                    i, name, pointer);
    if (a->device && a->device != list.device && !settings().peers)
      return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT,
                    "argument %zu of %s: memory of %s, the list is of %s", i, name, a->device->name,
                    list.device->name);
    memory.push_back({pointer, 0});
  }
  if (local_bytes > local_memory)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "%s: %zu bytes of local memory; there are %zu",
                  name, local_bytes, local_memory);
  return ZE_RESULT_SUCCESS;
}

}  // namespace

ze_result_t append_kernel(ze_command_list_handle_t list_handle, ze_kernel_handle_t handle,
                          const ze_group_count_t* groups, ze_event_handle_t signal, uint32_t count,
                          ze_event_handle_t* waits) {
  Lock lock(state().mutex);
  const char* const function = "zeCommandListAppendLaunchKernel";
  CommandList* const list = from_handle<CommandList>(list_handle, function);
  Kernel* const kernel = from_handle<Kernel>(handle, function);
  if (!list || !kernel) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  const char* const name = kernel->signature.name.c_str();
  if (!kernel->group[0])
    return refuse(ZE_RESULT_ERROR_INVALID_GROUP_SIZE_DIMENSION,
                  "launch of %s without zeKernelSetGroupSize", name);
  if (list->immediate && !list->immediate->computes)
    return refuse(ZE_RESULT_ERROR_INVALID_COMMAND_LIST_TYPE,
                  "launch of %s by a list of a copy engine", name);
  if (!groups->groupCountX || !groups->groupCountY || !groups->groupCountZ)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "launch of %s with no groups", name);
  if (kernel->module->device != list->device)
    return refuse(ZE_RESULT_ERROR_INVALID_ARGUMENT, "launch of %s, of %s, by a list of %s", name,
                  kernel->module->device->name, list->device->name);
  Command command{.what = std::string("kernel ") + name};
  if (const ze_result_t bad = check_arguments(*kernel, *list, command.memory)) return bad;
  if (!set_events(command, signal, count, waits)) return ZE_RESULT_ERROR_INVALID_NULL_HANDLE;
  command.work = [launch = Launch{.program = kernel->program,
                                  .signature = kernel->signature,
                                  .arguments = kernel->arguments,
                                  .group = kernel->group,
                                  .groups = {groups->groupCountX, groups->groupCountY,
                                             groups->groupCountZ}}] { return run(launch); };
  return submit(lock, *list, std::move(command));
}

}  // namespace zg::test_driver

using namespace zg::test_driver;

ZG_TABLE(Kernel, kernel) {
  table->pfnCreate = kernel_create;
  table->pfnDestroy = kernel_destroy;
  table->pfnSetGroupSize = kernel_group_size;
  table->pfnSetArgumentValue = kernel_argument;
  table->pfnGetProperties = kernel_properties;
  table->pfnSetIndirectAccess = kernel_indirect;
}
