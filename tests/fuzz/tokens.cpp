#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/fuzz/bounded.h"
#include "zerograd/models/data/token_source.h"
#include "zerograd/runtime/error.h"

// llm.c's token files: the input is used as a whole file, and after a valid header in which the
// first bytes of the input change one field.
namespace zg::testing {
namespace {

const int file = memfd_create("tokens", MFD_CLOEXEC);
const std::string path = "/proc/self/fd/" + std::to_string(file);

void read(const std::string& bytes) {
  if (ftruncate(file, 0) != 0 ||
      pwrite(file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    std::abort();
  try {
    const auto tokens = models::open_token_file(path);
    if (1024 + 2 * tokens->size() != static_cast<int64_t>(bytes.size()))
      report("not its size", std::to_string(bytes.size()));
    if (models::vocabulary_of(*tokens) > 65536) report("not its tokens", "more than 65536");
  } catch (const FileError& error) {
    if (!std::string(error.what()).starts_with(path + ": "))
      report("an error without its file", error.what());
  }
}

std::string with_header(const std::string& bytes) {
  int32_t header[256] = {20240520, 1, static_cast<int32_t>(bytes.size() / 2)};
  if (bytes.size() > 3) {
    char* at = reinterpret_cast<char*>(header) + static_cast<unsigned char>(bytes[0]) % 16;
    std::memcpy(at, bytes.data() + 1, bytes.size() % 3);
  }
  return std::string(reinterpret_cast<char*>(header), sizeof header) + bytes;
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  bounded([&] { read(text); });
  bounded([&] { read(with_header(text)); });
  return 0;
}
