#pragma once

#include <cstddef>
#include <vector>

#include "zerograd/kernels/matmul/matmul.h"
#include "zerograd/kernels/matmul/tile_table.h"

namespace zg::cpu {

void matmul(const Matmul&, Workspace, Stream&);

/// The product of f64 by Eigen. The bits are the same for any number of threads.
void matmul_reference(const Matmul&, Workspace, Stream&);
int64_t matmul_reference_workspace_bytes(const Matmul&, const Device::Traits&);

/// The same call with all leading dimensions set. A batch that shares b, and whose items of a and c
/// are contiguous, becomes one product with more rows.
Matmul canonical(const Matmul&);

/// A contiguous part of K that is multiplied alone, in blocks of equal numbers of steps. Without
/// groups it is all of K.
struct KRange {
  int64_t k, depth;           ///< its first element and its elements
  int64_t first_step, steps;  ///< in packed memory, where the ranges lie one after another
  int64_t block_steps;
  bool begins_group, ends_group;
  /// The sums of groups to the left that wait for this group: those of the levels 0 to folds - 1.
  /// Their total with this group is the sum of level `folds`.
  int64_t folds;

  int64_t blocks() const { return (steps + block_steps - 1) / block_steps; }
};
/// A step has `per_step` elements; a block has at most `max_steps`.
std::vector<KRange> ranges_of(const Matmul&, int64_t per_step, int64_t max_steps);
/// The levels of the tree below its root.
int64_t levels_of(const Matmul&);

/// A block of a range: its first step, its steps, and its elements.
struct KBlock {
  int64_t step, steps, k, depth;
};
/// Block `index` of all ranges.
KBlock block_of(const std::vector<KRange>& ranges, int64_t index, int64_t per_step);

/// The number of threads that make this product faster. It depends on the number of multiply-adds
/// or, if c has few rows, of elements read.
int matmul_threads(const Matmul&, const Device::Traits&);

/// The address of an element of an operand; null if the operand is absent.
inline std::byte* at(const Tensor& tensor, int64_t element) {
  return tensor ? tensor.raw() + element * size_of(tensor.dtype()) : nullptr;
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_div(a, b) * b; }

/// The AMX functions at level amx_bf16; null at other levels.
const TileTable* tile_table(Isa isa);

/// The product of bf16 matrices on AMX tile registers, for all sizes and transposes. Subnormal
/// operands and sums count as 0.
void tile_matmul(const TileTable&, const Matmul&, Workspace, const Device::Traits&);
int64_t tile_matmul_workspace_bytes(const Matmul&, const Device::Traits&);

}  // namespace zg::cpu
