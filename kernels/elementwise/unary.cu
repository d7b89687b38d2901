#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/elementwise/trigonometry.cuh"
#include "zerograd/kernels/elementwise/visit_elementwise.h"

namespace zg::cuda {
namespace {

__device__ inline float cos(float x) { return cosine(x); }
__device__ inline float erf(float x) { return erff(x); }
__device__ inline float exp(float x) { return expf(x); }
__device__ inline float fabs(float x) { return fabsf(x); }
__device__ inline float log(float x) { return logf(x); }
__device__ inline float log1p(float x) { return log1pf(x); }
__device__ inline float sin(float x) { return sine(x); }
__device__ inline float sqrt(float x) { return __fsqrt_rn(x); }
__device__ inline float tanh(float x) { return tanhf(x); }
using number = float;
#define ZG_NUMBER(x) x##f
#define ZG_FUNCTION __device__ inline
#include "zerograd/kernels/elementwise/formulas.inc"

template <UnaryOp op>
__device__ inline float value(float x) {
#define ZG_UNARY(name, y, ...) \
  if constexpr (op == UnaryOp::name) return y;
#include "zerograd/kernels/elementwise/formulas.inc"
}

/// dx = dy * derivative. `v` is y if reads_result(op), else x.
template <UnaryOp op>
__device__ inline float gradient(float v, float dy) {
#define ZG_UNARY(name, y, dx) \
  if constexpr (op == UnaryOp::name) return dx;
#include "zerograd/kernels/elementwise/formulas.inc"
}

template <UnaryOp op, class T>
struct Value {
  __device__ T operator()(T x) const { return from_float<T>(value<op>(to_float(x))); }
};

template <UnaryOp op, class T>
struct Gradient {
  __device__ T operator()(T known, T dy) const {
    return from_float<T>(gradient<op>(to_float(known), to_float(dy)));
  }
};

}  // namespace

void unary(const Unary& a, Workspace, Stream& stream) {
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    visit_unary(a.op, [&]<UnaryOp op>() {
      map("unary", Value<op, T>(), a.x.numel(), stream, a.y.data<T>(),
          static_cast<const T*>(a.x.data<T>()));
    });
  });
}

void unary_backward(const UnaryBackward& a, Workspace, Stream& stream) {
  visit_floating(a.dy.dtype(), [&]<class T>(T) {
    visit_unary(a.op, [&]<UnaryOp op>() {
      const Tensor& known = reads_result(op) ? a.y : a.x;
      map("unary_backward", Gradient<op, T>(), a.dy.numel(), stream, a.dx.data<T>(),
          static_cast<const T*>(known.data<T>()), static_cast<const T*>(a.dy.data<T>()));
    });
  });
}

}  // namespace zg::cuda
