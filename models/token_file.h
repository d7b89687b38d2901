#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zg::models {

/// The tokens of an llm.c file: 256 little-endian int32 (20240520, 1, token count, zeros), then
/// uint16. FileError for any other header or size.
std::vector<uint16_t> read_token_file(const std::string& path);

}  // namespace zg::models
