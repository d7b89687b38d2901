#include "zerograd/kernels/hpu/philox.clh"
#include "zerograd/kernels/hpu/tile.clh"

// The update of one element; kernels/README.md lists its operations. Every device whose division
// and square root are correctly rounded gives the same bits.
static inline void update(float g, float* p, float* m, float* v, float16 c) {
  g = g * c.s0;                                         // gradient_scale
  if (c.s1 != 0.0f) g = fma(c.s1, *p, g);               // l2
  *m = fma(c.s2, *m, c.s3 * g);                         // beta1, new1
  *v = fma(c.s4, *v, c.s5 * (g * g));                   // beta2, new2
  const float denominator = fma(sqrt(*v), c.s6, c.s7);  // unbias2, epsilon
  *p = fma(-c.s9, *m / denominator, c.s8 * *p);         // move, keep
}

// Stochastic rounding: RoundingKey and stochastic_bf16 of kernels/optimizer/adam_constants.h.
static inline bf16 rounded(float x, long element, ulong seed, ulong name, uint step) {
  const uint4 words =
      philox((uint4)((uint)(element / 4), (uint)name, step, (uint)(name >> 32)), seed);
  const uint place = (uint)element % 4;
  const uint word = place == 0   ? words.s0
                    : place == 1 ? words.s1
                    : place == 2 ? words.s2
                                 : words.s3;
  if (isnan(x) || isinf(x)) return narrowed_bf16(x);
  return (bf16)((as_uint(x) + (word >> 16)) >> 16);
}

// One work-item for each element. `state` is the dtype of the parameter and the moments; with bf16
// there is no low_precision copy. If `stochastic`, the bf16 result is rounded stochastically;
// `first` is then the index of element 0 within its whole parameter.
#define ADAM(state, gradient_type)                                                                 \
  element_kernel void adam_##state##_##gradient_type(                                              \
      __global const gradient_type##_t* gradient, __global state##_t* parameter,                   \
      __global state##_t* moment1, __global state##_t* moment2, __global bf16* low_precision,      \
      long n, float16 constants, uint stochastic, ulong seed, ulong name, long first, uint step) { \
    const long i = element_index();                                                                \
    if (i >= n) return;                                                                            \
    float p = widened_##state(parameter[i]), m = widened_##state(moment1[i]),                      \
          v = widened_##state(moment2[i]);                                                         \
    update(widened_##gradient_type(gradient[i]), &p, &m, &v, constants);                           \
    parameter[i] = narrowed_##state(p);                                                            \
    moment1[i] = narrowed_##state(m);                                                              \
    moment2[i] = narrowed_##state(v);                                                              \
    if (low_precision) low_precision[i] = narrowed_bf16(p);                                        \
    if (stochastic) {                                                                              \
      __global bf16* to = low_precision ? low_precision : (__global bf16*)parameter;               \
      to[i] = rounded(p, first + i, seed, name, step);                                             \
    }                                                                                              \
  }

typedef float f32_t;
typedef bf16 bf16_t;
ADAM(f32, f32)
ADAM(f32, bf16)
ADAM(bf16, f32)
ADAM(bf16, bf16)
