#pragma once

#include "zerograd/runtime/device.h"

namespace zg::cpu {

/// Returns the table of functions for `isa`. A *_simd.cpp source is compiled for any_cpu
/// (portable), avx2 and avx512, in kernels/matmul also for avx512_bf16, and each time defines
/// `extern const Table name` in namespace zg::cpu::ZG_ISA. The instructions of bf16 and AMX are
/// used only in products of matrices, so at their levels all other kernels use the table of avx512.
/// matmul first looks for a tile_table (kernels/matmul/matmul_cpu.h).
template <class Table>
const Table& at_level(Isa isa, const Table& portable, const Table& avx2, const Table& avx512,
                      const Table& avx512_bf16) {
  switch (isa) {
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
    case Isa::amx_bf16:
      return avx512_bf16;
    case Isa::portable:
      break;
  }
  return portable;
}

/// ZG_AT_LEVEL(isa, table) is the table for `isa`; ZG_AT_PRODUCT_LEVEL is that of a source in
/// kernels/matmul. Processors other than x86-64 have the portable level only.
#define ZG_DECLARE_LEVEL(isa, Table, table) \
  namespace isa {                           \
  extern const Table table;                 \
  }
#if defined(__x86_64__)
#define ZG_AT_LEVEL(isa, table)                                               \
  ::zg::cpu::at_level(isa, ::zg::cpu::any_cpu::table, ::zg::cpu::avx2::table, \
                      ::zg::cpu::avx512::table, ::zg::cpu::avx512::table)
#define ZG_AT_PRODUCT_LEVEL(isa, table)                                       \
  ::zg::cpu::at_level(isa, ::zg::cpu::any_cpu::table, ::zg::cpu::avx2::table, \
                      ::zg::cpu::avx512::table, ::zg::cpu::avx512_bf16::table)
#define ZG_DECLARE_LEVELS(Table, table)   \
  ZG_DECLARE_LEVEL(any_cpu, Table, table) \
  ZG_DECLARE_LEVEL(avx2, Table, table)    \
  ZG_DECLARE_LEVEL(avx512, Table, table)  \
  ZG_DECLARE_LEVEL(avx512_bf16, Table, table)
#else
#define ZG_AT_LEVEL(isa, table) (static_cast<void>(isa), ::zg::cpu::any_cpu::table)
#define ZG_AT_PRODUCT_LEVEL(isa, table) ZG_AT_LEVEL(isa, table)
#define ZG_DECLARE_LEVELS(Table, table) ZG_DECLARE_LEVEL(any_cpu, Table, table)
#endif

}  // namespace zg::cpu
