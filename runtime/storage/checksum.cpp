#include "zerograd/runtime/storage/checksum.h"

#define XXH_INLINE_ALL  // header-only: users of a static library need not link libxxhash
#include <xxhash.h>

#include <algorithm>
#include <new>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"

namespace zg {
namespace {

std::string hex_of(const XXH128_hash_t& hash) {
  XXH128_canonical_t canonical;  // big-endian, high half first
  XXH128_canonicalFromHash(&canonical, hash);
  std::string text;
  for (unsigned char byte : canonical.digest) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

}  // namespace

struct ChecksumState {
  XXH3_state_t* xxh3 = XXH3_createState();
  ChecksumState() {
    if (!xxh3) throw std::bad_alloc();
    XXH3_128bits_reset(xxh3);
  }
  ~ChecksumState() { XXH3_freeState(xxh3); }
  ChecksumState(const ChecksumState&) = delete;
};

Checksum::Checksum() : state_(std::make_unique<ChecksumState>()) {}
Checksum::~Checksum() = default;

void Checksum::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh3, bytes.data(), bytes.size());
}

std::string Checksum::hex() const { return hex_of(XXH3_128bits_digest(state_->xxh3)); }

std::string checksum(std::span<const std::byte> bytes) {
  return hex_of(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string file_checksum(const File& file) {
  Checksum sum;
  std::vector<std::byte> chunk(size_t{1} << 20);
  const int64_t bytes = file.size();
  for (int64_t begin = 0; begin < bytes; begin += std::ssize(chunk)) {
    const auto count = std::min(std::ssize(chunk), bytes - begin);
    const std::span part(chunk.data(), static_cast<size_t>(count));
    file.read_at(begin, part);
    sum.update(part);
  }
  return sum.hex();
}

}  // namespace zg
