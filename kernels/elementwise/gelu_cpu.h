#pragma once

#include <cstdint>

namespace zg::cpu {

/// n elements of one dtype; dx may be dy.
using GeluForwardRange = void (*)(const void* x, void* y, int64_t n);
using GeluBackwardRange = void (*)(const void* dy, const void* x, void* dx, int64_t n);

struct GeluFunctions {
  GeluForwardRange forward;
  GeluBackwardRange backward;
};

/// Indexed by f64, f32, bf16, f16; null where there are no vectors and the plain one is used.
struct GeluTable {
  GeluFunctions tanh[4], erf[4];
};

}  // namespace zg::cpu
