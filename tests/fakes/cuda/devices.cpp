#include "tests/fakes/cuda/devices.h"

#include <link.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/launch.h"

struct EmulatedContext {
  std::atomic<bool> created{false};
  std::atomic<int> sticky{cudaSuccess};
};

namespace zg::emulator {
namespace {

std::array<EmulatedContext, device_count>& devices() {
  static auto& all = *new std::array<EmulatedContext, device_count>;
  return all;
}

// The state of this thread.
thread_local int chosen_device = 0;
thread_local std::vector<CUcontext> context_stack;
thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string failed_launch;  // its error was not read

int index_of(CUcontext context) { return static_cast<int>(context - devices().data()); }

void create(int device) {
  [[maybe_unused]] static const bool reports = [] {
    // At the end, each process of a run reports the devices on which it has a context.
    if (std::getenv("ZG_EMULATOR_CONTEXTS"))
      std::atexit(
          [] { std::fprintf(stderr, "emulator: contexts on devices %s\n", contexts().c_str()); });
    return true;
  }();
  devices()[static_cast<size_t>(device)].created = true;
}

using Ranges = std::map<const std::byte*, size_t>;
std::mutex host_mutex;
Ranges& registrations() {
  static Ranges& ranges = *new Ranges;
  return ranges;
}
Ranges& allocations() {
  static Ranges& ranges = *new Ranges;
  return ranges;
}

/// The last range that begins at or before `place`, if it holds it.
Ranges::const_iterator holder(const Ranges& ranges, const std::byte* place) {
  auto next = ranges.upper_bound(place);
  if (next == ranges.begin()) return ranges.end();
  --next;
  return place < next->first + next->second ? next : ranges.end();
}

std::mutex planted_mutex;
std::map<std::string, int> planted;

}  // namespace

int current_device() {
  return context_stack.empty() ? chosen_device : index_of(context_stack.back());
}

void need_context() {
  if (context_stack.empty()) select_device(chosen_device);
}

void select_device(int index) {
  create(index);
  chosen_device = index;
  if (context_stack.empty()) context_stack.emplace_back();
  context_stack.back() = &devices()[static_cast<size_t>(index)];
}

CUresult retain_context(CUcontext* context, CUdevice device) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  create(device);
  *context = &devices()[static_cast<size_t>(device)];
  return CUDA_SUCCESS;
}
CUresult push_context(CUcontext context) {
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}
CUresult pop_context(CUcontext* context) {
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

std::string contexts() {
  std::string text;
  for (int device = 0; device < device_count; ++device)
    if (devices()[static_cast<size_t>(device)].created)
      text += (text.empty() ? "" : " ") + std::to_string(device);
  return text;
}

cudaError_t remembered(cudaError_t error) {
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

cudaError_t begin_call() {
  need_context();
  return remembered(static_cast<cudaError_t>(context_stack.back()->sticky.load()));
}

void note_failed_launch(const std::string& kernel, cudaError_t error) {
  failed_launch = kernel;
  last_error = error;
}

void expect_errors_asked(const char* call) {
  if (!failed_launch.empty())
    die(std::string(call) + ": the launch of " + failed_launch + " failed (" +
        cudaGetErrorString(last_error) + "), and cudaGetLastError() was not called");
}

void plant_failure(const std::string& call, int error) {
  const std::lock_guard lock(planted_mutex);
  planted[call] = error;
}
int planted_failure(const char* call) {
  const std::lock_guard lock(planted_mutex);
  const auto found = planted.find(call);
  if (found == planted.end()) return 0;
  const int error = found->second;
  planted.erase(found);
  return error;
}
void plant_sticky_error(cudaError_t error) { set_sticky_error(current_device(), error); }
void set_sticky_error(int device, cudaError_t error) {
  devices()[static_cast<size_t>(device)].sticky = error;
}

HostRange host_range(const void* place, size_t bytes) {
  const std::lock_guard lock(host_mutex);
  const auto* const start = static_cast<const std::byte*>(place);
  if (const auto found = holder(registrations(), start); found != registrations().end())
    return start + bytes <= found->first + found->second ? HostRange::pinned : HostRange::spans;
  const auto next = registrations().lower_bound(start);
  return next != registrations().end() && next->first < start + bytes ? HostRange::spans
                                                                      : HostRange::pageable;
}

cudaError_t register_host(void* place, size_t bytes) {
  if (host_range(place, bytes) != HostRange::pageable) return cudaErrorHostMemoryAlreadyRegistered;
  const std::lock_guard lock(host_mutex);
  registrations()[static_cast<const std::byte*>(place)] = bytes;
  return cudaSuccess;
}

cudaError_t unregister_host(void* place) {
  const std::lock_guard lock(host_mutex);
  return registrations().erase(static_cast<const std::byte*>(place)) == 1
             ? cudaSuccess
             : cudaErrorHostMemoryNotRegistered;
}

void note_host_allocation(void* place, size_t bytes) {
  const std::lock_guard lock(host_mutex);
  allocations()[static_cast<const std::byte*>(place)] = bytes;
}
void forget_host_allocation(void* place) {
  const std::lock_guard lock(host_mutex);
  allocations().erase(static_cast<const std::byte*>(place));
}
const std::byte* host_allocation(const void* place, size_t* bytes) {
  const std::lock_guard lock(host_mutex);
  const auto found = holder(allocations(), static_cast<const std::byte*>(place));
  if (found == allocations().end()) return nullptr;
  *bytes = found->second;
  return found->first;
}

bool is_in_process(const void* place) {
  constexpr uintptr_t page = 4096, first = uintptr_t{1} << 32, end = uintptr_t{1} << 47;
  const auto address = reinterpret_cast<uintptr_t>(place);
  unsigned char resident;
  return address >= first && address < end &&
         mincore(reinterpret_cast<void*>(address / page * page), 1, &resident) == 0;
}

bool is_in_program(const void* place) {
  using Segments = std::vector<std::pair<uintptr_t, uintptr_t>>;
  static const Segments segments = [] {
    Segments found;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* to) {
          for (int i = 0; i < info->dlpi_phnum; ++i) {
            const auto& header = info->dlpi_phdr[i];
            const uintptr_t start = info->dlpi_addr + header.p_vaddr;
            if (header.p_type == PT_LOAD)
              static_cast<Segments*>(to)->emplace_back(start, start + header.p_memsz);
          }
          return 0;
        },
        &found);
    return found;
  }();
  const auto address = reinterpret_cast<uintptr_t>(place);
  for (const auto& [begin, end] : segments)
    if (address >= begin && address < end) return true;
  return false;
}

}  // namespace zg::emulator

using namespace zg::emulator;

// A sticky error stays; any other is returned once.
cudaError_t cudaGetLastError() {
  failed_launch.clear();
  const cudaError_t error = std::exchange(last_error, cudaSuccess);
  return error;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
