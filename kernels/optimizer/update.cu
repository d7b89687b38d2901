#include "zerograd/kernels/optimizer/optimizer.h"

#include <algorithm>
#include <type_traits>

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

// One step of many tensors in one launch. A block of 256 threads updates consecutive elements of
// one tensor; a thread updates `width` of them, as vectors if all arrays are aligned for that.
constexpr int threads = 256;
constexpr int block_words = 4;  // random words of a Philox block: one for each element

/// The elements of a thread: those of parameter and moments in 16 bytes.
template <class State>
constexpr int width_of = vector_width<State>;
int64_t width_for(DType state) { return state == DType::bf16 ? width_of<bf16> : width_of<float>; }

/// One tensor of a launch; see OptimizerTensor for the fields.
struct Entry {
  const void* gradient;
  void *parameter, *moment1, *moment2, *low_precision;
  int64_t n;
  uint64_t name;
  int64_t first;
  float l2, keep, move;  // weight decay and rate, as in UpdateConstants
  uint32_t first_block;  // first block of the launch that updates this tensor
  bool is_aligned;       // is_aligned_for_vectors()
};

/// The arguments of a launch, passed by value. They fit the 4 KiB that every device allows for
/// kernel parameters, so no memory has to be allocated, filled and kept for them. PyTorch's
/// multi_tensor_apply does the same.
struct Launch {
  static constexpr int max_entries = 45;
  Entry entries[max_entries];
  int count;
  uint32_t step;
  uint64_t seed;
  const float* scale;  // OptimizerUpdate::scale; null: numbers.gradient_scale
  UpdateConstants numbers;
};
static_assert(sizeof(Launch) <= 4096);

// kernels/README.md lists these operations; every backend has their bits.

/// Updates the moments of an element by its gradient g, and returns the direction against which the
/// parameter moves.
template <UpdateKind kind>
__device__ inline float direction(float g, float& m, float& v, const UpdateConstants& c) {
  if constexpr (kind == UpdateKind::adam) {
    m = __fmaf_rn(c.beta1, m, __fmul_rn(c.new1, g));
    v = __fmaf_rn(c.beta2, v, __fmul_rn(c.new2, __fmul_rn(g, g)));
    return __fdiv_rn(m, __fmaf_rn(__fsqrt_rn(v), c.unbias2, c.epsilon));
  } else if constexpr (kind == UpdateKind::lion) {
    const float interpolated = __fmaf_rn(c.beta1, m, __fmul_rn(c.new1, g));
    m = __fmaf_rn(c.beta2, m, __fmul_rn(c.new2, g));
    return interpolated > 0.0f ? 1.0f : interpolated < 0.0f ? -1.0f : 0.0f;
  } else if constexpr (kind == UpdateKind::momentum) {
    m = __fmaf_rn(c.beta1, m, __fmul_rn(c.new1, g));
    return c.nesterov ? __fmaf_rn(c.beta1, m, g) : m;
  } else {
    return g;
  }
}

template <UpdateKind kind>
__device__ inline void update(float g, float& p, float& m, float& v, float scale,
                              const UpdateConstants& c, const Entry& t) {
  g = __fmul_rn(g, scale);
  if (t.l2 != 0.0f) g = __fmaf_rn(t.l2, p, g);
  const float moved = direction<kind>(g, m, v, c);
  p = __fmaf_rn(-t.move, moved, __fmul_rn(t.keep, p));
}

/// words[element % 4]. Indexing with a run-time value would put the array into local memory.
__device__ inline uint32_t random_word(const Philox::Block& words, int64_t element) {
  uint32_t word = words[0];
#pragma unroll
  for (int k = 1; k < block_words; ++k)
    if (element % block_words == k) word = words[static_cast<size_t>(k)];
  return word;
}

/// Updates V elements from i on. If V > 1, element i uses the first word of a Philox block.
template <UpdateKind kind, class State, class Gradient, class Low, bool rounds, int V>
__device__ inline void update_at(int64_t i, float scale, const Launch& a, const Entry& t) {
  State* const parameter = static_cast<State*>(t.parameter) + i;
  State* const moment1 = static_cast<State*>(t.moment1) + i;
  State* const moment2 = static_cast<State*>(t.moment2) + i;
  const auto g = load<V>(static_cast<const Gradient*>(t.gradient) + i);
  auto p = load<V>(parameter);
  Vec<State, V> m, v;
  if constexpr (has_moment1(kind)) m = load<V>(moment1);
  if constexpr (has_moment2(kind)) v = load<V>(moment2);
  Vec<Low, V> low;
  Philox::Block words = {};
  const RoundingKey key = {.seed = a.seed, .name = t.name, .step = a.step};
  const int64_t element = t.first + i;
#pragma unroll
  for (int k = 0; k < V; ++k) {
    float next = to_float(p.v[k]), first = 0.0f, second = 0.0f;
    if constexpr (has_moment1(kind)) first = to_float(m.v[k]);
    if constexpr (has_moment2(kind)) second = to_float(v.v[k]);
    update<kind>(to_float(g.v[k]), next, first, second, scale, a.numbers, t);
    p.v[k] = from_float<State>(next);
    if constexpr (has_moment1(kind)) m.v[k] = from_float<State>(first);
    if constexpr (has_moment2(kind)) v.v[k] = from_float<State>(second);
    low.v[k] = from_float<Low>(next);
    if constexpr (rounds) {
      if (k % block_words == 0) words = key.block(element + k);
      const uint32_t word =
          V > 1 ? words[static_cast<size_t>(k % block_words)] : random_word(words, element);
      low.v[k].bits = stochastic_bf16(__float_as_uint(next), word);
      if constexpr (std::is_same_v<State, bf16>) p.v[k] = low.v[k];
    }
  }
  store(parameter, p);
  if constexpr (has_moment1(kind)) store(moment1, m);
  if constexpr (has_moment2(kind)) store(moment2, v);
  if (t.low_precision) store(static_cast<Low*>(t.low_precision) + i, low);
}

/// Updates the block's elements. Writes nothing if the factor that the device computed is NaN.
template <UpdateKind kind, class State, class Gradient, class Low, bool rounds>
__device__ inline void update_block(const Launch& a) {
  const float scale = a.scale ? *a.scale : a.numbers.gradient_scale;
  if (a.scale && scale != scale) return;
  const Entry& t = a.entries[piece_of_block(a.entries, a.count)];
  constexpr int width = width_of<State>;
  const int64_t begin = int64_t{blockIdx.x - t.first_block} * (threads * width);
  const int64_t i = begin + threadIdx.x * (t.is_aligned ? width : 1);
  if (t.is_aligned && i + width <= t.n)
    return update_at<kind, State, Gradient, Low, rounds, width>(i, scale, a, t);
  const int stride = t.is_aligned ? 1 : threads;
#pragma unroll 1
  for (int k = 0; k < width; ++k)
    if (i + k * stride < t.n)
      update_at<kind, State, Gradient, Low, rounds, 1>(i + k * stride, scale, a, t);
}

// Memory bound: with f32 gradients adam reads and writes 28 bytes for each element (p, m, v twice,
// g once).
template <UpdateKind kind, class State, class Gradient, class Low>
__global__ void __launch_bounds__(threads) optimizer_step(const __grid_constant__ Launch a) {
  update_block<kind, State, Gradient, Low, false>(a);
}
template <UpdateKind kind, class State, class Gradient>
__global__ void __launch_bounds__(threads)
    rounded_optimizer_step(const __grid_constant__ Launch a) {
  update_block<kind, State, Gradient, bf16, true>(a);
}

/// Whether every array is aligned for vectors of `width` elements, of which 16 bytes are loaded at
/// once, and the random words of a vector begin a Philox block.
bool is_aligned_for_vectors(const OptimizerTensor& t, int64_t width) {
  for (const Tensor* tensor : {&t.parameter, &t.gradient, &t.moment1, &t.moment2, &t.low_precision})
    if (*tensor && reinterpret_cast<uintptr_t>(tensor->raw()) %
                           std::min<size_t>(16, width * size_of(tensor->dtype())) !=
                       0)
      return false;
  return t.first % block_words == 0;
}

using Step = void (*)(Launch);

template <UpdateKind kind, class State, class Gradient, class Low>
Step step_of(const OptimizerUpdate& a) {
  if constexpr (std::is_same_v<Low, bf16>)
    if (a.rounding_seed) return rounded_optimizer_step<kind, State, Gradient>;
  return optimizer_step<kind, State, Gradient, Low>;
}

template <UpdateKind kind>
Step step_of(const OptimizerUpdate& a) {
  const OptimizerTensor& first = a.tensors[0];
  const auto with_gradient = [&]<class Gradient>(Gradient) {
    if (first.parameter.dtype() == DType::bf16) return step_of<kind, bf16, Gradient, bf16>(a);
    if (first.low_precision && first.low_precision.dtype() == DType::f16)
      return step_of<kind, float, Gradient, f16>(a);
    return step_of<kind, float, Gradient, bf16>(a);
  };
  return first.gradient.dtype() == DType::bf16 ? with_gradient(bf16()) : with_gradient(float());
}

Step step_of(const OptimizerUpdate& a) {
  switch (kind_of(a)) {
    case UpdateKind::adam:
      return step_of<UpdateKind::adam>(a);
    case UpdateKind::lion:
      return step_of<UpdateKind::lion>(a);
    case UpdateKind::momentum:
      return step_of<UpdateKind::momentum>(a);
    case UpdateKind::descent:
      break;
  }
  return step_of<UpdateKind::descent>(a);
}

}  // namespace

void optimizer_update(const OptimizerUpdate& a, Workspace, Stream& stream) {
  if (a.tensors.empty()) return;
  const Step step = step_of(a);
  const int64_t width = width_for(a.tensors[0].parameter.dtype());
  Launch next{.count = 0,
              .step = static_cast<uint32_t>(a.step),
              .seed = a.rounding_seed.value_or(0),
              .scale = a.scale ? a.scale.data<float>() : nullptr,
              .numbers = constants(a, a.tensors[0])};
  uint32_t blocks = 0;
  int64_t bytes = 0, elements = 0;
  const auto flush = [&] {
    launch({"optimizer_update", "optimizer_step", bytes, elements}, step,
           {dim3(blocks), dim3(threads)}, stream, next);
    next.count = 0;
    blocks = 0;
    bytes = elements = 0;
  };
  for (const OptimizerTensor& t : a.tensors) {
    const int64_t n = t.parameter.numel();
    if (n == 0) continue;
    const UpdateConstants numbers = constants(a, t);
    next.entries[next.count++] = {.gradient = t.gradient.raw(),
                                  .parameter = t.parameter.raw(),
                                  .moment1 = t.moment1.raw(),
                                  .moment2 = t.moment2.raw(),
                                  .low_precision = t.low_precision.raw(),
                                  .n = n,
                                  .name = t.name,
                                  .first = t.first,
                                  .l2 = numbers.l2,
                                  .keep = numbers.keep,
                                  .move = numbers.move,
                                  .first_block = blocks,
                                  .is_aligned = is_aligned_for_vectors(t, width)};
    blocks += blocks_for(n, threads * width).x;
    bytes += bytes_of({&t.gradient, &t.low_precision}) +
             2 * bytes_of({&t.parameter, &t.moment1, &t.moment2});
    elements += n;
    if (next.count == Launch::max_entries) flush();
  }
  flush();
}

}  // namespace zg::cuda
