#include "zerograd/kernels/cuda/map.cuh"
#include "zerograd/kernels/optimizer/optimizer.h"

namespace zg::cuda {
namespace {

/// sum + leaf rounded to Rounding; the first leaf is added to 0.
template <class Leaf, class Rounding, class Sum>
struct Fold {
  __device__ Sum operator()(Leaf leaf) const { return added(0.0f, leaf); }
  __device__ Sum operator()(Leaf leaf, Sum sum) const { return added(to_float(sum), leaf); }

  __device__ static Sum added(float sum, Leaf leaf) {
    return from_float<Sum>(sum + to_float(from_float<Rounding>(to_float(leaf))));
  }
};

template <class Leaf, class Rounding, class Sum>
void run(const FoldGradient& a, Stream& stream) {
  const Fold<Leaf, Rounding, Sum> fold;
  const Leaf* leaf = a.leaf.data<Leaf>();
  Sum* sum = a.sum.data<Sum>();
  if (a.first)
    map("fold_gradient", fold, a.leaf.numel(), stream, sum, leaf);
  else
    map("fold_gradient", fold, a.leaf.numel(), stream, sum, leaf, static_cast<const Sum*>(sum));
}

}  // namespace

void fold_gradient(const FoldGradient& a, Workspace, Stream& stream) {
  visit_floating(a.leaf.dtype(), [&]<class Leaf>(Leaf) {
    visit_floating(a.rounding, [&]<class Rounding>(Rounding) {
      if (a.sum.dtype() == DType::bf16)
        run<Leaf, Rounding, bf16>(a, stream);
      else
        run<Leaf, Rounding, float>(a, stream);
    });
  });
}

}  // namespace zg::cuda
