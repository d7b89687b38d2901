#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/elementwise/trigonometry.cuh"
#include "zerograd/kernels/elementwise/visit_elementwise.h"

namespace zg::cuda {
namespace {

/// kernels/elementwise/elementwise_cpu.cpp has the same formulas in plain C++.
template <UnaryOp op, class T>
struct Value {
  __device__ T operator()(T element) const {
    const float x = to_float(element);
    float y = 0.0f;
    if constexpr (op == UnaryOp::negate) y = -x;
    if constexpr (op == UnaryOp::exp) y = expf(x);
    if constexpr (op == UnaryOp::log) y = logf(x);
    if constexpr (op == UnaryOp::sqrt) y = __fsqrt_rn(x);
    if constexpr (op == UnaryOp::tanh) y = tanhf(x);
    if constexpr (op == UnaryOp::sigmoid) y = 1.0f / (1.0f + expf(-x));
    if constexpr (op == UnaryOp::relu) y = x <= 0.0f ? 0.0f : x;  // so that NaN stays
    if constexpr (op == UnaryOp::silu) y = x / (1.0f + expf(-x));
    if constexpr (op == UnaryOp::abs) y = fabsf(x);
    if constexpr (op == UnaryOp::reciprocal) y = 1.0f / x;
    if constexpr (op == UnaryOp::sin) y = sine(x);
    if constexpr (op == UnaryOp::cos) y = cosine(x);
    if constexpr (op == UnaryOp::erf) y = erff(x);
    if constexpr (op == UnaryOp::log1p) y = log1pf(x);
    return from_float<T>(y);
  }
};

/// dx = dy * derivative. `known` is y if reads_result(op), else x.
template <UnaryOp op, class T>
struct Gradient {
  __device__ T operator()(T known, T gradient) const {
    const float v = to_float(known), dy = to_float(gradient);
    float dx = 0.0f;
    if constexpr (op == UnaryOp::negate) dx = -dy;
    if constexpr (op == UnaryOp::exp) dx = dy * v;
    if constexpr (op == UnaryOp::log) dx = dy / v;
    if constexpr (op == UnaryOp::sqrt) dx = dy / (2.0f * v);
    if constexpr (op == UnaryOp::tanh) dx = dy * (1.0f - v * v);
    if constexpr (op == UnaryOp::sigmoid) dx = dy * v * (1.0f - v);
    if constexpr (op == UnaryOp::relu) dx = v <= 0.0f ? 0.0f : dy;
    if constexpr (op == UnaryOp::silu) {
      const float s = 1.0f / (1.0f + expf(-v));
      dx = dy * s * (1.0f + v * (1.0f - s));
    }
    if constexpr (op == UnaryOp::abs) dx = v > 0.0f ? dy : v < 0.0f ? -dy : 0.0f;
    if constexpr (op == UnaryOp::reciprocal) dx = -dy / (v * v);
    if constexpr (op == UnaryOp::sin) dx = dy * cosine(v);
    if constexpr (op == UnaryOp::cos) dx = -dy * sine(v);
    if constexpr (op == UnaryOp::erf)
      dx = dy * (1.1283791670955126f * expf(-v * v));  // 2 / sqrt(pi)
    if constexpr (op == UnaryOp::log1p) dx = dy / (1.0f + v);
    return from_float<T>(dx);
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
