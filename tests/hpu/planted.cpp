// Programs with one mistake each, which the test driver must report: planted_hpu_bugs NAME [mended]
#include <cstdio>
#include <map>

#include "tests/hpu/level_zero.h"
#include "zerograd/runtime/cpu/poison.h"

using namespace zg::test;

namespace {

constexpr uint32_t count = 256, items = 64, groups = count / items;

struct Case {
  LevelZero l0;
  ze_module_handle_t module = l0.module("planted");
  ze_kernel_handle_t fill = l0.kernel(module, "fill"), add = l0.kernel(module, "add");
  int* a = static_cast<int*>(l0.allocate(count * sizeof(int)));
  int* b = static_cast<int*>(l0.allocate(count * sizeof(int)));
  bool mended = false;

  /// Appends a launch without a barrier after it.
  template <class... Arguments>
  void append(ze_command_list_handle_t list, ze_kernel_handle_t kernel, const Arguments&... all) {
    uint32_t index = 0;
    (set_argument(kernel, index++, all), ...);
    ZG_CHECK_ZE(zeKernelSetGroupSize(kernel, items, 1, 1));
    const ze_group_count_t of{groups, 1, 1};
    ZG_CHECK_ZE(zeCommandListAppendLaunchKernel(list, kernel, &of, nullptr, 0, nullptr));
  }
  ze_event_handle_t event(uint32_t index) {
    ze_event_desc_t description = {};
    description.stype = ZE_STRUCTURE_TYPE_EVENT_DESC;
    description.index = index;
    description.signal = description.wait = ZE_EVENT_SCOPE_FLAG_HOST;
    ze_event_handle_t made;
    ZG_CHECK_ZE(zeEventCreate(l0.pool, &description, &made));
    return made;
  }
};

size_t right(const std::vector<int>& values, int want) {
  size_t n = 0;
  for (const int v : values) n += v == want;
  return n;
}

void report(ze_result_t result) { std::fprintf(stderr, "gave 0x%x\n", result); }

void missing_barrier(Case& c) {
  for (int i = 0; i < 4; ++i) {
    c.append(c.l0.list, c.fill, c.a, i);
    if (c.mended) c.l0.barrier();
  }
  if (c.mended) c.l0.barrier();
  c.append(c.l0.list, c.add, c.b, c.a, 10);
  if (c.mended) c.l0.barrier();
  std::vector<int> got(count);
  c.l0.copy(got.data(), c.b, count * sizeof(int));
  c.l0.wait();
  std::puts(right(got, 13) == count ? "right" : "wrong");
}

void missing_barrier_between_lists(Case& c) {
  ze_command_queue_desc_t description = {};
  description.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  description.mode = ZE_COMMAND_QUEUE_MODE_ASYNCHRONOUS;
  ze_command_list_handle_t other;
  ZG_CHECK_ZE(zeCommandListCreateImmediate(c.l0.context, c.l0.device, &description, &other));
  ze_event_handle_t ready = c.event(1), there = c.event(2);
  c.append(c.l0.list, c.fill, c.a, 3);
  ZG_CHECK_ZE(zeCommandListAppendBarrier(c.l0.list, ready, 0, nullptr));
  if (c.mended) ZG_CHECK_ZE(zeCommandListAppendWaitOnEvents(other, 1, &ready));
  c.append(other, c.add, c.b, c.a, 10);
  ZG_CHECK_ZE(zeCommandListAppendBarrier(other, there, 0, nullptr));
  ZG_CHECK_ZE(zeEventHostSynchronize(there, UINT64_MAX));
  std::puts(right(c.l0.download(c.b, count), 13) == count ? "right" : "wrong");
  ZG_CHECK_ZE(zeEventDestroy(ready));
  ZG_CHECK_ZE(zeEventDestroy(there));
  ZG_CHECK_ZE(zeCommandListDestroy(other));
}

void missing_host_sync(Case& c) {
  std::vector<int> got(count, -1);
  c.append(c.l0.list, c.fill, c.a, 5);
  c.l0.barrier();
  c.l0.copy(got.data(), c.a, count * sizeof(int));
  std::fprintf(stderr, "before the wait: %zu of %u are right\n", right(got, 5), count);
  c.l0.wait();
  std::fprintf(stderr, "after it: %zu\n", right(got, 5));
}

/// The event is still signalled by an earlier command.
void stale_event(Case& c) {
  c.l0.wait();
  std::vector<int> got(count, -1);
  c.append(c.l0.list, c.fill, c.a, 5);
  c.l0.barrier();
  c.l0.copy(got.data(), c.a, count * sizeof(int));
  ZG_CHECK_ZE(zeCommandListAppendBarrier(c.l0.list, c.l0.done, 0, nullptr));
  ZG_CHECK_ZE(zeEventHostSynchronize(c.l0.done, UINT64_MAX));
  std::fprintf(stderr, "%zu of %u are right\n", right(got, 5), count);
}

void freed_too_early(Case& c) {
  c.append(c.l0.list, c.fill, c.a, 5);
  report(zeMemFree(c.l0.context, c.a));
  c.l0.wait();
}

void event_reset_too_early(Case& c) {
  ZG_CHECK_ZE(zeCommandListAppendBarrier(c.l0.list, c.l0.done, 0, nullptr));
  report(zeEventHostReset(c.l0.done));
  c.l0.wait();
}

void divergent_barrier(Case& c) {
  launch(c.l0, c.l0.kernel(c.module, "divergent_barrier"), 2, 32, c.a);
  c.l0.wait();
}

void divergent_sub_group(Case& c) {
  launch(c.l0, c.l0.kernel(c.l0.module("planted.sg16"), "divergent_sub_group"), 2, 32, c.a);
  c.l0.wait();
}

void block(Case& c, int first, int of_lane) {
  launch(c.l0, c.l0.kernel(c.l0.module("planted.sg16"), "block"), 1, 16, c.a, first, of_lane);
  c.l0.wait();
}
void unaligned_block(Case& c) { block(c, 2, 0); }
void scattered_block(Case& c) { block(c, 0, 4); }

void missing_local_barrier(Case& c) {
  launch(c.l0, c.l0.kernel(c.module, "missing_local_barrier"), 1, 32, c.a);
  for (const float v : c.l0.download(reinterpret_cast<const float*>(c.a), 32)) {
    if (v != v) std::fprintf(stderr, "a work-item read what was not written: %f\n", v);
  }
}

void wrong_size(Case& c) {
  const int64_t value = 5;
  report(zeKernelSetArgumentValue(c.fill, 1, sizeof value, &value));
}

void wrong_index(Case& c) {
  const int value = 5;
  report(zeKernelSetArgumentValue(c.fill, 2, sizeof value, &value));
}

void unset(Case& c) {
  set_argument(c.fill, 0, c.a);
  ZG_CHECK_ZE(zeKernelSetGroupSize(c.fill, items, 1, 1));
  const ze_group_count_t of{groups, 1, 1};
  report(zeCommandListAppendLaunchKernel(c.l0.list, c.fill, &of, nullptr, 0, nullptr));
}

void foreign_pointer(Case& c) {
  std::vector<int> of_the_host(count);
  set_argument(c.fill, 0, of_the_host.data());
  set_argument(c.fill, 1, 5);
  ZG_CHECK_ZE(zeKernelSetGroupSize(c.fill, items, 1, 1));
  const ze_group_count_t of{groups, 1, 1};
  report(zeCommandListAppendLaunchKernel(c.l0.list, c.fill, &of, nullptr, 0, nullptr));
}

void other_device(Case& c) {
  LevelZero second(1);
  set_argument(c.fill, 0, second.allocate(count * sizeof(int)));
  set_argument(c.fill, 1, 5);
  ZG_CHECK_ZE(zeKernelSetGroupSize(c.fill, items, 1, 1));
  const ze_group_count_t of{groups, 1, 1};
  report(zeCommandListAppendLaunchKernel(c.l0.list, c.fill, &of, nullptr, 0, nullptr));
}

void event_of_another_device(Case& c) {
  LevelZero second(1);
  report(zeCommandListAppendBarrier(c.l0.list, second.done, 0, nullptr));
}

/// Two chunks of device memory side by side, on this device.
struct Chunks {
  static constexpr size_t bytes = size_t{2} << 20;
  std::byte* begin = nullptr;
  explicit Chunks(LevelZero& on, size_t each = bytes, size_t first = 0) {
    void* place = nullptr;
    ZG_CHECK_ZE(zeVirtualMemReserve(on.context, reinterpret_cast<void*>(bytes),  // NOLINT: a hint
                                    first + 2 * each, &place));
    begin = static_cast<std::byte*>(place) + first;
    for (int i = 0; i < 2; ++i) {
      ze_physical_mem_desc_t wanted = {};
      wanted.stype = ZE_STRUCTURE_TYPE_PHYSICAL_MEM_DESC;
      wanted.size = each;
      ze_physical_mem_handle_t memory;
      ZG_CHECK_ZE(zePhysicalMemCreate(on.context, on.device, &wanted, &memory));
      ZG_CHECK_ZE(zeVirtualMemMap(on.context, begin + static_cast<size_t>(i) * each, each, memory,
                                  0, ZE_MEMORY_ACCESS_ATTRIBUTE_READWRITE));
    }
  }
};

/// Half of the ints lie in the second chunk, of which the kernel got no address.
void peer_chunks(Case& c) {
  LevelZero second(1);
  const Chunks chunks(second);
  launch(c.l0, c.fill, groups, items, chunks.begin + Chunks::bytes - count / 2 * sizeof(int), 5);
  c.l0.wait();
}

void peer_copy(Case& c) {
  LevelZero second(1);
  const Chunks chunks(second);
  report(zeCommandListAppendMemoryCopy(c.l0.list, c.a, chunks.begin + Chunks::bytes - 16, 32,
                                       nullptr, 0, nullptr));
}

void unaligned_chunk(Case& c) { const Chunks chunks(c.l0, size_t{8} << 30, Chunks::bytes); }

/// Memory of the process, imported in two parts side by side.
struct Imports {
  static constexpr size_t bytes = 8192;
  std::vector<std::byte> memory = std::vector<std::byte>(3 * bytes);
  std::byte* begin = memory.data() + bytes / 2;
  explicit Imports(LevelZero& l0) {
    void* function = nullptr;
    ZG_CHECK_ZE(zeDriverGetExtensionFunctionAddress(l0.driver, "zexDriverImportExternalPointer",
                                                    &function));
    const auto import =
        reinterpret_cast<ze_result_t(ZE_APICALL*)(ze_driver_handle_t, void*, size_t)>(function);
    for (int i = 0; i < 2; ++i)
      ZG_CHECK_ZE(import(l0.driver, begin + static_cast<size_t>(i) * bytes, bytes));
  }
};

void imported_argument(Case& c) {
  const Imports imports(c.l0);
  set_argument(c.fill, 0, imports.begin);
  set_argument(c.fill, 1, 5);
  ZG_CHECK_ZE(zeKernelSetGroupSize(c.fill, items, 1, 1));
  const ze_group_count_t of{groups, 1, 1};
  report(zeCommandListAppendLaunchKernel(c.l0.list, c.fill, &of, nullptr, 0, nullptr));
}

void copy_across_imports(Case& c) {
  const Imports imports(c.l0);
  ZG_CHECK_ZE(
      zeCommandListAppendMemoryCopy(c.l0.list, c.a, imports.begin, 32, nullptr, 0, nullptr));
  report(zeCommandListAppendMemoryCopy(c.l0.list, c.a, imports.begin + Imports::bytes - 16, 32,
                                       nullptr, 0, nullptr));
  c.l0.wait();
}

void pointer_to_null(Case& c) {
  ZG_CHECK_ZE(zeKernelSetArgumentValue(c.fill, 0, sizeof(int*), nullptr));
  const int* const none = nullptr;
  report(zeKernelSetArgumentValue(c.fill, 0, sizeof none, &none));
}

void kernel_on_copy_engine(Case& c) {
  ze_command_queue_desc_t description = {};
  description.stype = ZE_STRUCTURE_TYPE_COMMAND_QUEUE_DESC;
  description.ordinal = 1;
  ze_command_list_handle_t copies;
  ZG_CHECK_ZE(zeCommandListCreateImmediate(c.l0.context, c.l0.device, &description, &copies));
  set_argument(c.fill, 0, c.a);
  set_argument(c.fill, 1, 5);
  ZG_CHECK_ZE(zeKernelSetGroupSize(c.fill, items, 1, 1));
  const ze_group_count_t of{groups, 1, 1};
  report(zeCommandListAppendLaunchKernel(copies, c.fill, &of, nullptr, 0, nullptr));
}

void wrong_group(Case& c) {
  report(zeKernelSetGroupSize(c.l0.kernel(c.module, "divergent_barrier"), 16, 1, 1));
}

void destroyed_handle(Case& c) {
  const ze_event_handle_t gone = c.event(1);
  ZG_CHECK_ZE(zeEventDestroy(gone));
  report(zeCommandListAppendBarrier(c.l0.list, gone, 0, nullptr));
}

void endless_wait(Case& c) {
  ze_event_handle_t never = c.event(1);
  ZG_CHECK_ZE(zeCommandListAppendWaitOnEvents(c.l0.list, 1, &never));
  ZG_CHECK_ZE(zeCommandListAppendBarrier(c.l0.list, c.l0.done, 0, nullptr));
  report(zeEventHostSynchronize(c.l0.done, UINT64_MAX));
}

void unknown_function(Case& c) { c.l0.module("unknown_function"); }

void host_dereference(Case& c) { std::printf("%d\n", *c.a); }

void out_of_bounds(Case& c) {
  launch(c.l0, c.fill, groups + 1, items, c.a, 5);
  c.l0.wait();
}

/// Poisons memory as the runtime does for bytes that belong to no tensor.
void past_a_tensor(Case& c) {
  const auto* const hole = reinterpret_cast<const std::byte*>(c.a + count / 2);
  zg::poison(hole, 64);
  c.append(c.l0.list, c.fill, c.a, 5);
  c.l0.wait();
  zg::unpoison(hole, 64);
}

void past_local_array(Case& c) {
  launch(c.l0, c.l0.kernel(c.module, "past_local_array"), 1, 32, c.a, 1);
  c.l0.wait();
}

void before_the_start(Case& c) {
  launch(c.l0, c.l0.kernel(c.module, "fill_below"), 1, items, c.a, 5);
  c.l0.wait();
}

const std::map<std::string, void (*)(Case&)> bugs{
    {"missing_barrier", missing_barrier},
    {"missing_barrier_between_lists", missing_barrier_between_lists},
    {"missing_host_sync", missing_host_sync},
    {"stale_event", stale_event},
    {"freed_too_early", freed_too_early},
    {"event_reset_too_early", event_reset_too_early},
    {"divergent_barrier", divergent_barrier},
    {"divergent_sub_group", divergent_sub_group},
    {"unaligned_block", unaligned_block},
    {"scattered_block", scattered_block},
    {"missing_local_barrier", missing_local_barrier},
    {"wrong_size", wrong_size},
    {"wrong_index", wrong_index},
    {"unset", unset},
    {"foreign_pointer", foreign_pointer},
    {"other_device", other_device},
    {"event_of_another_device", event_of_another_device},
    {"wrong_group", wrong_group},
    {"peer_chunks", peer_chunks},
    {"peer_copy", peer_copy},
    {"unaligned_chunk", unaligned_chunk},
    {"imported_argument", imported_argument},
    {"copy_across_imports", copy_across_imports},
    {"pointer_to_null", pointer_to_null},
    {"kernel_on_copy_engine", kernel_on_copy_engine},
    {"destroyed_handle", destroyed_handle},
    {"endless_wait", endless_wait},
    {"unknown_function", unknown_function},
    {"host_dereference", host_dereference},
    {"out_of_bounds", out_of_bounds},
    {"before_the_start", before_the_start},
    {"past_a_tensor", past_a_tensor},
    {"past_local_array", past_local_array},
};

}  // namespace

int main(int argc, char** argv) {
  const auto bug = bugs.find(argc > 1 ? argv[1] : "");
  if (bug == bugs.end()) {
    for (const auto& [name, run] : bugs) std::puts(name.c_str());
    return 2;
  }
  try {
    Case c;
    c.mended = argc > 2;
    bug->second(c);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
