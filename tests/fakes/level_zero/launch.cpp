#include "tests/fakes/level_zero/launch.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "tests/fakes/level_zero/settings.h"

namespace zg::test_driver {
namespace {

constexpr size_t line = 64;

/// The sub-group size: the one that the kernel requires, else 16, which compilers choose most
/// often.
unsigned sub_group_of(const Launch& launch) {
  if (launch.signature.required_sub_group) return launch.signature.required_sub_group;
  const auto& sizes = settings().sub_groups;
  return sizes.empty() || std::ranges::find(sizes, 16u) != sizes.end() ? 16 : sizes.front();
}

/// Runs groups [first, last) on this thread, in a copy of the module that no other thread uses.
std::string run_on(unsigned copy, const Launch& launch, uint64_t seed, uint64_t first,
                   uint64_t last) {
  size_t local_bytes = 0;
  for (const ArgumentValue& a : launch.arguments)
    local_bytes += (a.local_bytes + line - 1) / line * line;
  std::vector<std::byte> local(local_bytes + line);
  void* begin = local.data();
  size_t room = local.size();
  std::align(line, local_bytes, begin, room);
  std::vector<void*> places(launch.arguments.size()), values(launch.arguments.size());
  std::byte* next = static_cast<std::byte*>(begin);
  for (size_t i = 0; i < values.size(); ++i) {
    const ArgumentValue& a = launch.arguments[i];
    places[i] = next;
    values[i] =
        a.local_bytes ? static_cast<void*>(&places[i]) : const_cast<std::byte*>(a.bytes.data());
    next += (a.local_bytes + line - 1) / line * line;
  }
  const Program::Kernel& kernel = launch.program->kernel(copy, launch.signature.name);
  const std::string what = "kernel " + launch.signature.name;
  device_does = what.c_str();
  std::string error = run_groups({.kernel = launch.signature.name.c_str(),
                                  .meets = kernel.meets,
                                  .item = kernel.item,
                                  .row = kernel.row,
                                  .poison = kernel.poison,
                                  .running = launch.program->running(copy),
                                  .arguments = values.data(),
                                  .dynamic_local = {begin, next},
                                  .groups = launch.groups,
                                  .local = launch.group,
                                  .sub_group = sub_group_of(launch),
                                  .seed = seed},
                                 first, last);
  device_does = nullptr;
  return error;
}

}  // namespace

std::string run(const Launch& launch) {
  constexpr uint64_t few_items = 4096;  // they run faster than a thread starts
  static std::atomic<uint64_t> launches{0};
  const uint64_t seed = settings().chaos ? settings().chaos + ++launches : 0;
  const uint64_t groups = uint64_t{launch.groups[0]} * launch.groups[1] * launch.groups[2];
  const uint64_t items = groups * launch.group[0] * launch.group[1] * launch.group[2];
  if (settings().threads < 2 || groups < 2 || items <= few_items)
    return run_on(0, launch, seed, 0, groups);
  std::string other_error;
  std::thread other([&] { other_error = run_on(1, launch, seed, groups / 2, groups); });
  std::string error = run_on(0, launch, seed, 0, groups / 2);
  other.join();
  return error.empty() ? other_error : error;
}

}  // namespace zg::test_driver
