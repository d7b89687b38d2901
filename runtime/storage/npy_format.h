#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/shape.h"

namespace zg {

/// Bytes [offset, offset + count) of a file, or of an archive's entry.
struct ByteRange {
  std::function<std::string(int64_t offset, int64_t count)> read;
  int64_t bytes = 0;
};

/// The header of a .npy file: numpy/lib/format.py, versions 1.0 to 3.0.
struct NpyHeader {
  DType dtype = DType::f32;
  bool big_endian = false;
  bool by_columns = false;  ///< fortran_order: the first axis is the fastest
  Shape shape;
  int64_t data_begin = 0;
};

/// Checks that the data are in the file. Throws FileError that begins with "npy: ", then `name`.
NpyHeader parse_npy_header(const std::string& name, const ByteRange& file);
/// Version 1.0. DTypeError for bf16.
std::string npy_header(DType dtype, const Shape& shape);

/// An entry of a zip archive that is stored without compression.
struct ZipEntry {
  std::string name;
  uint32_t crc = 0;
  int64_t data_begin = 0, bytes = 0;
};

/// The entries of a zip archive, with those of zip64: PKWARE's APPNOTE.TXT, 4.3. Throws FileError
/// that begins with "npz: ", then `path`, also for compressed or encrypted entries.
std::vector<ZipEntry> parse_zip(const std::string& path, const ByteRange& file);

/// The bytes before an entry's data, which begin at `at`, and those behind all entries. The first
/// sets data_begin.
std::string zip_local_header(ZipEntry& entry, int64_t at);
std::string zip_directory(const std::vector<ZipEntry>& entries, int64_t at);

}  // namespace zg
