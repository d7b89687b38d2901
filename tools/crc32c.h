#pragma once

#include <cstdint>
#include <string_view>

namespace zg::tools {

/// CRC-32C, of Castagnoli's polynomial: RFC 3720, B.4.
uint32_t crc32c(std::string_view bytes);

}  // namespace zg::tools
