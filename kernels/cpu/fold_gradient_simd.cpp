#include "kernels/cpu/fold_gradient.h"
#include "kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

template <bool rounds>
inline Vec rounded(Vec x) {
  return rounds ? widen(narrow(x)) : x;
}

template <class T, bool rounds, bool first>
void fold(const void* leaf, float* sum, int64_t n) {
  const T* x = static_cast<const T*>(leaf);
  const Vec zero = set1(0.0f);
  int64_t i = 0;
  for (; i + Vec::lanes <= n; i += Vec::lanes)
    store(sum + i, (first ? zero : load(sum + i)) + rounded<rounds>(load(x + i)));
  if (const int64_t rest = n - i)
    store(sum + i, (first ? zero : load(sum + i, rest)) + rounded<rounds>(load(x + i, rest)), rest);
}

}  // namespace

extern const FoldTable fold_table;
const FoldTable fold_table = {{{fold<float, false, false>, fold<float, false, true>},
                               {fold<float, true, false>, fold<float, true, true>},
                               {fold<bf16, false, false>, fold<bf16, false, true>}}};

}  // namespace zg::cpu::ZG_ISA
