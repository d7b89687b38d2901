#include <cmath>

#include "zerograd/kernels/check.h"
#include "zerograd/kernels/optimizer/adam.h"
#include "zerograd/kernels/slots.h"

namespace zg {

void validate(const SumOfSquares& a) {
  const char* op = "sum_of_squares";
  check_dtype(op, "x", a.x, {DType::f64, DType::f32, DType::bf16, DType::f16});
  if (a.x.numel() % SumOfSquares::granule != 0)
    throw ShapeError(std::string(op) + ": x has " + std::to_string(a.x.numel()) +
                     " elements; expected a multiple of 16, pad with zeros");
  check_dtype(op, "limbs", a.limbs, DType::i64);
  check_shape(op, "limbs", a.limbs, {SumOfSquares::limb_count});
  check_dtype(op, "non_finite", a.non_finite, DType::i64);
  check_shape(op, "non_finite", a.non_finite, {1});
  check_device(op, {&a.x, &a.limbs, &a.non_finite});
}

double value_of_limbs(const int64_t* limbs) {
  constexpr int bits = SumOfSquares::limb_bits;
  // Carry until every digit is below 2^26. Four zeros below the lowest digit let the code that
  // follows look down without asking; two above take what leaves the last limb.
  constexpr int below = 4, digits = below + SumOfSquares::limb_count + 2;
  uint64_t digit[digits] = {}, carry = 0;
  for (int i = below; i < digits; ++i) {
    if (i < below + SumOfSquares::limb_count) carry += static_cast<uint64_t>(limbs[i - below]);
    digit[i] = carry & ((uint64_t{1} << bits) - 1);
    carry >>= bits;
  }
  int top = digits - 1;
  while (top >= below && digit[top] == 0) --top;
  if (top < below) return 0.0;
  // high and low are exact doubles of two digits each. Adding them rounds once, to the nearest;
  // what lies deeper can only break a tie, and the last bit of low, 26 bits below the sum's last or
  // more, stands for it.
  const uint64_t high = digit[top] << bits | digit[top - 1];
  uint64_t low = digit[top - 2] << bits | digit[top - 3];
  for (int i = 0; i < top - 3; ++i) low |= digit[i] != 0;
  const double sum = std::ldexp(static_cast<double>(high), 2 * bits) + static_cast<double>(low);
  return std::ldexp(sum, SumOfSquares::lowest_exponent + bits * (top - 3 - below));
}

ZG_KERNEL(SumOfSquares, sum_of_squares)

}  // namespace zg
