#include "zerograd/runtime/storage/checksum.h"

using namespace zg;

namespace {
std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}
}  // namespace

TEST_CASE("checksums are what xxhsum -H2 prints") {
  CHECK(checksum({}) == "99aa06d3014798d86001c324468d497f");
  CHECK(checksum(bytes_of("zerograd")) == "d0c71b72892e4c06c66e5c82e5ab7af0");
}

TEST_CASE("a checksum does not depend on how the bytes are split into updates") {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += static_cast<char>(i % 251);
  for (size_t step : {1, 7, 255, 4096, 100000}) {
    Checksum sum;
    for (size_t begin = 0; begin < text.size(); begin += step)
      sum.update(bytes_of(text.substr(begin, step)));
    CHECK(sum.hex() == "54182c58bbb1337c42c23aeead96750d");
  }
}
