#pragma once

#include "zerograd/runtime/device.h"

namespace zg::cpu {

/// Chooses the table of functions for `isa` among one per instruction set; null for portable. A
/// *_simd.cpp source defines `extern const Table name` inside namespace zg::cpu::ZG_ISA and is
/// compiled three times. AMX only multiplies matrices: everything else at that level uses
/// avx512_bf16, and products first look for a tile_table (kernels/matmul/matmul_cpu.h).
template <class Table>
const Table* at_level(Isa isa, const Table& avx2, const Table& avx512, const Table& avx512_bf16) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx2:
      return &avx2;
    case Isa::avx512:
      return &avx512;
    case Isa::avx512_bf16:
    case Isa::amx_bf16:
      return &avx512_bf16;
    case Isa::portable:
      break;
  }
#endif
  return nullptr;
}

/// The portable level comes first: a table that exists on x86-64 alone must not be named elsewhere.
#if defined(__x86_64__)
#define ZG_AT_LEVEL(isa, table)                                              \
  ::zg::cpu::at_level(isa, ::zg::cpu::avx2::table, ::zg::cpu::avx512::table, \
                      ::zg::cpu::avx512_bf16::table)
#define ZG_DECLARE_LEVELS(Table, table) \
  namespace avx2 {                      \
  extern const Table table;             \
  }                                     \
  namespace avx512 {                    \
  extern const Table table;             \
  }                                     \
  namespace avx512_bf16 {               \
  extern const Table table;             \
  }
#else
#define ZG_AT_LEVEL(isa, table) nullptr
#define ZG_DECLARE_LEVELS(Table, table)
#endif

}  // namespace zg::cpu
