#include "zerograd/kernels/optimizer/optimizer_cpu.h"

#include "zerograd/kernels/cpu/simd.h"

namespace zg::cpu::ZG_ISA {
namespace {

// The square of a widened f32, bf16 or f16 is exact in f64, so a fused multiply-add gives the same
// result as a product followed by a sum.

#if defined(__AVX512F__)

/// s[i] + s[i + 8], then by distance 4.
template <class T>
inline __m256d fold_to_four(const T* x) {
  const __m512 v = load(x).v;
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
  const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  const __m512d t = _mm512_fmadd_pd(high, high, _mm512_mul_pd(low, low));
  return _mm256_add_pd(_mm512_castpd512_pd256(t), _mm512_extractf64x4_pd(t, 1));
}

#else

/// Squares of lanes 0 to 3 (half 0) or 4 to 7 of a, plus those of b.
template <int half>
inline __m256d add_squares(Vec a, Vec b) {
  const __m256d low = _mm256_cvtps_pd(_mm256_extractf128_ps(a.v, half));
  const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(b.v, half));
  return _mm256_fmadd_pd(high, high, _mm256_mul_pd(low, low));
}

template <class T>
inline __m256d fold_to_four(const T* x) {
  const Vec a = load(x), b = load(x + 8);
  return _mm256_add_pd(add_squares<0>(a, b), add_squares<1>(a, b));
}

#endif

template <class T>
void granule_sums(const void* data, int64_t count, double* sums) {
  const T* x = static_cast<const T*>(data);
  for (int64_t i = 0; i < count; ++i) {
    const __m256d four = fold_to_four(x + 16 * i);
    const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    _mm_store_sd(sums + i, _mm_add_sd(two, _mm_unpackhi_pd(two, two)));
  }
}

}  // namespace

extern const GranuleTable granule_table;
const GranuleTable granule_table = {
    {nullptr, granule_sums<float>, granule_sums<bf16>, granule_sums<f16>}};

}  // namespace zg::cpu::ZG_ISA
