#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "zerograd/runtime/storage/safetensors.h"

namespace zg {

// github.com/huggingface/safetensors: eight bytes of little-endian header length, a JSON header
// padded with spaces, then the tensors' bytes without holes, at offsets from the header's end.
inline constexpr int64_t safetensors_length_bytes = 8;
inline constexpr int64_t safetensors_header_limit = 100'000'000;
inline constexpr int64_t safetensors_alignment = 8;
inline constexpr const char* safetensors_metadata = "__metadata__";

/// Whether a tensor of counts of elements, of any dtype, has a count of bytes that fits 64 bits.
bool is_addressable(std::span<const int64_t> extents);
const char* safetensors_name(DType dtype);
std::optional<DType> safetensors_dtype(const std::string& name);

struct SafetensorsHeader {
  std::map<std::string, SafetensorsReader::Entry> entries;
  std::map<std::string, std::string> metadata;
};

/// Checks everything a header says against a file of `file_bytes` whose data begin at `data_begin`;
/// all of it may be a lie. Throws FileError naming `path`, the tensor and the offset.
SafetensorsHeader parse_safetensors_header(const std::string& path, const std::string& text,
                                           int64_t data_begin, int64_t file_bytes);

/// Whether a name is that of an entry of the folder that it is looked up in, and of nothing
/// outside.
bool is_file_name(const std::string& name);

}  // namespace zg
