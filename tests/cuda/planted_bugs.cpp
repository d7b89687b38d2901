// Kernels with one bug each, run by name: the emulator must report every one of them.
#include <cuda_runtime.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "kernels/cuda/launch.h"
#include "runtime/tensor.h"

namespace {

using namespace zg;

__global__ void divergent_barrier(float* out) {
  if (threadIdx.x < 16)
    __syncthreads();
  else
    __syncwarp();
  out[threadIdx.x] = 0.0f;
}

__global__ void wrong_mask(float* out) {
  if (threadIdx.x >= 16) return;
  out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

__global__ void lane_outside_mask(float* out) {
  out[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);
}

__global__ void different_operations(float* out) {
  if (threadIdx.x % 2 == 0)
    __syncwarp();
  else
    out[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
}

__global__ void barrier_short_of_threads(float* out) {
  zg::emulator::named_barrier(1, 64);  // of a block of 32
  out[threadIdx.x] = 0.0f;
}

__global__ void endless_wait(float* out) {
  while (*out != 1.0f) zg::emulator::spin();
}

void run(void (*kernel)(float*)) {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({64}, DType::f32, device);
  cuda::launch("planted", kernel, {dim3(1), dim3(32)}, device.compute(), out.data<float>());
  device.compute().synchronize();
}

/// Without the barrier a thread reads what its neighbour has not written yet: NaN.
__global__ void missing_barrier(float* out) {
  auto* shared = reinterpret_cast<float*>(zg::emulator::current->block->shared);
  shared[threadIdx.x] = 1.0f;
  out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

void run_missing_barrier() {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({64}, DType::f32, device);
  cuda::launch("planted", missing_barrier, {dim3(1), dim3(64), 64 * sizeof(float)},
               device.compute(), out.data<float>());
  for (float value : out.to_host<float>())
    if (!(value == 1.0f)) {
      std::printf("a thread read what was not written: %g\n", static_cast<double>(value));
      return;
    }
}

void read_device_memory_from_host() {
  const Device device = Device::cuda();
  const Tensor x = Tensor::zeros({64}, DType::f32, device);
  device.compute().synchronize();
  std::printf("the host read %g\n", static_cast<double>(x.data<float>()[0]));
}

/// A pinned tensor is written when the stream gets there, not at the call.
void read_before_the_copy() {
  const Device device = Device::cuda();
  const Tensor x = Tensor::full({64}, 1.0, DType::f32, device);
  const Tensor pinned = Tensor::empty({64}, DType::f32, device, Space::pinned);
  for (int i = 0; i < 64; ++i) pinned.data<float>()[i] = 7.0f;
  copy(x, pinned, device.compute());
  std::printf("before: %g, ", static_cast<double>(pinned.data<float>()[0]));
  device.compute().synchronize();
  std::printf("after: %g\n", static_cast<double>(pinned.data<float>()[0]));
}

}  // namespace

int main(int count, char** arguments) {
  const std::map<std::string, std::function<void()>> bugs = {
      {"divergent_barrier", [] { run(divergent_barrier); }},
      {"wrong_mask", [] { run(wrong_mask); }},
      {"lane_outside_mask", [] { run(lane_outside_mask); }},
      {"different_operations", [] { run(different_operations); }},
      {"barrier_short_of_threads", [] { run(barrier_short_of_threads); }},
      {"endless_wait", [] { run(endless_wait); }},
      {"missing_barrier", run_missing_barrier},
      {"host_reads_device_memory", read_device_memory_from_host},
      {"host_reads_before_the_copy", read_before_the_copy}};
  const auto bug = bugs.find(count == 2 ? arguments[1] : "");
  if (bug == bugs.end()) return std::printf("usage: planted_bugs NAME\n"), 2;
  bug->second();
  return 0;
}
