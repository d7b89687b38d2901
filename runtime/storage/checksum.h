#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

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

ZG_API std::string checksum(std::span<const std::byte> bytes);
/// The checksum of a whole file, read a MiB at a time. Throws FileError.
ZG_API std::string file_checksum(const File& file);

}  // namespace zg
