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

// Rounds x to bf16 stochastically. It has the random bits of RoundingKey::block() and rounds as
// stochastic_bf16() does; both are in kernels/optimizer/update_constants.h.
static inline bf16 stochastically_rounded(float x, long element, ulong seed, ulong name_hash,
                                          uint step) {
  const uint4 words =
      philox((uint4)((uint)(element / 4), (uint)name_hash, step, (uint)(name_hash >> 32)), seed);
  const uint place = (uint)element % 4;
  const uint word = place == 0   ? words.s0
                    : place == 1 ? words.s1
                    : place == 2 ? words.s2
                                 : words.s3;
  if (isnan(x) || isinf(x)) return narrowed_bf16(x);
  return (bf16)((as_uint(x) + (word >> 16)) >> 16);
}

// One work-item for each element. `state` is the dtype of the parameter and the moments; with bf16
// there is no low_precision copy. The moments that a kind does not have are null. If `stochastic`,
// the bf16 result is rounded stochastically. `first` is then the index, in the whole parameter, of
// the element that work-item 0 updates.
#define UPDATE(kind, state, gradient_type)                                                    \
  element_kernel void kind##_##state##_##gradient_type(                                       \
      __global const gradient_type##_t* gradient, __global state##_t* parameter,              \
      __global state##_t* moment1, __global state##_t* moment2, __global bf16* low_precision, \
      long n, float16 constants, uint stochastic, ulong seed, ulong name_hash, long first,    \
      uint step) {                                                                            \
    const long i = element_index();                                                           \
    if (i >= n) return;                                                                       \
    float p = widened_##state(parameter[i]);                                                  \
    float m = moment1 ? widened_##state(moment1[i]) : 0.0f;                                   \
    float v = moment2 ? widened_##state(moment2[i]) : 0.0f;                                   \
    const float g = scaled_gradient(widened_##gradient_type(gradient[i]), p, constants);      \
    const float direction = kind##_direction(g, &m, &v, constants);                           \
    p = fma(-constants.s9, direction, constants.s8 * p);                                      \
    parameter[i] = narrowed_##state(p);                                                       \
    if (moment1) moment1[i] = narrowed_##state(m);                                            \
    if (moment2) moment2[i] = narrowed_##state(v);                                            \
    if (low_precision) low_precision[i] = narrowed_bf16(p);                                   \
    if (stochastic) {                                                                         \
      __global bf16* to = low_precision ? low_precision : (__global bf16*)parameter;          \
      to[i] = stochastically_rounded(p, first + i, seed, name_hash, step);                    \
    }                                                                                         \
  }
#define UPDATES(kind)     \
  UPDATE(kind, f32, f32)  \
  UPDATE(kind, f32, bf16) \
  UPDATE(kind, bf16, f32) \
  UPDATE(kind, bf16, bf16)

typedef float f32_t;
typedef bf16 bf16_t;
UPDATES(adam)
UPDATES(lion)
UPDATES(momentum)
UPDATES(descent)
