#include "zerograd/kernels/optimizer/fold_gradient_cpu.h"

#include "zerograd/kernels/cpu/level.h"
#include "zerograd/runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(FoldTable, fold_table)

namespace {

template <class Leaf, class Rounding, class Sum, bool first>
void fold(const void* leaf, void* sum, int64_t n) {
  const Leaf* x = static_cast<const Leaf*>(leaf);
  Sum* y = static_cast<Sum*>(sum);
  for (int64_t i = 0; i < n; ++i)
    y[i] = Sum((first ? 0.0f : static_cast<float>(y[i])) +
               static_cast<float>(Rounding(static_cast<float>(x[i]))));
}

constexpr FoldTable portable = ZG_FOLD_TABLE(fold);

int index_of(DType dtype) { return dtype == DType::f32 ? 0 : dtype == DType::bf16 ? 1 : 2; }

// Memory bound: at most 12 bytes an element, so a task only has to be longer than its hand-out.
constexpr int64_t grain = 1 << 16;

}  // namespace

void fold_gradient(const FoldGradient& args, Workspace, Stream& stream) {
  const FoldTable* table = ZG_AT_LEVEL(stream.traits().isa, fold_table);
  const Fold function = (table ? *table : portable)
                            .fold[index_of(args.leaf.dtype())][index_of(args.rounding)]
                                 [index_of(args.sum.dtype())][args.first];
  const std::byte* leaf = args.leaf.raw();
  std::byte* sum = args.sum.raw();
  const int64_t leaf_size = size_of(args.leaf.dtype()), sum_size = size_of(args.sum.dtype());
  parallel_for(stream.traits().threads, args.leaf.numel(), grain, [&](int64_t begin, int64_t end) {
    function(leaf + begin * leaf_size, sum + begin * sum_size, end - begin);
  });
}

}  // namespace zg::cpu
