#pragma once

#include <string>
#include <type_traits>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/visit_type.h"

// From an element type known at run time to one known at compile time:
// visit_floating(x.dtype(), [&]<class T>() { ... }).
namespace zg::cpu {

/// The type in which arithmetic on T is done: T for integers, the accumulator type for floats.
template <class T>
using arithmetic_t = std::conditional_t<std::is_integral_v<T>, T, accumulator_t<T>>;

/// Called only for a dtype that validate() should have rejected.
[[noreturn]] inline void refuse(DType dtype) {
  throw DTypeError(std::string("no CPU code for elements of ") + name_of(dtype));
}

template <class F>
void visit_floating(DType dtype, const F& f) {
  visit_type(dtype, [&]<class T>() {
    if constexpr (std::is_integral_v<T>)
      refuse(dtype);
    else
      f.template operator()<T>();
  });
}

/// i32 and i64.
template <class F>
void visit_index(DType dtype, const F& f) {
  if (dtype == DType::i32) return f.template operator()<int32_t>();
  if (dtype == DType::i64) return f.template operator()<int64_t>();
  refuse(dtype);
}

/// Floating types, i32 and i64.
template <class F>
void visit_number(DType dtype, const F& f) {
  is_floating(dtype) ? visit_floating(dtype, f) : visit_index(dtype, f);
}

/// Calls f with the unsigned integer type of the dtype's size: for copies, which need no
/// arithmetic.
template <class F>
void visit_bits(DType dtype, const F& f) {
  switch (size_of(dtype)) {
    case 1:
      return f.template operator()<uint8_t>();
    case 2:
      return f.template operator()<uint16_t>();
    case 4:
      return f.template operator()<uint32_t>();
    default:
      return f.template operator()<uint64_t>();
  }
}

}  // namespace zg::cpu
