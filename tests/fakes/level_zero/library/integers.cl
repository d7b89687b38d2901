// Functions of integers that the kernels call. The translator from SPIR-V declares some unsigned
// integers as signed. Atomic operations are sequentially consistent, whatever order the caller
// gives.
#include "base.clh"

int ZG_OVERLOAD min(int x, int y) { return y < x ? y : x; }
int ZG_OVERLOAD max(int x, int y) { return x < y ? y : x; }
long ZG_OVERLOAD min(long x, long y) { return y < x ? y : x; }
long ZG_OVERLOAD max(long x, long y) { return x < y ? y : x; }
long ZG_OVERLOAD clamp(long x, long low, long high) { return x < low ? low : high < x ? high : x; }
long ZG_OVERLOAD clz(long x) { return x ? __builtin_clzl(x) : 64; }
uint ZG_OVERLOAD mul_hi(uint x, uint y) { return (uint)(((ulong)x * y) >> 32); }

int ZG_OVERLOAD atomic_fetch_add_explicit(volatile atomic_int* p, int x, memory_order order,
                                          memory_scope scope) {
  return __sync_fetch_and_add((volatile int*)p, x);
}
bool ZG_OVERLOAD atomic_compare_exchange_strong_explicit(volatile atomic_int* p, int* expected,
                                                         int desired, memory_order success,
                                                         memory_order failure, memory_scope scope) {
  const int old = __sync_val_compare_and_swap((volatile int*)p, *expected, desired);
  const bool same = old == *expected;
  *expected = old;
  return same;
}
