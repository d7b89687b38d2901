// Kernels with one bug each, run by name: the emulator must report every one of them.
#include <cuda_runtime.h>

#include <cstdio>
#include <functional>
#include <map>
#include <string>

#include "zerograd/kernels/cuda/hopper.cuh"
#include "zerograd/runtime/tensor.h"

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
  zg::emulator::named_barrier(1, 64);  // the block has 32 threads
  out[threadIdx.x] = 0.0f;
}

__global__ void endless_wait(float* out) {
  while (*out != 1.0f) zg::emulator::spin();
}

__global__ void past_a_tensor(float* out) { out[64 + threadIdx.x] = 0.0f; }

__global__ void past_shared_memory(float* out) {
  auto* shared = reinterpret_cast<float*>(zg::emulator::current->block->shared);
  shared[threadIdx.x + 1] = 1.0f;  // shared memory holds 32 floats
  out[threadIdx.x] = shared[threadIdx.x];
}

__global__ void past_a_shared_array(float* out) {
  __shared__ float part[32];
  part[threadIdx.x + 1] = 1.0f;
  out[threadIdx.x] = part[threadIdx.x];
}

void run(void (*kernel)(float*)) {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({64}, DType::f32, device);
  cuda::launch("planted", kernel, {dim3(1), dim3(32), 32 * sizeof(float)}, device.compute(),
               out.data<float>());
  device.compute().synchronize();
}

__global__ void zero(float* out) { out[threadIdx.x] = 0.0f; }

/// The tensor is freed before the kernel that writes to it is queued.
void run_after_the_tensor() {
  const Device device = Device::cuda();
  const Tensor other = Tensor::zeros({64}, DType::f32, device);
  float* const place = Tensor::zeros({64}, DType::f32, device).data<float>();
  cuda::launch("planted", zero, {dim3(1), dim3(32)}, device.compute(), place);
  device.compute().synchronize();
}

/// Without the barrier a thread reads what its neighbour has not written yet: NaN.
__global__ void missing_barrier(float* out) {
  auto* shared = reinterpret_cast<float*>(zg::emulator::current->block->shared);
  shared[threadIdx.x] = 1.0f;
  out[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x];
}

/// Runs a kernel with 64 threads and 64 floats of shared memory. The kernel writes 1 everywhere,
/// unless a thread reads shared memory that was not written.
void run_shared(void (*kernel)(float*)) {
  const Device device = Device::cuda();
  const Tensor out = Tensor::zeros({64}, DType::f32, device);
  cuda::launch("planted", kernel, {dim3(1), dim3(64), 64 * sizeof(float)}, device.compute(),
               out.data<float>());
  for (float value : out.to_host<float>())
    if (!(value == 1.0f)) {
      std::printf("a thread read what was not written: %g\n", static_cast<double>(value));
      return;
    }
}

/// The copy is performed at a wait, and no thread waits.
__global__ void copy_without_wait(float* out) {
  auto* const shared = cuda::dynamic_shared<float>();
  if (threadIdx.x < 16)
    cuda::copy_async(cuda::dynamic_address() + 16 * threadIdx.x, out + 4 * threadIdx.x, 16);
  cuda::commit_copies();
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x] + 1.0f;
}

/// It waits for all groups except the newest, which is the one that it needs.
__global__ void copy_waits_for_another(float* out) {
  auto* const shared = cuda::dynamic_shared<float>();
  if (threadIdx.x < 16)
    cuda::copy_async(cuda::dynamic_address() + 16 * threadIdx.x, out + 4 * threadIdx.x, 16);
  cuda::commit_copies();
  cuda::wait_for_copies<1>();
  __syncthreads();
  out[threadIdx.x] = shared[threadIdx.x] + 1.0f;
}

__global__ void misaligned_copy(float* out) {
  cuda::copy_async(cuda::dynamic_address(), out + 1, 16);
}

__global__ void misaligned_vector(float* out) { cuda::store(out, cuda::load<4>(out + 1)); }

__global__ void misaligned_rows(float* out) {
  uint32_t got[4];
  cuda::load_matrices<false>(got, cuda::dynamic_address() + 4 * (threadIdx.x % 8));
  out[threadIdx.x] = static_cast<float>(got[0]);
}

__global__ void rows_behind_shared_memory(float* out) {
  uint32_t got[4];
  cuda::load_matrices<false>(got, cuda::dynamic_address() + 16 * threadIdx.x);
  out[threadIdx.x] = static_cast<float>(got[0]);
}

__global__ void half_a_warp_multiplies(float* out) {
  float d[4] = {};
  const uint32_t a[4] = {};
  if (threadIdx.x % 2 == 0) cuda::multiply_fragments<bf16>(d, a, 0, 0);
  out[threadIdx.x] = d[0];
}

/// Runs a kernel with a tensor map of 8 rows of 64 elements.
using BoxKernel = void (*)(CUtensorMap, float*);
void run_box(BoxKernel kernel) {
  const Device device = Device::cuda();
  const Tensor x = Tensor::full({8, 64}, 1.0, DType::bf16, device);
  const Tensor out = Tensor::zeros({128}, DType::f32, device);
  const cuuint64_t extents[4] = {64, 8, 1, 1}, strides[3] = {128, 1024, 1024};
  const cuuint32_t box[4] = {64, 8, 1, 1}, steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  cuda::check(cuda::encode_tensor_map()(
                  &map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 4, x.raw(), extents, strides, box, steps,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
              "planted");
  cuda::launch("planted", kernel, {dim3(1), dim3(128), 2056}, device.compute(), map,
               out.data<float>());
  for (float value : out.to_host<float>())
    if (!(value == 1.0f)) {
      std::printf("a thread read what was not written: %g\n", static_cast<double>(value));
      return;
    }
}

/// One thread starts the copy of a box to `place`. The mbarrier is at byte 2048 of shared memory.
cuda::SharedAddress start_box(const CUtensorMap& map, int place, unsigned bytes) {
  const cuda::SharedAddress barrier = cuda::dynamic_address() + 2048;
  if (threadIdx.x == 0) {
    cuda::init_barrier(barrier, 1);
    cuda::fence_barrier_init();
    cuda::arrive_expecting(barrier, bytes);
    cuda::copy_box(cuda::dynamic_address() + place, map, 0, 0, 0, 0, barrier);
  }
  __syncthreads();
  return barrier;
}

__global__ void box_without_wait(CUtensorMap map, float* out) {
  start_box(map, 0, 1024);
  out[threadIdx.x] = static_cast<float>(cuda::dynamic_shared<bf16>()[threadIdx.x]);
}

__global__ void misplaced_box(CUtensorMap map, float*) { start_box(map, 512, 1024); }

__global__ void box_short_of_bytes(CUtensorMap map, float*) {
  cuda::wait_for_phase(start_box(map, 0, 1032), 0);
}

__global__ void too_many_arrivals(CUtensorMap map, float*) {
  cuda::arrive(start_box(map, 0, 1024));
}

/// Starts a product and reads the result without waiting for it.
__global__ void product_without_wait(CUtensorMap map, float* out) {
  cuda::wait_for_phase(start_box(map, 0, 1024), 0);
  float d[16][4] = {};
  const uint64_t nothing = cuda::matrix_descriptor(cuda::dynamic_address());
  cuda::begin_products(d);
  cuda::multiply_warpgroup<bf16>(d, nothing, nothing, false);
  cuda::commit_products();
  out[threadIdx.x] = d[0][0] + 1.0f;
}

__global__ void differing_products(CUtensorMap, float* out) {
  float d[8][4] = {};
  uint32_t a[1][4] = {};
  cuda::begin_products(d, a);
  cuda::multiply_warpgroup<bf16>(
      d, a[0], cuda::matrix_descriptor(cuda::dynamic_address() + threadIdx.x / 64 * 16));
  cuda::commit_products();
  cuda::wait_for_products<0>();
  out[threadIdx.x] = d[0][0];
}

void read_device_memory_from_host() {
  const Device device = Device::cuda();
  const Tensor x = Tensor::zeros({64}, DType::f32, device);
  device.compute().synchronize();
  std::printf("the host read %g\n", static_cast<double>(x.data<float>()[0]));
}

/// The host reads a pinned tensor before the stream has copied to it.
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
      {"missing_barrier", [] { run_shared(missing_barrier); }},
      {"copy_without_wait", [] { run_shared(copy_without_wait); }},
      {"copy_waits_for_another", [] { run_shared(copy_waits_for_another); }},
      {"misaligned_copy", [] { run_shared(misaligned_copy); }},
      {"misaligned_rows", [] { run_shared(misaligned_rows); }},
      {"misaligned_vector", [] { run(misaligned_vector); }},
      {"rows_behind_shared_memory", [] { run_shared(rows_behind_shared_memory); }},
      {"half_a_warp_multiplies", [] { run(half_a_warp_multiplies); }},
      {"box_without_wait", [] { run_box(box_without_wait); }},
      {"misplaced_box", [] { run_box(misplaced_box); }},
      {"box_short_of_bytes", [] { run_box(box_short_of_bytes); }},
      {"too_many_arrivals", [] { run_box(too_many_arrivals); }},
      {"product_without_wait", [] { run_box(product_without_wait); }},
      {"differing_products", [] { run_box(differing_products); }},
      {"past_a_tensor", [] { run(past_a_tensor); }},
      {"past_shared_memory", [] { run(past_shared_memory); }},
      {"past_a_shared_array", [] { run(past_a_shared_array); }},
      {"after_the_tensor", run_after_the_tensor},
      {"host_reads_device_memory", read_device_memory_from_host},
      {"host_reads_before_the_copy", read_before_the_copy}};
  const auto bug = bugs.find(count == 2 ? arguments[1] : "");
  if (bug == bugs.end()) return std::printf("usage: planted_bugs NAME\n"), 2;
  bug->second();
  return 0;
}
