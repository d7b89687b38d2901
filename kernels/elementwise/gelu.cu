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

/// Computes dx and y. Each thread handles V neighbouring elements, as in map.cuh. dx may be dy, and
/// y may be x.
template <class T, Activation form, int V>
__global__ void __launch_bounds__(map_threads)
    backward_and_forward(const T* dy, const T* x, T* dx, T* y, int64_t n) {
  const GeluSlope<T, form> slope;
  const Gelu<T, form> gelu;
  const int64_t begin = (int64_t{blockIdx.x} * map_threads + threadIdx.x) * V;
  if (begin + V <= n) {
    const Vec<T, V> gradient = load<V>(dy + begin), in = load<V>(x + begin);
    map_vector<V>(slope, dx + begin, gradient, in);
    map_vector<V>(gelu, y + begin, in);
    return;
  }
  for (int64_t i = begin; i < n; ++i) {
    const T in = x[i];
    dx[i] = slope(dy[i], in);
    y[i] = gelu(in);
  }
}

template <class T, Activation form>
void backward(const GeluBackward& a, Stream& stream) {
  constexpr const char* op = "gelu_backward";
  const T *x = a.x.data<T>(), *dy = a.dy.data<T>();
  T* const dx = a.dx.data<T>();
  const int64_t n = a.x.numel();
  if (!a.y) return map(op, GeluSlope<T, form>(), n, stream, dx, dy, x);
  T* const y = a.y.data<T>();
  constexpr int width = vector_width<T>;
  const Work work(op, "backward_and_forward", operand_bytes(a), n);
  const auto run = [&]<int V>(std::integral_constant<int, V>) {
    launch(work, backward_and_forward<T, form, V>,
           {blocks_for(n, map_threads * V), dim3(map_threads)}, stream, dy, x, dx, y, n);
  };
  if (starts_vector<width>(x) && starts_vector<width>(dy) && starts_vector<width>(dx) &&
      starts_vector<width>(y))
    run(std::integral_constant<int, width>());
  else
    run(std::integral_constant<int, 1>());
}

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
    if (a.activation == Activation::gelu_tanh)
      backward<T, Activation::gelu_tanh>(a, stream);
    else
      backward<T, Activation::gelu_erf>(a, stream);
  });
}

}  // namespace zg::cuda
