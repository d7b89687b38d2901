#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/elementwise/trigonometry.cuh"
#include "zerograd/kernels/elementwise/visit_elementwise.h"

namespace zg::cuda {
namespace {

/// atanf of the Cephes library, within 3 ulp.
__device__ inline float atan(float x) {
  const float size = fabsf(x);
  const bool is_large = size > 2.4142135f, is_small = size <= 0.41421356f;
  const float t = is_small ? size : is_large ? -1.0f / size : (size - 1.0f) / (size + 1.0f);
  const float turn = is_small ? 0.0f : is_large ? 1.5707964f : 0.78539816f, square = t * t;
  float y = 8.05374449538e-2f;
  y = __fmaf_rn(y, square, -1.38776856032e-1f);
  y = __fmaf_rn(y, square, 1.99777106478e-1f);
  y = __fmaf_rn(y, square, -3.33329491539e-1f);
  y = turn + __fmaf_rn(y * square, t, t);
  return x < 0.0f ? -y : size > 0.0f ? y : x;  // also -0 and NaN
}
__device__ inline float cos(float x) { return cosine(x); }
__device__ inline float erf(float x) { return erff(x); }
__device__ inline float exp(float x) { return expf(x); }
__device__ inline float expm1(float x) { return expm1f(x); }
__device__ inline float fabs(float x) { return fabsf(x); }
__device__ inline float floor(float x) { return floorf(x); }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float log1p(float x) { return log1pf(x); }
/// Exact for a power of two: the exponent and the logarithm of a number in [sqrt(1/2), sqrt(2)).
__device__ inline float log2(float x) {
  if (!(x > 0x1p-126f && x < CUDART_INF_F)) return logf(x) * 1.44269504f;
  const unsigned above = (__float_as_uint(x) - 0x3f3504f3u) & 0xff800000u;
  const float rest = __uint_as_float(__float_as_uint(x) - above);
  return __fmaf_rn(logf(rest), 1.44269504f, static_cast<float>(static_cast<int>(above) / 0x800000));
}
__device__ inline float rint(float x) { return rintf(x); }
__device__ inline float sin(float x) { return sine(x); }
__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }
__device__ inline float tanh(float x) { return tanhf(x); }
using number = float;
#define ZG_NUMBER(x) x##f
#define ZG_FUNCTION __device__ inline
#include "zerograd/kernels/elementwise/formulas.inc"

template <UnaryOp op>
__device__ inline float value(float x, [[maybe_unused]] float p, [[maybe_unused]] float q) {
#define ZG_UNARY(name, y, ...) \
  if constexpr (op == UnaryOp::name) return y;
#include "zerograd/kernels/elementwise/formulas.inc"
}

/// dx = dy * derivative. `v` is y if reads_result(op), else x.
template <UnaryOp op>
__device__ inline float gradient(float v, float dy, [[maybe_unused]] float p,
                                 [[maybe_unused]] float q) {
#define ZG_UNARY(name, y, dx) \
  if constexpr (op == UnaryOp::name) return dx;
#include "zerograd/kernels/elementwise/formulas.inc"
}

template <UnaryOp op, class T>
struct Value {
  float p, q;
  __device__ T operator()(T x) const { return from_float<T>(value<op>(to_float(x), p, q)); }
};

template <UnaryOp op, class T>
struct Gradient {
  float p, q;
  __device__ T operator()(T known, T dy) const {
    return from_float<T>(gradient<op>(to_float(known), to_float(dy), p, q));
  }
};

}  // namespace

void unary(const Unary& a, Workspace, Stream& stream) {
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    visit_unary(a.op, [&]<UnaryOp op>() {
      map("unary", Value<op, T>{static_cast<float>(a.p), static_cast<float>(a.q)}, a.x.numel(),
          stream, a.y.data<T>(), static_cast<const T*>(a.x.data<T>()));
    });
  });
}

void unary_backward(const UnaryBackward& a, Workspace, Stream& stream) {
  visit_floating(a.dy.dtype(), [&]<class T>(T) {
    visit_unary(a.op, [&]<UnaryOp op>() {
      const Tensor& known = reads_result(op) ? a.y : a.x;
      map("unary_backward", Gradient<op, T>{static_cast<float>(a.p), static_cast<float>(a.q)},
          a.dy.numel(), stream, a.dx.data<T>(), static_cast<const T*>(known.data<T>()),
          static_cast<const T*>(a.dy.data<T>()));
    });
  });
}

}  // namespace zg::cuda
