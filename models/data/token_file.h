#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "zerograd/models/data/token_source.h"

namespace zg::models {

using TokenFileHeader = std::array<int32_t, 256>;
inline constexpr int32_t token_file_magic = 20240520, token_file_version = 1;

/// The tokens of an llm.c file: 256 little-endian int32 (20240520, 1, token count, zeros), then
/// uint16. FileError for any other header or size.
std::unique_ptr<const TokenSource> open_token_file(const std::string& path);

}  // namespace zg::models
