#include "zerograd/kernels/cpu/simd.h"
#include "zerograd/kernels/optimizer/optimizer_cpu.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <class Leaf, class Rounding, class Sum, bool first>
void fold(const void* leaf, void* sum, int64_t n) {
  const Leaf* x = static_cast<const Leaf*>(leaf);
  Sum* y = static_cast<Sum*>(sum);
  const Vec zero = set1(0.0f);
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes)
    store(y + i, (first ? zero : load(y + i)) + rounded<Rounding>(load(x + i)));
  if (const int64_t rest = n - i)
    store(y + i, (first ? zero : load(y + i, rest)) + rounded<Rounding>(load(x + i, rest)), rest);
}

}  // namespace

extern const FoldTable fold_table;
const FoldTable fold_table = ZG_FOLD_TABLE(fold);

}  // namespace zg::cpu::ZG_ISA
