#include "zerograd/runtime/storage/npy_format.h"

#include "tests/fuzz/bounded.h"
#include "zerograd/runtime/error.h"

// Files of numpy: the directory of an archive, and the header of an array.
namespace zg::testing {
namespace {

const std::string path = "f";

void read(const std::string& text) {
  const ByteRange file{[&](int64_t offset, int64_t count) {
                         if (offset < 0 || count < 0 || offset > std::ssize(text) - count)
                           report("outside the file", std::to_string(offset));
                         return text.substr(static_cast<size_t>(offset),
                                            static_cast<size_t>(count));
                       },
                       std::ssize(text)};
  try {
    const NpyHeader header = parse_npy_header(path, file);
    if (header.data_begin + header.shape.numel() * size_of(header.dtype) != file.bytes)
      report("not its size", header.shape.str());
  } catch (const FileError& error) {
    if (!std::string(error.what()).starts_with("npy: f"))
      report("an error without its file", error.what());
  }
  try {
    for (const ZipEntry& entry : parse_zip(path, file)) file.read(entry.data_begin, entry.bytes);
  } catch (const FileError& error) {
    if (!std::string(error.what()).starts_with("npz: f: "))
      report("an error without its file", error.what());
  }
}

}  // namespace
}  // namespace zg::testing

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, size_t size) {
  using namespace zg::testing;
  const std::string text(bytes, bytes + size);
  bounded([&] { read(text); });
  return 0;
}
