#include "zerograd/runtime/dtype.h"

#include <cmath>
#include <iterator>

namespace zg {

uint16_t f16_from_float(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 aligns the mantissa so that the hardware rounds to even for us.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

float float_from_f16(uint16_t bits) {
  const uint32_t sign = (uint32_t{bits} & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

const char* name_of(DType dtype) {
  constexpr const char* names[] = {"f64", "f32", "bf16", "f16", "i32", "i64", "u8", "bool"};
  const auto index = static_cast<size_t>(dtype);
  return index < std::size(names) ? names[index] : "?";
}

bool holds(DType dtype, double value) {
  if (is_floating(dtype) || dtype == DType::boolean) return true;
  const double first = dtype == DType::i64 ? -0x1p63 : dtype == DType::i32 ? -0x1p31 : 0;
  const double end = dtype == DType::i64 ? 0x1p63 : dtype == DType::i32 ? 0x1p31 : 256;
  return value == std::trunc(value) && first <= value && value < end;
}

}  // namespace zg
