#pragma once

#include <algorithm>

#include "zerograd/runtime/shape.h"

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

}  // namespace zg
