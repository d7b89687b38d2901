#include "kernels/cpu/fold_gradient.h"

#include "kernels/cpu/level.h"
#include "runtime/cpu/team.h"

namespace zg::cpu {

ZG_DECLARE_LEVELS(FoldTable, fold_table)

namespace {

template <class T, class Rounded, bool first>
void fold(const void* leaf, float* sum, int64_t n) {
  const T* x = static_cast<const T*>(leaf);
  for (int64_t i = 0; i < n; ++i)
    sum[i] = (first ? 0.0f : sum[i]) + static_cast<float>(Rounded(static_cast<float>(x[i])));
}

constexpr FoldTable portable = {{{fold<float, float, false>, fold<float, float, true>},
                                 {fold<float, bf16, false>, fold<float, bf16, true>},
                                 {fold<bf16, bf16, false>, fold<bf16, bf16, true>}}};

// Memory bound: at most 12 bytes an element, so a task only has to be longer than its hand-out.
constexpr int64_t grain = 1 << 16;

}  // namespace

void fold_gradient(const FoldGradient& args, Workspace, Stream& stream) {
  const FoldTable* table = ZG_AT_LEVEL(stream.traits().isa, fold_table);
  const FoldTable::Leaf kind = args.leaf.dtype() == DType::bf16 ? FoldTable::narrow
                               : args.rounding == DType::bf16   ? FoldTable::rounded
                                                                : FoldTable::whole;
  const Fold function = (table ? *table : portable).fold[kind][args.first];
  const std::byte* leaf = args.leaf.raw();
  const int64_t size = size_of(args.leaf.dtype());
  float* sum = args.sum.data<float>();
  parallel_for(stream.traits().threads, args.leaf.numel(), grain, [&](int64_t begin, int64_t end) {
    function(leaf + begin * size, sum + begin, end - begin);
  });
}

}  // namespace zg::cpu
