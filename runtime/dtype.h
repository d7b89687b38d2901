#pragma once

#include <bit>
#include <cstdint>

#include "zerograd/runtime/api.h"

namespace zg {

/// Element types. f64 exists on the CPU only, for gradient checks. boolean is one byte, 0 or 1.
enum class DType : uint8_t { f64, f32, bf16, f16, i32, i64, u8, boolean };

/// The upper half of a float; rounds to nearest even.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {  // a NaN becomes a quiet NaN
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);
      return;
    }
    bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t{bits} << 16); }
  explicit operator double() const { return static_cast<float>(*this); }
};

ZG_API uint16_t f16_from_float(float value);  ///< rounds to nearest even; subnormals kept
ZG_API float float_from_f16(uint16_t bits);

/// IEEE 754 binary16. A storage type: all arithmetic on it happens in f32.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float value) : bits(f16_from_float(value)) {}
  explicit operator float() const { return float_from_f16(bits); }
  explicit operator double() const { return float_from_f16(bits); }
};

constexpr int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

/// The accumulator dtype, in which elements of this dtype are summed: f64 for f64, f32 for the
/// other floating types.
constexpr DType accumulator(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

ZG_API const char* name_of(DType dtype);  ///< "bf16"
/// Whether the dtype is floating or boolean, or has this number: whole and in its range.
ZG_API bool holds(DType dtype, double value);

// clang-format off
template <class T> struct DTypeOf;
template <> struct DTypeOf<double>  { static constexpr DType value = DType::f64; };
template <> struct DTypeOf<float>   { static constexpr DType value = DType::f32; };
template <> struct DTypeOf<bf16>    { static constexpr DType value = DType::bf16; };
template <> struct DTypeOf<f16>     { static constexpr DType value = DType::f16; };
template <> struct DTypeOf<int32_t> { static constexpr DType value = DType::i32; };
template <> struct DTypeOf<int64_t> { static constexpr DType value = DType::i64; };
template <> struct DTypeOf<uint8_t> { static constexpr DType value = DType::u8; };
template <> struct DTypeOf<bool>    { static constexpr DType value = DType::boolean; };
// clang-format on
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

/// The C++ type of the accumulator dtype of T.
template <class T>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class T>
using accumulator_t = typename AccumulatorOf<T>::type;

}  // namespace zg
