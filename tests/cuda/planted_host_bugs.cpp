// Programs with one mistake each in how the host uses CUDA, run by name: the emulator must report
// every one of them. And programs without one, whose contexts are printed.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/cuda/devices.h"
#include "tests/fakes/cuda/launch.h"
#include "tests/fakes/cuda/queues.h"
#include "zerograd/kernels/cuda/launch.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/cuda/stream.h"
#include "zerograd/runtime/tensor.h"

namespace {

using namespace zg;
using emulator::Extent;

void expect(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::printf("%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

__global__ void write_one(float* out) { out[threadIdx.x] = 1.0f; }

/// Launches without the check that cuda::launch makes.
template <class... Parameters>
void launch_raw(void (*kernel)(Parameters...), const cuda::Grid& grid, cudaStream_t stream,
                Parameters... parameters) {
  emulator::launch("planted", kernel, grid.blocks, grid.threads, grid.shared, stream,
                   std::tuple<Parameters...>(parameters...));
}

void pageable_pointer_to_a_kernel() {
  const Device device = Device::cuda();
  std::vector<float> out(32);
  cuda::launch("planted", write_one, {dim3(1), dim3(32)}, device.compute(), out.data());
  device.compute().synchronize();
}

struct Operands {
  int64_t count;
  float* out;
};
__global__ void write_operands(Operands operands) { operands.out[threadIdx.x] = 1.0f; }

void pageable_pointer_in_a_struct() {
  const Device device = Device::cuda();
  std::vector<float> out(32);
  cuda::launch("planted", write_operands, {dim3(1), dim3(32)}, device.compute(),
               Operands{32, out.data()});
  device.compute().synchronize();
}

struct NamedFault {
  const char* name;
};
__global__ void name_the_fault(NamedFault* fault) { fault->name = "a constant of the device"; }

/// The kernel writes a pointer to its own constant to memory that the host reads.
void device_constant_to_the_host() {
  const Device device = Device::cuda();
  const cuda::OnDevice on(0);
  void* record = nullptr;
  expect(cudaHostAlloc(&record, sizeof(NamedFault), cudaHostAllocPortable), "cudaHostAlloc");
  std::memset(record, 0, sizeof(NamedFault));
  cuda::launch("planted", name_the_fault, {dim3(1), dim3(1)}, device.compute(),
               static_cast<NamedFault*>(record));
  device.compute().synchronize();
  std::printf("the host read %s\n", static_cast<NamedFault*>(record)->name);
}

/// A copy to a pinned tensor that lies in two registrations, without the cut that CudaStream makes.
void span_over_two_registrations() {
  const Device device = Device::cuda();
  constexpr int64_t bytes = int64_t{3} << 20;
  const Tensor first = Tensor::empty({bytes}, DType::u8, device, Space::pinned);
  const Tensor second = Tensor::empty({bytes}, DType::u8, device, Space::pinned);
  const Tensor x = Tensor::zeros({bytes}, DType::u8, device);
  const cuda::OnDevice on(0);
  for (const Tensor& pinned : {first, second})
    expect(cudaMemcpyAsync(pinned.raw(), x.raw(), static_cast<size_t>(bytes), cudaMemcpyDefault,
                           cuda::handle(device.compute())),
           "cudaMemcpyAsync");
}

void wrong_current_device() {
  const Device device = Device::cuda(1);
  const Tensor out = Tensor::zeros({32}, DType::f32, device);
  const cuda::OnDevice on(0);
  launch_raw(write_one, {dim3(1), dim3(32)}, cuda::handle(device.compute()), out.data<float>());
  expect(cudaGetLastError(), "planted");
}

void launch_that_is_refused(const cuda::Grid& grid) {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({32}, DType::f32, device);
  const cuda::OnDevice on(0);
  launch_raw(write_one, grid, cuda::handle(device.compute()), out.data<float>());
  expect(cudaGetLastError(), "planted");
  std::printf("not refused\n");
}

/// A kernel to which a compiler gave other registers or arrays.
void launch_with_attributes(const cudaFuncAttributes& attributes, const cuda::Grid& grid) {
  const void* const kernel = reinterpret_cast<const void*>(write_one);
  emulator::set_attributes(kernel, attributes);
  launch_that_is_refused(grid);
}

/// launch() grants shared memory for both a kernel's own arrays and dynamic memory, 48.5 KiB.
void launch_grants_shared_memory() {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({32}, DType::f32, device);
  cuda::launch("planted", write_one, {dim3(1), dim3(32), 48640}, device.compute(),
               out.data<float>());
  std::printf("the kernel wrote %g\n", static_cast<double>(out.to_host<float>()[0]));
}

/// A kernel whose warps would wait forever for registers.
void other_registers_than_setmaxnreg_needs() {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({32}, DType::f32, device);
  emulator::set_attributes(reinterpret_cast<const void*>(write_one), {160, 0});
  cuda::launch("planted", write_one, {dim3(1), dim3(32), 0, 168}, device.compute(),
               out.data<float>());
}

struct Large {
  char bytes[4096];
};
__global__ void take_much(Large, float* out) { *out = 1.0f; }
void too_many_parameters() {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({32}, DType::f32, device);
  const cuda::OnDevice on(0);
  launch_raw(take_much, {dim3(1), dim3(1)}, cuda::handle(device.compute()), Large{},
             out.data<float>());
  expect(cudaGetLastError(), "planted");
}

void ignored_error() {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({32}, DType::f32, device);
  {
    const cuda::OnDevice on(0);
    launch_raw(write_one, {dim3(1), dim3(2048)}, cuda::handle(device.compute()), out.data<float>());
  }
  std::printf("the host read %g\n", static_cast<double>(out.to_host<float>()[0]));
}

void sticky_error() {
  const Device device = Device::cuda();
  const Tensor x = Tensor::zeros({32}, DType::f32, device);
  {
    const cuda::OnDevice on(0);
    emulator::plant_sticky_error(cudaErrorIllegalAddress);
  }
  try {
    device.compute().synchronize();
  } catch (const std::exception& error) {
    std::printf("%s; ", error.what());
  }
  try {  // it stays
    cuda::launch("planted", write_one, {dim3(1), dim3(32)}, device.compute(), x.data<float>());
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  std::fflush(stdout);
  std::_Exit(1);
}

/// The host changes pageable data after cudaMemcpyAsync has returned. CUDA may read it late.
void late_pageable_read() {
  const Device device = Device::cuda();
  const Tensor x = Tensor::zeros({4}, DType::f32, device);
  std::vector<float> values(4, 1.0f);
  {
    const cuda::OnDevice on(0);
    expect(cudaMemcpyAsync(x.raw(), values.data(), 16, cudaMemcpyDefault,
                           cuda::handle(device.compute())),
           "cudaMemcpyAsync");
  }
  values.assign(4, 2.0f);
  std::printf("the device has %g\n", static_cast<double>(x.to_host<float>()[0]));
}

/// Maps memory of device 0 that only some devices can access.
CUdeviceptr map_memory(const std::vector<int>& devices) {
  const cuda::Driver& driver = cuda::driver();
  constexpr size_t bytes = size_t{2} << 20;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle part;
  const CUmemAllocationProp wanted = {CU_MEM_ALLOCATION_TYPE_PINNED,
                                      {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  cuda::check(driver.reserve(&address, bytes, bytes, 0, 0), "cuMemAddressReserve");
  cuda::check(driver.create(&part, bytes, &wanted, 0), "cuMemCreate");
  cuda::check(driver.map(address, bytes, 0, part, 0), "cuMemMap");
  std::vector<CUmemAccessDesc> access;
  for (const int device : devices)
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  cuda::check(driver.set_access(address, bytes, access.data(), access.size()), "cuMemSetAccess");
  return address;
}

void kernel_of_a_peer_without_access() {
  const Device device = Device::cuda(1);
  auto* const memory = reinterpret_cast<float*>(map_memory({0}));
  cuda::launch("planted", write_one, {dim3(1), dim3(32)}, device.compute(), memory);
}

void copy_of_a_peer_without_access() {
  const Device device = Device::cuda(1);
  const Tensor x = Tensor::zeros({32}, DType::f32, device);
  device.compute().copy(x.raw(), reinterpret_cast<void*>(map_memory({0})), 128);
}

/// A collective of two ranks, as NCCL launches it: it ends once both streams have begun it.
struct FakeCollective {
  std::shared_ptr<const emulator::Collective> collective;
  std::shared_ptr<std::atomic<int>> begun = std::make_shared<std::atomic<int>>(0);

  explicit FakeCollective(const std::string& name)
      : collective(
            std::make_shared<const emulator::Collective>(emulator::Collective{name, nullptr})) {}
  void launch_on(cudaStream_t stream) const {
    emulator::enqueue_collective(stream, collective, nullptr, [count = begun] { ++*count; });
    emulator::enqueue_collective(
        stream, collective, [count = begun] { return *count == 2; }, [] {});
  }
};

/// Rank 0's kernel waits for rank 1's, the call is made, and then rank 1 launches its kernel.
void serialised_call_during_a_collective(const std::function<void(const Device&)>& call) {
  const Device first = Device::cuda(0), second = Device::cuda(1);
  const FakeCollective gather("gather");
  gather.launch_on(cuda::handle(first.compute()));
  std::thread calls([&] { call(first); });
  while (emulator::waiting_calls() == 0) std::this_thread::yield();
  gather.launch_on(cuda::handle(second.compute()));
  std::thread waits([&] { first.compute().synchronize(); });
  second.compute().synchronize();
  waits.join();
  calls.join();
}

void growth_during_a_collective() {
  serialised_call_during_a_collective([](const Device&) { map_memory({0, 1}); });
}

void first_launch_during_a_collective() {
  serialised_call_during_a_collective([](const Device& device) {
    const cuda::OnDevice on(0);
    launch_raw(write_one, {dim3(1), dim3(32)}, cuda::handle(device.compute()),
               static_cast<float*>(nullptr));
  });
}

/// More streams than connections: two ranks launch two collectives in different orders, on streams
/// that share a connection.
void too_many_streams() {
  const Device first = Device::cuda(0), second = Device::cuda(1);
  const auto streams_of = [](const Device& device) {
    std::vector<std::unique_ptr<Stream>> streams;
    for (int i = 0; i < 8; ++i) streams.push_back(device.make_stream("communication"));
    return streams;
  };
  const auto on_first = streams_of(first), on_second = streams_of(second);
  const FakeCollective rows("rows"), columns("columns");
  // The ninth stream of a device has the connection of the first, `compute`.
  rows.launch_on(cuda::handle(first.compute()));
  columns.launch_on(cuda::handle(*on_first.back()));
  columns.launch_on(cuda::handle(*on_second.back()));
  rows.launch_on(cuda::handle(second.compute()));
  std::thread waits([&] {
    first.compute().synchronize();
    on_first.back()->synchronize();
  });
  second.compute().synchronize();
  on_second.back()->synchronize();
  waits.join();
  std::printf("%d connections are enough\n", cuda::hardware_connections());
}

/// With fewer connections than streams, ranks refuse to use NCCL.
void nccl_with_one_connection() {
  run_local(2,
            [](Communicator& comm, const Device& device) {
              const Tensor x = Tensor::full({4}, 1.0, DType::f32, device);
              comm.wait(comm.broadcast(x, 0, "x"));
            },
            {.type = Device::Type::cuda});
}

void use(const Device& device) {
  const Tensor x = Tensor::full({3 << 20}, 1.0, DType::f32, device);
  const Tensor zeros = Tensor::zeros({3 << 20}, DType::f32, device);
  const Tensor pinned = Tensor::empty({3 << 20}, DType::f32, device, Space::pinned);
  copy(x, pinned, device.compute());
  cuda::mark(device.compute())->wait();
}

/// A rank on device 2 that is a process of its own.
void contexts_of_one_rank() {
  use(Device::cuda(2));
  std::printf("contexts on devices %s\n", emulator::contexts().c_str());
}

/// A thread that uses device 2, beside a thread that has selected device 3 and goes on with it.
void contexts_of_a_thread() {
  expect(cudaSetDevice(3), "cudaSetDevice");
  use(Device::cuda(2));
  int current = 0;
  expect(cudaGetDevice(&current), "cudaGetDevice");
  std::thread([] { use(Device::cuda(4)); }).join();
  std::printf("current device %d, contexts on devices %s\n", current, emulator::contexts().c_str());
}

}  // namespace

int main(int count, char** arguments) {
  const auto refused = [](const cuda::Grid& grid) { return [=] { launch_that_is_refused(grid); }; };
  const std::map<std::string, std::function<void()>> bugs = {
      {"pageable_pointer_to_a_kernel", pageable_pointer_to_a_kernel},
      {"pageable_pointer_in_a_struct", pageable_pointer_in_a_struct},
      {"device_constant_to_the_host", device_constant_to_the_host},
      {"span_over_two_registrations", span_over_two_registrations},
      {"wrong_current_device", wrong_current_device},
      {"shared_memory_without_opt_in", refused({dim3(1), dim3(32), 49 << 10})},
      {"shared_memory_beside_arrays", refused({dim3(1), dim3(32), 48640})},
      {"registers_beyond_a_block",
       [] {
         launch_with_attributes({200, 0}, {dim3(1), dim3(352)});
       }},
      {"registers_of_a_block",
       [] {
         launch_with_attributes({200, 0}, {dim3(1), dim3(320)});
       }},
      {"launch_grants_shared_memory", launch_grants_shared_memory},
      {"other_registers_than_setmaxnreg_needs", other_registers_than_setmaxnreg_needs},
      {"grid_too_high", refused({dim3(1, 65536), dim3(32)})},
      {"grid_too_deep", refused({dim3(1, 1, 65536), dim3(32)})},
      {"grid_too_wide", refused({dim3(0x80000000u), dim3(32)})},
      {"block_too_large", refused({dim3(1), dim3(1025)})},
      {"too_many_parameters", too_many_parameters},
      {"ignored_error", ignored_error},
      {"sticky_error", sticky_error},
      {"late_pageable_read", late_pageable_read},
      {"kernel_of_a_peer_without_access", kernel_of_a_peer_without_access},
      {"copy_of_a_peer_without_access", copy_of_a_peer_without_access},
      {"growth_during_a_collective", growth_during_a_collective},
      {"first_launch_during_a_collective", first_launch_during_a_collective},
      {"too_many_streams", too_many_streams},
      {"nccl_with_one_connection", nccl_with_one_connection},
      {"contexts_of_one_rank", contexts_of_one_rank},
      {"contexts_of_a_thread", contexts_of_a_thread}};
  const auto bug = bugs.find(count == 2 ? arguments[1] : "");
  if (bug == bugs.end()) return std::printf("usage: planted_host_bugs NAME\n"), 2;
  try {
    bug->second();
  } catch (const std::exception& error) {
    return std::printf("%s\n", error.what()), 1;
  }
  return 0;
}
