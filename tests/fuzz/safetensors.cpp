#include "zerograd/runtime/storage/safetensors_format.h"

#include "tests/fuzz/bounded.h"
#include "zerograd/runtime/error.h"

// The header of a safetensors file. The first two bytes of the input are the size of its data.
namespace zg::testing {
namespace {

const std::string path = "f";

void read(const std::string& text, int64_t data_bytes) {
  const int64_t begin = safetensors_length_bytes + static_cast<int64_t>(text.size());
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(path, text, begin, begin + data_bytes);
  } catch (const FileError& error) {
    if (!std::string(error.what()).starts_with("safetensors: f: "))
      report("an error without its file", error.what());
    return;
  }
  int64_t covered = 0;
  for (const auto& [name, entry] : header.entries) {
    if (entry.begin < begin || entry.end < entry.begin || entry.end > begin + data_bytes)
      report("outside the file", name);
    if (entry.end - entry.begin != entry.shape.numel() * size_of(entry.dtype))
      report("not its size", name);
    covered += entry.end - entry.begin;
  }
  if (covered != data_bytes) report("bytes of no tensor or of two", text);
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  if (size < 2) return 0;
  const std::string text(bytes + 2, bytes + size);
  bounded([&] { read(text, bytes[0] + 256 * bytes[1]); });
  return 0;
}
