#include "zerograd/kernels/elementwise/dropout.h"

#include "zerograd/kernels/cuda/tile.cuh"

namespace zg::cuda {
namespace {

constexpr int threads = 256;
constexpr int block_words = 4;  // random words of a Philox block: one for each element

/// y = x with elements dropped and the others scaled by 1 / (1 - probability), plus residual. A
/// thread handles the four elements of one Philox counter. The mask equals the CPU's.
template <class T>
__global__ void __launch_bounds__(threads)
    drop(const T* x, const T* residual, T* y, int64_t elements, int64_t blocks_of_sample,
         float probability, DropoutKey key) {
  const int64_t sample = blockIdx.x / blocks_of_sample, start = sample * elements;
  const int64_t counter = blockIdx.x % blocks_of_sample * threads + threadIdx.x;
  const int64_t first = counter * block_words;
  if (first >= elements) return;
  const float scale = __fdiv_rn(1.0f, 1.0f - probability);
  Philox::Block random = {};
  if (probability > 0.0f)
    random = Philox::block({static_cast<uint32_t>(counter),
                            key.sample + static_cast<uint32_t>(sample), key.step, key.site},
                           key.seed);
  for (int k = 0; k < block_words && first + k < elements; ++k) {
    const int64_t at = start + first + k;
    const bool kept = uniform(random[static_cast<size_t>(k)]) >= probability;
    const float value = kept ? to_float(x[at]) * scale : 0.0f;
    y[at] = from_float<T>(residual ? value + to_float(residual[at]) : value);
  }
}

}  // namespace

void dropout(const Dropout& a, Workspace, Stream& stream) {
  const int64_t samples = a.x.extent(0);
  if (a.x.numel() == 0) return;
  const int64_t elements = a.x.numel() / samples;
  visit_floating(a.x.dtype(), [&]<class T>(T) {
    const int64_t blocks_of_sample = blocks_for(elements, int64_t{threads} * block_words).x;
    const dim3 blocks(static_cast<unsigned>(samples * blocks_of_sample));
    launch("dropout", drop<T>, {blocks, dim3(threads)}, stream,
           static_cast<const T*>(a.x.data<T>()),
           static_cast<const T*>(a.residual ? a.residual.data<T>() : nullptr), a.y.data<T>(),
           elements, blocks_of_sample, a.probability, a.key);
  });
}

}  // namespace zg::cuda
