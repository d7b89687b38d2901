#pragma once

#include <cstdint>

#include "zerograd/runtime/dtype.h"

namespace zg {

/// From a dtype, known at run time, to the type of its elements, known at compile time:
/// visit_type(x.dtype(), [&]<class T>() { return ...; }). Every T gives the same type.
template <class F>
auto visit_type(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f64:
      return f.template operator()<double>();
    case DType::f32:
      return f.template operator()<float>();
    case DType::bf16:
      return f.template operator()<bf16>();
    case DType::f16:
      return f.template operator()<f16>();
    case DType::i32:
      return f.template operator()<int32_t>();
    case DType::i64:
      return f.template operator()<int64_t>();
    case DType::u8:
      return f.template operator()<uint8_t>();
    default:
      return f.template operator()<bool>();
  }
}

}  // namespace zg
