#include "zerograd/kernels/elementwise/dropout.h"

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

constexpr int threads = 256;
constexpr int block_words = 4;  // random words of a Philox block: one for each element

template <int V>
constexpr int elements_of_thread = V > block_words ? V : block_words;

/// y = x with elements dropped and the others scaled by 1 / (1 - probability), plus residual. A
/// thread handles four elements, or V if they are more, and loads and stores V at once. Unless V is
/// 1 the slice is aligned and the elements of a sample are a multiple of V. The mask equals the
/// CPU's.
template <class T, int V>
__global__ void __launch_bounds__(threads)
    drop(const T* x, const T* residual, T* y, int64_t elements, int64_t blocks_of_sample,
         float probability, DropoutKey key, DropoutSlice slice) {
  constexpr int each = elements_of_thread<V>;
  const int64_t sample = blockIdx.x / blocks_of_sample, start = sample * elements;
  const int64_t first = (blockIdx.x % blocks_of_sample * threads + threadIdx.x) * each;
  const float scale = __fdiv_rn(1.0f, 1.0f - probability);
  Philox::Block random = {};
#pragma unroll(V > 1 ? each / V : 1)
  for (int begin = 0; begin < each; begin += V) {
    if (first + begin >= elements) return;
    const int64_t at = start + first + begin;
    const auto values = load<V>(x + at);
    const auto added = residual ? load<V>(residual + at) : Vec<T, V>{};
    Vec<T, V> result;
#pragma unroll
    for (int k = 0; k < V; ++k) {
      const int e = begin + k;
      const bool counts = V == 1 || e % block_words == 0;  // else it has the counter of e - 1
      const int64_t index = V == 1 ? slice.at(first + e) : e;
      if (counts && probability > 0.0f) {
        const uint32_t counter =
            V == 1 ? static_cast<uint32_t>(index / block_words) : slice.counter_at(first + e);
        random = Philox::block(
            {counter, key.sample + static_cast<uint32_t>(sample), key.step, key.site}, key.seed);
      }
      const bool kept = uniform(Philox::word(random, index)) >= probability;
      const float value = kept ? to_float(values.v[k]) * scale : 0.0f;
      result.v[k] = from_float<T>(residual ? value + to_float(added.v[k]) : value);
    }
    store(y + at, result);
  }
}

}  // namespace

void dropout(const Dropout& a, Workspace, Stream& stream) {
  const int64_t samples = a.x.extent(0);
  if (a.x.numel() == 0) return;
  const int64_t elements = a.x.numel() / samples;
  const DropoutSlice slice = dropout_slice("dropout", a.probability, a.x.shape(), a.key);
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    const T* x = a.x.data<T>();
    const T* residual = a.residual ? a.residual.data<T>() : nullptr;
    T* y = a.y.data<T>();
    const auto run = [&]<int V>(std::integral_constant<int, V>) {
      const int64_t blocks_of_sample =
          blocks_for(elements, int64_t{threads} * elements_of_thread<V>).x;
      const dim3 blocks(static_cast<unsigned>(samples * blocks_of_sample));
      launch({"dropout", "drop", operand_bytes(a), a.x.numel()}, drop<T, V>,
             {blocks, dim3(threads)}, stream, x, residual, y, elements, blocks_of_sample,
             a.probability, a.key, slice);
    };
    if (slice.is_aligned(elements) && takes_vectors(x, elements) &&
        takes_vectors(residual, elements) && takes_vectors(y, elements))
      run(std::integral_constant<int, vector_width<T>>());
    else
      run(std::integral_constant<int, 1>());
  });
}

}  // namespace zg::cuda
