#pragma once

#include <cstdint>

namespace zg::models {

/// The header of a Megatron index. The file stores the fields in this order without padding.
struct IndexedHeader {
  char magic[9];
  uint64_t version;
  uint8_t dtype;
  uint64_t sequences, documents;
};
inline constexpr char indexed_magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
inline constexpr int64_t indexed_header_bytes = 9 + 8 + 1 + 8 + 8;

}  // namespace zg::models
