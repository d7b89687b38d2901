#pragma once

#include "zerograd/kernels/cuda/tile.cuh"
#include "zerograd/kernels/elementwise/gelu.h"

// GELU of one element: kernels/elementwise/gelu_simd.h explains the forms.
namespace zg::cuda {

/// The gate of the tanh form: `open` = sigmoid(u), `closed` = 1 - open, `slope` = du/dx. Both
/// halves are computed from exp(-|u|), which cannot overflow. The division is off by 2 ulp at most
/// (CUDA C++ Programming Guide, "Intrinsic Functions"); a correctly rounded one would be a call for
/// each element.
struct TanhGate {
  float open, closed, slope;
  __device__ explicit TanhGate(float x) {
    constexpr float root = 1.5957691216057308f;  // 2 sqrt(2 / pi)
    const float argument = root * x * (1.0f + 0.044715f * x * x);
    const float e = expf(-fabsf(argument));
    const float large = __fdividef(1.0f, 1.0f + e), small = e * large;
    open = argument < 0.0f ? small : large;
    closed = argument < 0.0f ? large : small;
    slope = root * (1.0f + 3.0f * 0.044715f * x * x);
  }
};

__device__ inline float normal_cdf(float x) { return 0.5f * erfcf(x * -0.70710678118654752f); }

template <Activation form>
__device__ inline float gelu(float x) {
  if constexpr (form == Activation::gelu_tanh) return x * TanhGate(x).open;
  return x * normal_cdf(x);
}

template <Activation form>
__device__ inline float gelu_derivative(float x) {
  if constexpr (form == Activation::gelu_tanh) {
    const TanhGate gate(x);
    return gate.open + x * gate.open * gate.closed * gate.slope;
  }
  return normal_cdf(x) + x * expf(-0.5f * x * x) * 0.39894228040143268f;  // 1 / sqrt(2 pi)
}

}  // namespace zg::cuda
