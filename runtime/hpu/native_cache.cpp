#include "zerograd/runtime/hpu/native_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace zg::hpu {
namespace {

namespace fs = std::filesystem;

/// Before the binary in its file: one that was cut short is not taken.
struct Header {
  char magic[8] = {'z', 'g', 'h', 'p', 'u', '0', '0', '1'};
  uint64_t bytes = 0, sum = 0;
};

std::string cache_folder() {
  if (const char* own = std::getenv("ZG_HPU_CACHE")) return own;
  if (const char* caches = std::getenv("XDG_CACHE_HOME"); caches && *caches)
    return std::string(caches) + "/zerograd";
  if (const char* home = std::getenv("HOME"); home && *home)
    return std::string(home) + "/.cache/zerograd";
  return {};
}

}  // namespace

NativeCache::NativeCache() : folder_(cache_folder()) {}

std::vector<uint8_t> NativeCache::find(const std::string& key) const noexcept try {
  if (folder_.empty()) return {};
  std::ifstream file(folder_ + "/" + key, std::ios::binary);
  Header header, expected;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header)) return {};
  std::error_code ignored;
  if (std::memcmp(header.magic, expected.magic, sizeof header.magic) != 0 ||
      header.bytes + sizeof header != fs::file_size(folder_ + "/" + key, ignored))
    return {};
  std::vector<uint8_t> binary(header.bytes);
  if (!file.read(reinterpret_cast<char*>(binary.data()),
                 static_cast<std::streamsize>(binary.size())) ||
      XXH3_64bits(binary.data(), binary.size()) != header.sum)
    return {};
  return binary;
} catch (...) {
  return {};
}

void NativeCache::keep(const std::string& key, const std::vector<uint8_t>& binary) const noexcept
    try {
  if (folder_.empty()) return;
  std::error_code error;
  fs::create_directories(folder_, error);
  // Under another name until it is whole: others may read, or write the same.
  const std::string place = folder_ + "/" + key;
  const std::string unfinished = place + "." + std::to_string(getpid());
  Header header;
  header.bytes = binary.size();
  header.sum = XXH3_64bits(binary.data(), binary.size());
  std::ofstream file(unfinished, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof header);
  file.write(reinterpret_cast<const char*>(binary.data()),
             static_cast<std::streamsize>(binary.size()));
  file.close();
  if (file)
    fs::rename(unfinished, place, error);
  else
    fs::remove(unfinished, error);
} catch (...) {
}

}  // namespace zg::hpu
