#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "tests/fakes/cuda/devices.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/queues.h"

// The runtime's calls on emulated devices. Each checks what a GPU or its driver would.
struct EmulatedEvent {
  EmulatedStream* stream = nullptr;
  uint64_t ticket = 0;
};

namespace zg::emulator {
namespace {

/// The last device lacks the features of sm_90a, for the kernels that do not need them.
int compute_capability(int device) { return device == device_count - 1 ? 8 : 9; }
constexpr size_t memory_of_a_device = size_t{8} << 30;
constexpr size_t granted_shared = 48 << 10;  // dynamic shared memory without opt-in
constexpr size_t most_shared = 227 << 10;
constexpr size_t most_parameters = 4096;  // bytes
constexpr unsigned most_rows = 65535;     // of a grid: y and z
constexpr unsigned most_columns = 0x7fffffff;

/// Dynamic shared memory that kernels were granted, by device, and planted attributes.
std::mutex grants_mutex;
std::map<std::pair<int, const void*>, size_t> grants;
std::map<const void*, cudaFuncAttributes> planted_attributes;
constexpr cudaFuncAttributes usual_attributes = {.numRegs = 168, .sharedSizeBytes = 1024};

/// Loads a kernel at its first use on a device. The driver may wait for the device's work then.
void load(int device, const void* function) {
  static std::mutex mutex;
  static std::set<std::pair<int, const void*>> loaded;
  {
    const std::lock_guard lock(mutex);
    if (!loaded.insert({device, function}).second) return;
  }
  const SerialisedCall call("the loading of a kernel", device);
}

/// Null: those of a kernel whose __launch_bounds__ are the block's threads.
const cudaFuncAttributes* attributes_of(const void* function) {
  const std::lock_guard lock(grants_mutex);
  const auto found = planted_attributes.find(function);
  return found == planted_attributes.end() ? nullptr : &found->second;
}

/// Whether a block may have that much dynamic shared memory, beside the kernel's own arrays.
bool grants_shared(const Launch& launch, int device, size_t own_arrays) {
  const std::lock_guard lock(grants_mutex);
  const auto found = grants.find({device, launch.function});
  return launch.shared_bytes + own_arrays <= granted_shared ||
         (found != grants.end() && launch.shared_bytes <= found->second);
}

/// The registers of a block: each warp has those of its 32 threads, in units of 256.
bool fits_registers(uint64_t threads, int registers) {
  constexpr uint64_t most = 65536, lanes = 32, unit = 8;
  return (threads + lanes - 1) / lanes * lanes *
             ((static_cast<uint64_t>(registers) + unit - 1) / unit * unit) <=
         most;
}

cudaError_t error_of(const Launch& launch, int device, int stream_device) {
  const auto exceeds = [](const Extent& extent, unsigned x, unsigned y, unsigned z) {
    return extent.x == 0 || extent.y == 0 || extent.z == 0 || extent.x > x || extent.y > y ||
           extent.z > z;
  };
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (device != stream_device) return cudaErrorInvalidResourceHandle;
  if (exceeds(launch.grid, most_columns, most_rows, most_rows) ||
      exceeds(launch.block, 1024, 1024, 64) || threads > 1024)
    return cudaErrorInvalidConfiguration;
  const cudaFuncAttributes* const planted = attributes_of(launch.function);
  if (planted && !fits_registers(threads, planted->numRegs)) return cudaErrorLaunchOutOfResources;
  if (!grants_shared(launch, device, (planted ? *planted : usual_attributes).sharedSizeBytes) ||
      launch.parameter_bytes > most_parameters)
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

/// A small allocation of cudaHostAlloc that a kernel may write, and its words before the kernel.
struct Watched {
  const uintptr_t* words;
  std::vector<uintptr_t> before;
};

/// Checks pointers of a launch, and returns the host's records that the kernel may write.
std::vector<Watched> check_addresses(const Launch& launch, int device) {
  constexpr size_t largest_record = 4096;
  std::vector<Watched> watched;
  std::vector<const void*> addresses = launch.addresses;
  for (const void* word : launch.words)
    if (is_mapped(word) || is_in_process(word)) addresses.push_back(word);
  for (const void* address : addresses) {
    if (!address || is_accessible(address, 1, device)) continue;
    if (is_mapped(address))
      die(std::string(launch.kernel) + ": a pointer to memory of another device that device " +
          std::to_string(device) + " has no access to");
    if (host_range(address, 1) != HostRange::pinned)
      die(std::string(launch.kernel) +
          ": a pointer to memory that is neither a device's nor pinned");
    size_t bytes = 0;
    const std::byte* const record = host_allocation(address, &bytes);
    if (!record || bytes > largest_record) continue;
    const auto* const words = reinterpret_cast<const uintptr_t*>(record);
    watched.push_back({words, {words, words + bytes / sizeof(uintptr_t)}});
  }
  return watched;
}

/// An address of a kernel's constant is an address of the device: the host must not get one.
void expect_no_device_addresses(const char* kernel, const std::vector<Watched>& watched) {
  for (const Watched& record : watched)
    for (size_t i = 0; i < record.before.size(); ++i)
      if (record.words[i] != record.before[i] &&
          is_in_program(reinterpret_cast<const void*>(record.words[i])))
        die(std::string(kernel) +
            ": it wrote the address of a constant of the device to memory of the host");
}

bool runs_at_once() {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  static const bool at_once = std::getenv("ZG_EMULATOR_AT_ONCE") != nullptr;
  return at_once;
#endif
}

void put(cudaStream_t stream, Work work) {
  queue(stream, std::move(work));
  if (runs_at_once()) advance(*stream, newest_ticket(*stream));
}

void drain_all(cudaStream_t stream) { drain(*stream, newest_ticket(*stream)); }

/// How a copy may use one of its ends.
enum class End { fast, pageable, invalid };
End end_of(const void* place, size_t bytes, int device) {
  if (is_mapped(place)) return is_accessible(place, bytes, device) ? End::fast : End::invalid;
  const HostRange range = host_range(place, bytes);
  return range == HostRange::pinned     ? End::fast
         : range == HostRange::pageable ? End::pageable
                                        : End::invalid;
}

}  // namespace

void enqueue(cudaStream_t stream, std::function<void()> work) {
  put(stream, {.ready = nullptr, .action = std::move(work), .collective = nullptr});
}

void enqueue_collective(cudaStream_t stream, std::shared_ptr<const Collective> collective,
                        std::function<bool()> ready, std::function<void()> work) {
  put(stream,
      {.ready = std::move(ready), .action = std::move(work), .collective = std::move(collective)});
}

void set_attributes(const void* kernel, const cudaFuncAttributes& attributes) {
  const std::lock_guard lock(grants_mutex);
  planted_attributes[kernel] = attributes;
}

void launch(const Launch& launch, cudaStream_t stream, std::function<void()> body) {
  if (begin_call() != cudaSuccess) return note_failed_launch(launch.kernel, cudaPeekAtLastError());
  const int device = current_device();
  if (const cudaError_t error = error_of(launch, device, stream->device); error != cudaSuccess)
    return note_failed_launch(launch.kernel, error);
  load(device, launch.function);
  check_addresses(launch, device);
  const cudaFuncAttributes* const planted = attributes_of(launch.function);
  enqueue(stream, [launch, device, registers = planted ? planted->numRegs : 0,
                   body = std::move(body)] {
    const std::vector<Watched> watched = check_addresses(launch, device);
    if (!run_grid(launch.kernel, launch.grid, launch.block, launch.shared_bytes, body, registers))
      set_sticky_error(device, cudaErrorLaunchFailure);
    expect_no_device_addresses(launch.kernel, watched);
  });
}

}  // namespace zg::emulator

using namespace zg::emulator;

// --- devices and errors

cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (!is_device(device)) return remembered(cudaErrorInvalidDevice);
  select_device(device);
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return remembered(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated device, no GPU");
  properties->totalGlobalMem = memory_of_a_device;
  properties->major = compute_capability(device);
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = most_shared;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return remembered(cudaErrorInvalidDevice);
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : compute_capability(device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!is_device(device) || !is_device(peer)) return remembered(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int device) {
  if (!is_device(device)) return remembered(cudaErrorInvalidDevice);
  std::snprintf(name, static_cast<size_t>(bytes), "0000:%02x:00.0", static_cast<unsigned>(device));
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  constexpr std::pair<cudaError_t, const char*> texts[] = {
      {cudaSuccess, "no error"},
      {cudaErrorInvalidValue, "invalid argument"},
      {cudaErrorMemoryAllocation, "out of memory"},
      {cudaErrorInvalidConfiguration, "invalid configuration argument"},
      {cudaErrorInvalidDevice, "invalid device ordinal"},
      {cudaErrorInvalidResourceHandle, "invalid resource handle"},
      {cudaErrorLaunchFailure, "unspecified launch failure"},
      {cudaErrorIllegalAddress, "an illegal memory access was encountered"},
      {cudaErrorLaunchOutOfResources, "too many resources requested for launch"}};
  for (const auto& [known, text] : texts)
    if (known == error) return text;
  return "an error of the emulator";
}
cudaError_t cudaFree(void*) { return begin_call(); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  load(current_device(), kernel);
  const cudaFuncAttributes* const planted = attributes_of(kernel);
  *attributes = planted ? *planted : usual_attributes;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  const cudaFuncAttributes* const planted = attributes_of(kernel);
  if (value < 0 ||
      static_cast<size_t>(value) + (planted ? planted->sharedSizeBytes : 0) > most_shared)
    return remembered(cudaErrorInvalidValue);
  const std::lock_guard lock(grants_mutex);
  grants[{current_device(), kernel}] = static_cast<size_t>(value);
  return cudaSuccess;
}

// --- streams

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  const SerialisedCall call("cudaStreamCreateWithFlags");
  *stream = make_stream(current_device());
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  need_context();
  destroy_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  expect_errors_asked("cudaStreamQuery");
  return advance(*stream, newest_ticket(*stream)) ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  expect_errors_asked("cudaStreamSynchronize");
  drain_all(stream);
  return begin_call();
}

// --- copies

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  expect_errors_asked("cudaMemcpyAsync");
  const End source = end_of(from, bytes, stream->device),
            destination = end_of(to, bytes, stream->device);
  if (source == End::invalid || destination == End::invalid)
    return remembered(cudaErrorInvalidValue);
  // CUDA may read and write pageable memory before the call returns, or late.
  if (queue_seed() == 0 && source == End::pageable) {
    const auto* start = static_cast<const std::byte*>(from);
    enqueue(stream, [to, staged = std::vector<std::byte>(start, start + bytes)] {
      std::memcpy(to, staged.data(), staged.size());
    });
  } else {
    enqueue(stream, [=] { std::memmove(to, from, bytes); });
  }
  if (queue_seed() == 0 && destination == End::pageable) drain_all(stream);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  if (end_of(to, bytes, stream->device) != End::fast) return remembered(cudaErrorInvalidValue);
  enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

// --- memory of the host

cudaError_t cudaHostAlloc(void** place, size_t bytes, unsigned flags) {
  *place = std::malloc(bytes);
  if (!*place) return remembered(cudaErrorMemoryAllocation);
  note_host_allocation(*place, bytes);
  return cudaHostRegister(*place, bytes, flags);
}
cudaError_t cudaFreeHost(void* place) {
  forget_host_allocation(place);
  const cudaError_t error = cudaHostUnregister(place);
  std::free(place);
  return error;
}
cudaError_t cudaHostRegister(void* place, size_t bytes, unsigned) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  const SerialisedCall call("cudaHostRegister");
  if (const int error = planted_failure("cudaHostRegister"))
    return remembered(static_cast<cudaError_t>(error));
  return remembered(register_host(place, bytes));
}
cudaError_t cudaHostUnregister(void* place) {
  if (const cudaError_t error = begin_call(); error != cudaSuccess) return error;
  const SerialisedCall call("cudaHostUnregister");
  return remembered(unregister_host(place));
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* place) {
  const bool pinned = host_range(place, 1) == HostRange::pinned;
  attributes->device = current_device();
  attributes->type = is_mapped(place) ? cudaMemoryTypeDevice
                     : pinned         ? cudaMemoryTypeHost
                                      : cudaMemoryTypeUnregistered;
  return begin_call();
}

// --- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return begin_call();
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  need_context();
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  *event = {stream, newest_ticket(*stream)};
  return begin_call();
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->stream) drain(*event->stream, event->ticket);
  return begin_call();
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event->stream && event->stream != stream)
    put(stream, {.ready = [other = event->stream,
                           ticket = event->ticket] { return advance(*other, ticket); },
                 .action = [] {},
                 .collective = nullptr});
  return begin_call();
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = driver_function(symbol);
  *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
