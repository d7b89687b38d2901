#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "zerograd/runtime/api.h"

namespace zg {

class File;

/// XXH3 with 128 bits, updated with bytes in order.
class ZG_API Checksum {
 public:
  Checksum();
  ~Checksum();
  void update(std::span<const std::byte> bytes);
  std::string hex() const;  ///< 32 digits, as `xxhsum -H2` prints

 private:
  std::unique_ptr<struct ChecksumState> state_;
};

inline constexpr uint32_t zip_polynomial = 0xedb88320;         // 0x04c11db7, bits reversed
inline constexpr uint32_t castagnoli_polynomial = 0x82f63b78;  // 0x1edc6f41, bits reversed

/// CRC-32 by table: the remainder for each byte, least significant bit first.
template <uint32_t polynomial>
uint32_t crc32(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> rest{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
      uint32_t value = byte;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? polynomial : 0);
      rest[byte] = value;
    }
    return rest;
  }();
  uint32_t rest = ~uint32_t{0};
  for (const char byte : bytes)
    rest = table[(rest ^ static_cast<unsigned char>(byte)) & 0xff] ^ rest >> 8;
  return ~rest;
}

ZG_API std::string checksum(std::span<const std::byte> bytes);
/// The checksum of a whole file, read a MiB at a time. Throws FileError.
ZG_API std::string file_checksum(const File& file);

}  // namespace zg
