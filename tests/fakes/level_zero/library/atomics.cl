// OpenCL's atomic operations on 32-bit integers for the test driver. They are sequentially
// consistent, whatever order the caller gives.
#include "base.clh"

#define ZG_ATOMIC(type, name, pointer, value)                                      \
  type ZG_OVERLOAD atomic_##name##_explicit(pointer p, type x, memory_order order, \
                                            memory_scope scope) {                  \
    volatile type* const q = (volatile type*)p;                                    \
    return value;                                                                  \
  }
#define ZG_ATOMICS(type, pointer)                                                            \
  ZG_ATOMIC(type, fetch_add, pointer, __sync_fetch_and_add(q, x))                            \
  ZG_ATOMIC(type, fetch_sub, pointer, __sync_fetch_and_sub(q, x))                            \
  ZG_ATOMIC(type, fetch_and, pointer, __sync_fetch_and_and(q, x))                            \
  ZG_ATOMIC(type, fetch_or, pointer, __sync_fetch_and_or(q, x))                              \
  ZG_ATOMIC(type, fetch_xor, pointer, __sync_fetch_and_xor(q, x))                            \
  ZG_ATOMIC(type, exchange, pointer, zg_exchange(q, x))                                      \
  ZG_ATOMIC(type, fetch_min, pointer, zg_fetch_min(q, x))                                    \
  ZG_ATOMIC(type, fetch_max, pointer, zg_fetch_max(q, x))                                    \
  type ZG_OVERLOAD atomic_load_explicit(pointer p, memory_order order, memory_scope scope) { \
    return __sync_fetch_and_add((volatile type*)p, (type)0);                                 \
  }                                                                                          \
  void ZG_OVERLOAD atomic_store_explicit(pointer p, type x, memory_order order,              \
                                         memory_scope scope) {                               \
    zg_exchange((volatile type*)p, x);                                                       \
  }

#define ZG_LOOP(type, name, next)                                 \
  type ZG_OVERLOAD zg_##name(volatile type* p, type x) {          \
    for (;;) {                                                    \
      const type old = *p;                                        \
      if (__sync_bool_compare_and_swap(p, old, next)) return old; \
    }                                                             \
  }
#define ZG_LOOPS(type)                        \
  ZG_LOOP(type, exchange, x)                  \
  ZG_LOOP(type, fetch_min, x < old ? x : old) \
  ZG_LOOP(type, fetch_max, old < x ? x : old)
ZG_LOOPS(int)
ZG_LOOPS(uint)

ZG_ATOMICS(int, volatile atomic_int*)
ZG_ATOMICS(uint, volatile atomic_uint*)

bool ZG_OVERLOAD atomic_compare_exchange_strong_explicit(volatile atomic_int* p, int* expected,
                                                         int desired, memory_order success,
                                                         memory_order failure, memory_scope scope) {
  const int old = __sync_val_compare_and_swap((volatile int*)p, *expected, desired);
  const bool same = old == *expected;
  *expected = old;
  return same;
}
