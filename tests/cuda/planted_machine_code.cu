#include <cstdint>

// Kernels whose machine code has one mistake each, and sound ones beside them:
// `tests/long/cuda-static
// --planted` compiles this file and must name the mistakes and nothing else. No kernel here is ever
// run.
namespace zg::planted {

struct Fault {
  const char* name;
};

/// Stores the address of a string in device memory, which the host cannot read.
__global__ void literal(Fault* fault) { fault->name = "ids"; }

/// 64-bit additions in shared memory are a loop over compare and swap.
__global__ void spin(const ulonglong2* x, unsigned long long* y) {
  __shared__ unsigned long long sums[4];
  if (threadIdx.x < 4) sums[threadIdx.x] = 0;
  __syncthreads();
  const ulonglong2 values = x[threadIdx.x];
  atomicAdd(&sums[values.x % 4], values.y);
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = sums[threadIdx.x];
}
/// 32-bit additions are one instruction, and one compare and swap is not a loop.
__global__ void no_spin(const uint4* x, unsigned* y) {
  __shared__ unsigned sums[4];
  if (threadIdx.x < 4) sums[threadIdx.x] = 0;
  __syncthreads();
  const uint4 values = x[threadIdx.x];
  atomicAdd(&sums[values.x % 4], values.y);
  atomicCAS(&sums[values.z % 4], 0, values.w);
  __syncthreads();
  if (threadIdx.x < 4) y[threadIdx.x] = sums[threadIdx.x];
}
/// A lock: a loop over compare and swap.
__global__ void lock(const uint4* x, unsigned* y) {
  __shared__ unsigned owner;
  if (threadIdx.x == 0) owner = 0;
  __syncthreads();
  const uint4 values = x[threadIdx.x];
  while (atomicCAS(&owner, 0, 1) != 0) {
  }
  *y += values.x ^ values.y ^ values.z ^ values.w;
  atomicExch(&owner, 0);
}
__global__ void global_lock(const uint4* x, unsigned* owner, unsigned* y) {
  const uint4 values = x[threadIdx.x];
  while (atomicCAS(owner, 0, 1) != 0) {
  }
  *y += values.x ^ values.y ^ values.z ^ values.w;
  atomicExch(owner, 0);
}

/// An array that is indexed with a run-time value is in local memory.
__global__ void local_array(const uint4* x, unsigned* y) {
  const uint4 values = x[threadIdx.x];
  unsigned kept[64];
  for (int i = 0; i < 64; ++i) kept[i] = values.x * i;
  kept[values.y % 64] = values.z;
  y[threadIdx.x] = kept[values.w % 64];
}
/// 192 values that a thread needs at once, with 64 registers.
__global__ void __launch_bounds__(1024) spill(const uint4* x, unsigned* y) {
  __shared__ unsigned key;
  uint4 kept[48];
#pragma unroll
  for (int i = 0; i < 48; ++i) kept[i] = x[i * 1024 + threadIdx.x];
  if (threadIdx.x == 0) key = y[0];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 48; ++i)
    y[i * 1024 + threadIdx.x] =
        (kept[i].x ^ key) * (kept[i].y ^ key) * (kept[i].z ^ key) * (kept[i].w ^ key);
}

__global__ void narrow(const float* x, float* y) { y[threadIdx.x] = 2.0f * x[threadIdx.x]; }
/// scale<1> is for arrays that are not aligned for scale<4>; narrow_pair<1> has nothing wider.
template <int V>
__device__ inline void multiply(const float* x, float* y) {
  struct alignas(4 * V) Vector {
    float v[V];
  };
  Vector values = reinterpret_cast<const Vector*>(x)[threadIdx.x];
  for (int k = 0; k < V; ++k) values.v[k] *= 2.0f;
  reinterpret_cast<Vector*>(y)[threadIdx.x] = values;
}
template <class T, int V>
__global__ void scale(const float* x, float* y) {
  multiply<V>(x, y);
}
template <class T, int V>
__global__ void narrow_pair(const float* x, float* y) {
  multiply<V>(x, y);
}
template __global__ void scale<float, 1>(const float*, float*);
template __global__ void scale<float, 4>(const float*, float*);
template __global__ void narrow_pair<float, 1>(const float*, float*);
template __global__ void narrow_pair<float, 2>(const float*, float*);
template __global__ void narrow_pair<int, 4>(const float*, float*);

/// A correctly rounded division has a branch for each element.
__global__ void branches(const float4* x, float4* y) {
  const float4 v = x[threadIdx.x];
  y[threadIdx.x] = {1.0f / v.x, 1.0f / v.y, 1.0f / v.z, 1.0f / v.w};
}

/// Changes the number of its registers: with another number at its start it would never end.
__global__ void __launch_bounds__(384, 1) moves_registers(const uint4* x, uint4* y) {
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  y[threadIdx.x] = x[threadIdx.x];
}

__device__ inline void product(float (&d)[4], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3},%4,%5,1,1,1,0,0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "l"(a), "l"(b));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int newer>
__device__ inline void wait(float (&d)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(newer) : "memory");
  for (float& value : d) asm volatile("" : "+f"(value)::"memory");
}
/// Waits for one product, computes exponentials, and waits for a second product before or after.
template <bool early>
__device__ inline void two_products(const ulonglong2* descriptors, float4* y) {
  __shared__ float weights[4][128];
  const ulonglong2 from = descriptors[0];
  float first[4] = {}, second[4] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  product(first, from.x, from.y);
  product(second, from.y, from.x);
  wait<1>(first);
  if (early) wait<0>(second);
  for (int k = 0; k < 4; ++k) weights[k][threadIdx.x] = exp2f(first[k]);
  __syncthreads();
  if (!early) wait<0>(second);
  y[threadIdx.x] = {
      weights[0][127 - threadIdx.x] + second[0], weights[1][127 - threadIdx.x] + second[1],
      weights[2][127 - threadIdx.x] + second[2], weights[3][127 - threadIdx.x] + second[3]};
}
__global__ void waits_before(const ulonglong2* descriptors, float4* y) {
  two_products<true>(descriptors, y);
}
__global__ void waits_after(const ulonglong2* descriptors, float4* y) {
  two_products<false>(descriptors, y);
}

}  // namespace zg::planted
