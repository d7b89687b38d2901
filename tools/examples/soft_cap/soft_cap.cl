#include "zerograd/kernels/hpu/tile.clh"

element_kernel void capped(__global const float* x, __global const float* dy, __global float* y,
                           float cap, int has_dy, long n) {
  const long i = element_index();
  if (i >= n) return;
  const float t = tanh(x[i] / cap);
  y[i] = has_dy ? dy[i] * (1.0f - t * t) : cap * t;
}
