#pragma once

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "zerograd/kernels/movement/indexed.h"
#include "zerograd/runtime/dtype.h"

namespace zg {

/// How a reduction on an accelerator is distributed over threads. It depends only on the shape. If
/// the last axis is reduced and a result has many elements, a group of threads computes each result
/// (group_each). Otherwise one thread computes each result, or each chunk of its elements if there
/// are few results.
struct ReduceChunks {
  int64_t results = 1, elements = 1;  ///< elements of one result
  bool group_each;
  int64_t chunks = 1, chunk;  ///< per result; 1 chunk needs no scratch

  ReduceChunks(const Shape& shape, uint32_t axes) {
    for (int axis = 0; axis < shape.rank(); ++axis)
      (axes >> axis & 1u ? elements : results) *= shape[axis];
    constexpr int64_t enough_for_a_group = 256, enough_threads = 1 << 16, fewest_elements = 64;
    constexpr int64_t max_chunks = 4096;
    const int last = shape.rank() - 1;
    group_each = last >= 0 && (axes >> last & 1u) && elements >= enough_for_a_group;
    if (!group_each && results > 0)
      chunks = std::clamp<int64_t>(enough_threads / results, 1,
                                   std::clamp<int64_t>(elements / fewest_elements, 1, max_chunks));
    chunk = (elements + chunks - 1) / chunks;
  }

  /// Each chunk writes 8 bytes for every result.
  int64_t scratch_bytes() const { return chunks > 1 ? chunks * results * 8 : 0; }
};

/// The axes of x whose bit is set, with their strides in x. `Nest`: that of one operand.
template <class Nest>
Nest nest_of_axes(const Shape& shape, uint32_t axes) {
  int64_t extents[Shape::max_rank];
  Strides strides = {};
  size_t rank = 0;
  int64_t stride = shape.numel();
  for (int axis = 0; axis < shape.rank(); ++axis) {
    stride = shape[axis] == 0 ? 0 : stride / shape[axis];
    if (!(axes >> axis & 1u)) continue;
    extents[rank] = shape[axis];
    strides[rank++] = stride;
  }
  return {Shape(std::span<const int64_t>(extents, rank)), {strides}};
}

/// A pass of a sort over items (an element's key and its place) in tiles of neighbours, in which a
/// group of threads runs the steps of the network of lengths `first` to `last`.
struct SortPass {
  int64_t from, to;  ///< where the items are in scratch; -1: they are made of x, they give y
  int64_t size;      ///< of a row, a power of two
  int64_t segment;   ///< of the items that become one sequence
  int64_t first, last;
  int64_t kept;  ///< of each tile, written without gaps
};

/// How accelerators sort the rows of x along an axis: padded to a power of two, several short rows
/// to a tile, long ones by passes over several tiles.
struct SortedRows {
  static constexpr int64_t tile = 2048;
  int64_t rows, extent, inner, count, size, kept;

  SortedRows(const Shape& shape, int axis, int64_t first_elements) : count(first_elements) {
    const Indexed at = Indexed::split(shape, axis);
    rows = at.outer * at.inner;
    extent = at.extent;
    inner = at.inner;
    size = std::bit_ceil(static_cast<uint64_t>(extent));
    kept = std::min<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)), tile);
  }

  /// Calls tiles(SortPass) and exchange(length, distance), a step between tiles, in order.
  template <class Tiles, class Exchange>
  void each_pass(const Tiles& tiles, const Exchange& exchange) const {
    if (kept < tile) {  // the first of each tile, until one tile has them all
      int64_t left = size, from = -1, to = 0;
      while (left > tile) {
        tiles(SortPass{from, to, left, tile, 2, tile, kept});
        left = left / tile * kept;
        from = std::exchange(to, to + rows * left);
      }
      return tiles(SortPass{from, -1, left, left, 2, left, tile});
    }
    tiles(SortPass{-1, size > tile ? 0 : -1, size, size, 2, std::min(size, tile), tile});
    for (int64_t length = 2 * tile; length <= size; length *= 2) {
      for (int64_t distance = length / 2; distance >= tile; distance /= 2)
        exchange(length, distance);
      tiles(SortPass{0, length < size ? 0 : -1, size, size, length, length, tile});
    }
  }

  int64_t scratch_bytes(DType dtype) const {
    int64_t items = 0;
    each_pass(
        [&](const SortPass& pass) {
          if (pass.to >= 0) items = std::max(items, pass.to + rows * pass.size / tile * pass.kept);
        },
        [](int64_t, int64_t) {});
    return items * (size_of(dtype) > 4 ? 16 : 8);
  }
};

/// How a scan on an accelerator is distributed: one thread for each row, or for each chunk of it if
/// there are few. It depends only on the shape.
struct ScanChunks {
  int64_t rows, extent, inner, chunks = 1, chunk;
  int64_t state_bytes;  ///< of what each chunk writes for every row

  ScanChunks(const Shape& shape, int axis, bool places) : state_bytes(places ? 16 : 8) {
    const Indexed at = Indexed::split(shape, axis);
    rows = at.outer * at.inner;
    extent = at.extent;
    inner = at.inner;
    constexpr int64_t enough_threads = 1 << 16, fewest_elements = 64, max_chunks = 4096;
    if (rows > 0)
      chunks = std::clamp<int64_t>(enough_threads / rows, 1,
                                   std::clamp<int64_t>(extent / fewest_elements, 1, max_chunks));
    chunk = (extent + chunks - 1) / chunks;
  }

  int64_t scratch_bytes() const { return chunks > 1 ? chunks * rows * state_bytes : 0; }
};

}  // namespace zg
