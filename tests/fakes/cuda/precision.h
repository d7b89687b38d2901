#pragma once

#include <cstdint>

// Results that the documentation of CUDA leaves open within bounds. A seed other than 0 chooses
// among the allowed results. The choice depends on nothing but the seed, the function and its
// arguments, so that equal computations still have equal bits.
namespace zg::emulator {

/// The seed of the environment variable ZG_EMULATOR_SEED; 0 if it is not set.
uint64_t environment_seed();
/// A value that looks random, from two others.
uint64_t mixed(uint64_t a, uint64_t b);

/// A function with its largest error: the result is so many steps at most from the correctly
/// rounded one. CUDA C++ Programming Guide, "Mathematical Functions", table of single-precision
/// functions, and __fdividef for a divisor of 2^-126 to 2^126; PTX ISA, ex2.approx.ftz.f32
/// (power_of_two).
enum class Function : uint8_t {
  exp,
  expm1,
  log,
  tanh,
  pow,
  erfc,
  reciprocal_root,
  power_of_two,
  erf,
  log1p,
  quotient
};
constexpr int largest_error(Function function) {
  switch (function) {
    case Function::exp:
    case Function::expm1:
    case Function::log:
    case Function::log1p:
      return 1;
    case Function::tanh:
    case Function::erf:
    case Function::reciprocal_root:
    case Function::power_of_two:
    case Function::quotient:
      return 2;
    default:
      return 4;
  }
}

/// f(x), x^y or x / y. With seed 0 it is what the host's library returns. Results that are 0 or not
/// finite, and those for x of 0 or infinity, are documented and stay.
float evaluate(Function function, float x, float y = 0.0f);

/// c[j] += sum over k of a[k] b[k * stride + j], for 16 k and `columns` j, as a tensor core adds.
/// PTX ISA, mma.sync and wgmma: the order of the additions and their rounding are unspecified, the
/// precision is at least that of f32. Seed 0: one after another, rounded to nearest. Others, by
/// seed % 3: 1: in another order; 2: sums of groups of 4 or 8, which are then added; 0: all terms
/// are aligned with the largest one, cut to 24 bits and added without error; the sum is cut too.
void add_products(float* c, const float* a, const float* b, int stride, int columns);

}  // namespace zg::emulator
