#pragma once

#include <math_constants.h>

#include "zerograd/kernels/cuda/tile.cuh"

// sin and cos of every f32 within 2 ulp, as CUDA's sinf and cosf. Those reduce large arguments with
// an array on the stack, which no kernel may use.
namespace zg::cuda {

/// x = rest + quarter * pi / 2 + a multiple of 2 pi; |rest| is at most pi / 4, quarter is 0 to 3.
struct Reduced {
  float rest;
  unsigned quarter;
};

/// For 2^16 < |x|, by Payne and Hanek: x is an integer of 24 bits times 2^(exponent). The product
/// of this integer with 96 bits of 2 / pi is enough: the bits before them give multiples of 4,
/// those after them less than 2^-62 of a quarter, and no f32 is closer than 2^-31 to one.
__device__ inline Reduced reduce_large(float x) {
  // 2 / pi after 32 zeros, because the bits that the smallest of these x need begin before them.
  constexpr unsigned words[] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
  const unsigned bits = __float_as_uint(x);
  const unsigned integer = (bits & 0x7fffffu) | 0x800000u;
  const unsigned first = (bits >> 23 & 255u) - 150u - 2u + 32u;  // bit of 2 / pi
  // An index that is known only at run time would need the stack.
  const auto word = [&](unsigned offset) {
    const unsigned at = first / 32;
    return at == 0   ? words[offset]
           : at == 1 ? words[offset + 1]
           : at == 2 ? words[offset + 2]
           : at == 3 ? words[offset + 3]
                     : words[offset + 4];
  };
  const unsigned a = word(0), b = word(1), c = word(2), d = word(3);
  const unsigned shift = first % 32;
  const auto shifted = [shift](unsigned high, unsigned low) {
    return static_cast<unsigned>(((uint64_t{high} << 32 | low) << shift) >> 32);
  };
  // 64 bits of the product modulo 4: the quarters, and 62 bits of their fraction.
  const uint64_t product = (uint64_t{integer * shifted(a, b)} << 32) +
                           uint64_t{integer} * shifted(b, c) +
                           (uint64_t{integer} * shifted(c, d) >> 32);
  const uint64_t quarter = (product + (uint64_t{1} << 61)) >> 62;
  const auto fraction = static_cast<int64_t>(product - (quarter << 62));
  constexpr double pi_half = 1.5707963267948966;
  const auto rest = static_cast<float>(static_cast<double>(fraction) * (pi_half * 0x1p-62));
  if (bits >> 31) return {-rest, -static_cast<unsigned>(quarter) & 3u};
  return {rest, static_cast<unsigned>(quarter)};
}

/// Up to 2^16, by Cody and Waite: pi / 2 is the sum of three constants, of which the first two have
/// so few bits that the differences are exact where they cancel. Keeps -0.
__device__ inline Reduced reduce(float x) {
  if (fabsf(x) > 0x1p16f) {
    if (fabsf(x) == CUDART_INF_F) return {x - x, 0};  // NaN
    return reduce_large(x);
  }
  constexpr float round = 0x1.8p23f;  // the sum has no bits below 1
  const float sum = __fmaf_rn(x, 0.63661977f, round), quarters = sum - round;
  float rest = __fmaf_rn(quarters, -0x1.921fb0p+00f, x);
  rest = __fmaf_rn(quarters, -0x1.5110b4p-22f, rest);
  rest = __fmaf_rn(quarters, -0x1.846988p-48f, rest);
  return {rest, __float_as_uint(sum) & 3u};
}

/// sin(r.rest + (r.quarter + turn) * pi / 2) by minimax polynomials on [-pi / 4, pi / 4].
__device__ inline float sine_of(const Reduced& r, unsigned turn) {
  const unsigned quarter = r.quarter + turn;
  const float square = r.rest * r.rest;
  float y;
  if (quarter & 1u) {
    y = 0x1.9a8000p-16f;
    y = __fmaf_rn(y, square, -0x1.6c0efap-10f);
    y = __fmaf_rn(y, square, 0x1.555550p-05f);
    y = __fmaf_rn(y, square, -0.5f);
    y = __fmaf_rn(y, square, 1.0f);
  } else {
    y = 0x1.80a000p-19f;
    y = __fmaf_rn(y, square, -0x1.a0690cp-13f);
    y = __fmaf_rn(y, square, 0x1.111182p-07f);
    y = __fmaf_rn(y, square, -0x1.555556p-03f);
    y = __fmaf_rn(y, __fmaf_rn(square, r.rest, 0.0f), r.rest);  // + 0 keeps a rest of -0
  }
  return quarter & 2u ? -y : y;
}

__device__ inline float sine(float x) { return sine_of(reduce(x), 0); }
__device__ inline float cosine(float x) { return sine_of(reduce(x), 1); }

}  // namespace zg::cuda
