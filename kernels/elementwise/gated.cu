#include "zerograd/kernels/elementwise/gated.h"

#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/elementwise/gelu.cuh"

// Memory bound: forward reads two operands and writes one, backward reads three and writes two. A
// thread handles as many elements as 16 bytes hold.
namespace zg::cuda {
namespace {

struct GateValue {
  float value, slope;
};

template <Gate form>
__device__ inline GateValue gate_of(float x) {
  if constexpr (form == Gate::silu) {
    // Both halves from exp(-|x|), which cannot overflow. open + closed = 1. Divided as in TanhGate.
    const float e = expf(-fabsf(x)), large = __fdividef(1.0f, 1.0f + e), small = e * large;
    const float open = x < 0.0f ? small : large, closed = x < 0.0f ? large : small;
    return {x * open, open + x * open * closed};
  } else {
    constexpr auto activation =
        form == Gate::gelu_tanh ? Activation::gelu_tanh : Activation::gelu_erf;
    return {gelu<activation>(x), gelu_derivative<activation>(x)};
  }
}

template <class T, Gate form>
struct Gated {
  __device__ T operator()(T gate, T up) const {
    return from_float<T>(gate_of<form>(to_float(gate)).value * to_float(up));
  }
};

template <class T>
struct Gradients {
  const T *dy, *gate, *up;
  T *dgate, *dup;
};

template <Gate form, int V, class T>
__global__ void __launch_bounds__(map_threads) backward(Gradients<T> a, int64_t n) {
  const int64_t begin = (int64_t{blockIdx.x} * map_threads + threadIdx.x) * V;
  if (begin >= n) return;
  const Vec<T, V> dy = load<V>(a.dy + begin), gate = load<V>(a.gate + begin),
                  up = load<V>(a.up + begin);
  Vec<T, V> dgate, dup;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    const GateValue g = gate_of<form>(to_float(gate.v[k]));
    const float gradient = to_float(dy.v[k]);
    dgate.v[k] = from_float<T>(gradient * to_float(up.v[k]) * g.slope);
    dup.v[k] = from_float<T>(gradient * g.value);
  }
  store(a.dgate + begin, dgate);
  store(a.dup + begin, dup);
}

template <Gate form, class T>
void launch_backward(const Gradients<T>& a, int64_t n, Stream& stream) {
  constexpr int V = vector_width<T>;
  const bool aligned = n % V == 0 && starts_vector<V>(a.dy) && starts_vector<V>(a.gate) &&
                       starts_vector<V>(a.up) && starts_vector<V>(a.dgate) &&
                       starts_vector<V>(a.dup);
  const Work work("gated_backward", "backward", 5 * n * int64_t{sizeof(T)}, n);
  if (aligned)
    launch(work, backward<form, V, T>, {blocks_for(n, map_threads * V), dim3(map_threads)}, stream,
           a, n);
  else
    launch(work, backward<form, 1, T>, {blocks_for(n, map_threads), dim3(map_threads)}, stream, a,
           n);
}

}  // namespace

void gated_forward(const GatedForward& a, Workspace, Stream& stream) {
  visit_floating(a.gate.dtype(), [&]<class T>(T) {
    const T *gate = a.gate.data<T>(), *up = a.up.data<T>();
    T* y = a.y.data<T>();
    const int64_t n = a.gate.numel();
    if (a.form == Gate::silu)
      map("gated_forward", Gated<T, Gate::silu>(), n, stream, y, gate, up);
    else if (a.form == Gate::gelu_tanh)
      map("gated_forward", Gated<T, Gate::gelu_tanh>(), n, stream, y, gate, up);
    else
      map("gated_forward", Gated<T, Gate::gelu_erf>(), n, stream, y, gate, up);
  });
}

void gated_backward(const GatedBackward& a, Workspace, Stream& stream) {
  visit_floating(a.gate.dtype(), [&]<class T>(T) {
    const Gradients<T> all{.dy = a.dy.data<T>(),
                           .gate = a.gate.data<T>(),
                           .up = a.up.data<T>(),
                           .dgate = a.dgate.data<T>(),
                           .dup = a.dup.data<T>()};
    const int64_t n = a.gate.numel();
    if (a.form == Gate::silu)
      launch_backward<Gate::silu>(all, n, stream);
    else if (a.form == Gate::gelu_tanh)
      launch_backward<Gate::gelu_tanh>(all, n, stream);
    else
      launch_backward<Gate::gelu_erf>(all, n, stream);
  });
}

}  // namespace zg::cuda
