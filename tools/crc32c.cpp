#include "tools/crc32c.h"

#include <array>

namespace zg::tools {
namespace {

// Of each byte, least bit first.
constexpr std::array<uint32_t, 256> table = [] {
  constexpr uint32_t polynomial = 0x82f63b78;  // 0x1edc6f41 from its other end
  std::array<uint32_t, 256> rest{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? polynomial : 0);
    rest[byte] = value;
  }
  return rest;
}();

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t rest = ~uint32_t{0};
  for (const char byte : bytes)
    rest = table[(rest ^ static_cast<unsigned char>(byte)) & 0xff] ^ rest >> 8;
  return ~rest;
}

}  // namespace zg::tools
