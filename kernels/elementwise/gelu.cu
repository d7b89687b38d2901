#include "zerograd/kernels/elementwise/gelu.cuh"

#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/elementwise/gelu.h"

namespace zg::cuda {
namespace {

template <class T, Activation form>
struct Gelu {
  __device__ T operator()(T x) const { return from_float<T>(gelu<form>(to_float(x))); }
};
template <class T, Activation form>
struct GeluSlope {
  __device__ T operator()(T dy, T x) const {
    return from_float<T>(to_float(dy) * gelu_derivative<form>(to_float(x)));
  }
};

}  // namespace

void gelu_forward(const GeluForward& a, Workspace, Stream& stream) {
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    const T* x = a.x.data<T>();
    T* y = a.y.data<T>();
    if (a.activation == Activation::gelu_tanh)
      map("gelu_forward", Gelu<T, Activation::gelu_tanh>(), a.x.numel(), stream, y, x);
    else
      map("gelu_forward", Gelu<T, Activation::gelu_erf>(), a.x.numel(), stream, y, x);
  });
}

void gelu_backward(const GeluBackward& a, Workspace, Stream& stream) {
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    const T *x = a.x.data<T>(), *dy = a.dy.data<T>();
    T* dx = a.dx.data<T>();
    if (a.activation == Activation::gelu_tanh)
      map("gelu_backward", GeluSlope<T, Activation::gelu_tanh>(), a.x.numel(), stream, dx, dy, x);
    else
      map("gelu_backward", GeluSlope<T, Activation::gelu_erf>(), a.x.numel(), stream, dx, dy, x);
  });
}

}  // namespace zg::cuda
