#include "kernels/adam.h"

#include "kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

constexpr int threads = 256, width = 4;

struct Range {
  const void* gradient;
  void *parameter, *moment1, *moment2, *low_precision;
  int64_t n;
};

/// kernels/README.md lists these operations; every backend has their bits.
__device__ inline void update(float g, float& p, float& m, float& v, const AdamConstants& c) {
  g = __fmul_rn(g, c.gradient_scale);
  if (c.l2 != 0.0f) g = __fmaf_rn(c.l2, p, g);
  m = __fmaf_rn(c.beta1, m, __fmul_rn(c.new1, g));
  v = __fmaf_rn(c.beta2, v, __fmul_rn(c.new2, __fmul_rn(g, g)));
  const float denominator = __fmaf_rn(__fsqrt_rn(v), c.unbias2, c.epsilon);
  p = __fmaf_rn(-c.move, __fdiv_rn(m, denominator), __fmul_rn(c.keep, p));
}

template <class State, class Gradient, class Low, int V>
__global__ void __launch_bounds__(threads) adam_step(Range range, AdamConstants c) {
  const int64_t i = (int64_t{blockIdx.x} * threads + threadIdx.x) * V;
  if (i >= range.n) return;
  State* const parameter = static_cast<State*>(range.parameter) + i;
  State* const moment1 = static_cast<State*>(range.moment1) + i;
  State* const moment2 = static_cast<State*>(range.moment2) + i;
  const auto g = load<V>(static_cast<const Gradient*>(range.gradient) + i);
  auto p = load<V>(parameter), m = load<V>(moment1), v = load<V>(moment2);
  Vec<Low, V> low;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    float next = to_float(p.v[k]), first = to_float(m.v[k]), second = to_float(v.v[k]);
    update(to_float(g.v[k]), next, first, second, c);
    p.v[k] = from_float<State>(next);
    m.v[k] = from_float<State>(first);
    v.v[k] = from_float<State>(second);
    low.v[k] = from_float<Low>(next);
  }
  store(parameter, p);
  store(moment1, m);
  store(moment2, v);
  if (range.low_precision) store(static_cast<Low*>(range.low_precision) + i, low);
}

/// Every tensor of the range starts where `width` of its elements are loaded at once.
bool takes_width(const Adam& a) {
  for (const Tensor* tensor : {&a.parameter, &a.gradient, &a.moment1, &a.moment2, &a.low_precision})
    if (*tensor &&
        reinterpret_cast<uintptr_t>(tensor->raw()) % (width * size_of(tensor->dtype())) != 0)
      return false;
  return a.parameter.numel() % width == 0;
}

template <class State, class Gradient, class Low>
void run(const Adam& a, Stream& stream) {
  const Range range{.gradient = a.gradient.raw(),
                    .parameter = a.parameter.raw(),
                    .moment1 = a.moment1.raw(),
                    .moment2 = a.moment2.raw(),
                    .low_precision = a.low_precision.raw(),
                    .n = a.parameter.numel()};
  const AdamConstants numbers = constants(a);
  if (takes_width(a))
    launch("adam", adam_step<State, Gradient, Low, width>,
           {blocks_for(range.n, threads * width), dim3(threads)}, stream, range, numbers);
  else
    launch("adam", adam_step<State, Gradient, Low, 1>,
           {blocks_for(range.n, threads), dim3(threads)}, stream, range, numbers);
}

}  // namespace

void adam(const Adam& a, Workspace, Stream& stream) {
  const auto with_gradient = [&]<class Gradient>(Gradient) {
    if (a.parameter.dtype() == DType::bf16)
      run<bf16, Gradient, bf16>(a, stream);
    else if (a.low_precision && a.low_precision.dtype() == DType::f16)
      run<float, Gradient, f16>(a, stream);
    else
      run<float, Gradient, bf16>(a, stream);
  };
  if (a.gradient.dtype() == DType::bf16)
    with_gradient(bf16());
  else
    with_gradient(float());
}

}  // namespace zg::cuda
