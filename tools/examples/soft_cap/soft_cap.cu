#include "soft_cap.h"
#include "zerograd/kernels/cuda/launch.h"

static __global__ void capped(const float* x, const float* dy, float* y, float cap, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float t = tanhf(x[i] / cap);
  y[i] = dy ? dy[i] * (1.0f - t * t) : cap * t;
}

void soft_cap_cuda(const SoftCap& a, zg::Workspace, zg::Stream& stream) {
  const int64_t n = a.x.numel();
  zg::cuda::launch({"soft_cap", "capped", zg::cuda::operand_bytes(a), n}, capped,
                   {zg::cuda::blocks_for(n, 256), dim3(256)}, stream, a.x.data<float>(),
                   a.dy ? a.dy.data<float>() : nullptr, a.y.data<float>(), a.cap, n);
}
