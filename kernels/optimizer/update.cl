#include "zerograd/kernels/hpu/philox.clh"
#include "zerograd/kernels/hpu/tile.clh"

// The update of one element; kernels/README.md lists its operations. Every device whose division
// and square root are correctly rounded gives the same bits. The components of c, from s0 on:
// gradient_scale, l2, beta1, new1, beta2, new2, unbias2, epsilon, keep, move, nesterov. They are
// those of UpdateConstants in kernels/optimizer/update_constants.h, which explains them.

// The direction against which the parameter moves; the moments of the element are updated.
static inline float adam_direction(float g, float* m, float* v, float16 c) {
  *m = fma(c.s2, *m, c.s3 * g);
  *v = fma(c.s4, *v, c.s5 * (g * g));
  return *m / fma(sqrt(*v), c.s6, c.s7);
}
static inline float lion_direction(float g, float* m, float* v, float16 c) {
  (void)v;
  const float interpolated = fma(c.s2, *m, c.s3 * g);
  *m = fma(c.s4, *m, c.s5 * g);
  return interpolated > 0.0f ? 1.0f : interpolated < 0.0f ? -1.0f : 0.0f;
}
static inline float momentum_direction(float g, float* m, float* v, float16 c) {
  (void)v;
  *m = fma(c.s2, *m, c.s3 * g);
  return c.sa != 0.0f ? fma(c.s2, *m, g) : *m;
}
static inline float descent_direction(float g, float* m, float* v, float16 c) {
  (void)m, (void)v, (void)c;
  return g;
}

static inline float scaled_gradient(float g, float p, float16 c) {
  g = g * c.s0;
  return c.s1 != 0.0f ? fma(c.s1, p, g) : g;
}

// Rounds a span to bf16 stochastically. It has the random bits of RoundingKey::block() and rounds
// as stochastic_bf16() does; both are in kernels/optimizer/update_constants.h.
static inline ushort8 stochastically_rounded(float8 span, int count, long first, ulong seed,
                                             ulong name_hash, uint step) {
  ushort8 rounded = 0;
  for (int e = 0; e < count; ++e) {
    const long element = first + e;
    const uint4 words =
        philox((uint4)((uint)(element / 4), (uint)name_hash, step, (uint)(name_hash >> 32)), seed);
    const float x = span[e];
    const uint random = words[(uint)element % 4] >> 16;
    rounded[e] =
        isnan(x) || isinf(x) ? narrowed_bf16(x) : (bf16)((as_uint(x) + random) >> 16);
  }
  return rounded;
}

// Up to 16 tensors, by their addresses: 0 for the moments that a kind does not have. `state` is the
// dtype of the parameters and the moments; with bf16 there is no low_precision copy. c has what all
// tensors share; l2, keep and move replace its own. If `scale` is not null, it is c.s0; if that is
// NaN, nothing is updated. If `stochastic`, the bf16 result is rounded stochastically; `first` is
// then the index, in the whole parameter, of a tensor's element 0.
#define UPDATE(kind, state, gradient_type)                                                       \
  element_kernel void kind##_##state##_##gradient_type(                                          \
      __global const uchar* arena, long16 gradients, long16 parameters, long16 moments1,         \
      long16 moments2, long16 copies,                                                            \
      long16 counts, long16 ends, float16 l2, float16 keep, float16 move, float16 c,             \
      __global const float* scale, uint stochastic, ulong seed, long16 names, long16 firsts,     \
      uint step) {                                                                               \
    (void)arena; /* as in fold_gradient.cl */                                                    \
    if (scale) c.s0 = *scale;                                                                    \
    if (isnan(c.s0)) return;                                                                     \
    long index;                                                                                  \
    const int k = tensor_of_group(ends, &index);                                                 \
    take_span_of(index, counts[k]);                                                              \
    c.s1 = l2[k];                                                                                \
    const float kept = keep[k], moved = -move[k];                                                \
    __global const gradient_type##_t* const gradient =                                           \
        (__global const gradient_type##_t*)gradients[k];                                         \
    __global state##_t* const parameter = (__global state##_t*)parameters[k];                    \
    __global state##_t* const moment1 = (__global state##_t*)moments1[k];                        \
    __global state##_t* const moment2 = (__global state##_t*)moments2[k];                        \
    __global bf16* const copy = (__global bf16*)copies[k];                                       \
    const ulong name = names[k];                                                                 \
    const long first = firsts[k];                                                                \
    const gradient_type##_t8 gs = load_span(gradient + begin, count);                            \
    float8 results;                                                                              \
    _Pragma("unroll") for (int at = 0; at < SPAN; at += AT_ONCE_##state) {                       \
      state##_part ps = load_##state(parameter + begin + at, count - at), ms = 0, vs = 0;        \
      if (moment1) ms = load_##state(moment1 + begin + at, count - at);                          \
      if (moment2) vs = load_##state(moment2 + begin + at, count - at);                          \
      _Pragma("unroll") for (int e = 0; e < AT_ONCE_##state; ++e) {                              \
        const float p = widened_##state(ps[e]);                                                  \
        float m = widened_##state(ms[e]), v = widened_##state(vs[e]);                            \
        const float g = scaled_gradient(widened_##gradient_type(gs[at + e]), p, c);              \
        results[at + e] = fma(moved, kind##_direction(g, &m, &v, c), kept * p);                  \
        ms[e] = narrowed_##state(m);                                                             \
        vs[e] = narrowed_##state(v);                                                             \
      }                                                                                          \
      if (moment1) store_##state(moment1 + begin + at, ms, count - at);                          \
      if (moment2) store_##state(moment2 + begin + at, vs, count - at);                          \
    }                                                                                            \
    ushort8 narrow;                                                                              \
    for_span(e) narrow[e] = narrowed_bf16(results[e]);                                           \
    if (stochastic)                                                                              \
      narrow = stochastically_rounded(results, count, first + begin, seed, name, step);          \
    if (copy) store_span(copy + begin, narrow, count);                                           \
    store_span(parameter + begin, result_##state(results, narrow), count);                      \
  }
// Floats are read four at a time, 16 bytes, and not eight: fewer registers, as wide accesses.
#define AT_ONCE_f32 4
#define AT_ONCE_bf16 SPAN
#define load_f32 load_half
#define load_bf16 load_span
#define store_f32 store_half
#define store_bf16 store_span
#define result_f32(results, narrow) results
#define result_bf16(results, narrow) narrow
#define UPDATES(kind)     \
  UPDATE(kind, f32, f32)  \
  UPDATE(kind, f32, bf16) \
  UPDATE(kind, bf16, f32) \
  UPDATE(kind, bf16, bf16)

typedef float f32_t;
typedef bf16 bf16_t;
typedef float8 f32_t8;
typedef ushort8 bf16_t8, bf16_part;
typedef float4 f32_part;
UPDATES(adam)
UPDATES(lion)
UPDATES(momentum)
UPDATES(descent)
