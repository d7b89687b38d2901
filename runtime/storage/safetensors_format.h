#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "zerograd/runtime/storage/safetensors.h"

namespace zg {

// github.com/huggingface/safetensors: eight bytes of little-endian header length, a JSON header
// padded with spaces, then the tensors' bytes without gaps, at offsets from the header's end.
inline constexpr int64_t safetensors_length_bytes = 8;
inline constexpr int64_t safetensors_header_limit = 100'000'000;
inline constexpr int64_t safetensors_alignment = 8;
inline constexpr const char* safetensors_metadata = "__metadata__";

const char* safetensors_name(DType dtype);
std::optional<DType> safetensors_dtype(const std::string& name);

struct SafetensorsHeader {
  std::map<std::string, SafetensorsReader::Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Parses a header and checks it against a file of `file_bytes` bytes whose data begin at
/// `data_begin`. The header may contain anything. Throws FileError naming `path`, the tensor and
/// the offset.
SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text,
                                           int64_t data_begin, int64_t file_bytes);

/// True if a file name leads to an entry of the same folder and not outside of it.
bool is_file_name(const std::string& name);

}  // namespace zg
