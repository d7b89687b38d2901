#pragma once

#include <cstddef>
#include <cstdint>

namespace zg::emulator {

/// The emulator's contents of a CUtensorMap: four axes of two-byte elements, the first contiguous.
struct TensorMap {
  const std::byte* start;
  uint64_t extents[4], strides[3];  ///< strides in bytes, from the second axis on
  uint32_t box[4];
};

/// A box copy in flight. It completes when a thread has waited at its barrier for `looks` looks.
struct PendingBox {
  std::byte* to;
  TensorMap map;
  int place[4];
  unsigned bytes;
  void* barrier;
  unsigned looks = 0;
};

}  // namespace zg::emulator
