#include "models/token_file.h"

#include <array>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "runtime/error.h"

namespace zg::models {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read as they lie");

using Header = std::array<int32_t, 256>;
constexpr int32_t magic = 20240520, version = 1;

void expect(const std::string& path, const char* what, int64_t expected, int64_t got) {
  if (got != expected)
    throw FileError(path + ": not a token file of llm.c: expected " + what + " " +
                    std::to_string(expected) + ", got " + std::to_string(got));
}

void check(const std::string& path, const Header& header, int64_t file_bytes) {
  expect(path, "magic number", magic, header[0]);
  expect(path, "version", version, header[1]);
  for (size_t i = 3; i < header.size(); ++i) expect(path, "header padding", 0, header[i]);
  const int64_t tokens = header[2];
  expect(path, "bytes", static_cast<int64_t>(sizeof(Header)) + 2 * tokens, file_bytes);
}

}  // namespace

std::vector<uint16_t> read_token_file(const std::string& path) {
  std::error_code failure;
  const auto file_bytes = std::filesystem::file_size(path, failure);
  if (failure) throw FileError(path + ": cannot be read: " + failure.message());
  std::ifstream file(path, std::ios::binary);
  Header header{};
  if (file_bytes < sizeof header)
    throw FileError(path + ": not a token file of llm.c: expected at least 1024 bytes, got " +
                    std::to_string(file_bytes));
  file.read(reinterpret_cast<char*>(header.data()), sizeof header);
  check(path, header, static_cast<int64_t>(file_bytes));
  std::vector<uint16_t> tokens(static_cast<size_t>(header[2]));
  file.read(reinterpret_cast<char*>(tokens.data()),
            static_cast<std::streamsize>(2 * tokens.size()));
  if (!file) throw FileError(path + ": cannot be read: " + std::generic_category().message(errno));
  return tokens;
}

}  // namespace zg::models
