#pragma once

#include <cstdint>

namespace zg::cpu {

/// One token: `heads` heads of D elements, of which the first `rotated` turn.
struct RopeToken {
  const void* x;
  void* y;          ///< may be x
  const void* row;  ///< of the table: cosines, then sines
  int64_t heads, D, rotated;
  bool backward;
};

/// By dtype: f64, f32, bf16, f16.
struct RopeTable {
  void (*rotate[4])(const RopeToken& token);
};

}  // namespace zg::cpu
