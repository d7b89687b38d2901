#pragma once

#include <memory>
#include <string>

#include "models/token_source.h"

namespace zg::models {

/// The tokens of an llm.c file: 256 little-endian int32 (20240520, 1, token count, zeros), then
/// uint16. FileError for any other header or size.
std::unique_ptr<const TokenSource> open_token_file(const std::string& path);

}  // namespace zg::models
