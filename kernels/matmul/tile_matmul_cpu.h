#pragma once

#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/matmul/tile_table.h"

namespace zg::cpu {

/// The AMX functions at level amx_bf16; null at other levels.
const TileTable* tile_table(Isa isa);

/// Products of bf16 on tile registers, of any size and form. Subnormal operands and sums count as
/// 0.
void tile_matmul(const TileTable&, const Matmul&, Workspace, const Device::Traits&);
int64_t tile_matmul_workspace_bytes(const Matmul&, const Device::Traits&);

}  // namespace zg::cpu
