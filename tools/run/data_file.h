#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zg::tools {

/// Identifies the contents of a data file.
struct Contents {
  int64_t bytes = 0;
  std::string checksum;  ///< XXH3-128, as `xxhsum -H2` prints

  bool known() const { return !checksum.empty(); }
};

/// Returns PREFIX if `source` is PREFIX or PREFIX.bin and PREFIX.idx exists (Megatron's indexed
/// dataset), otherwise "".
std::string indexed_prefix(const std::string& source);

/// known() is false for data that is not a regular file: sort, adder, a pipe. For Megatron's
/// dataset, which may have hundreds of GB: the size of the token file and the checksum of the
/// index. Throws FileError.
Contents contents_of(const std::string& path);

/// "data: text.txt has other contents: 12 bytes in the checkpoint, 13 now"; empty if the checksums
/// are equal, or if known() is false for `saved` or `now`.
std::string change_of(const Contents& saved, const Contents& now, const std::string& path);

/// Warnings, one per line, about unwanted characters that would become part of the vocabulary: a
/// byte order mark, and the CR of line ends.
std::vector<std::string> oddities_of(const std::string& characters, const std::string& path);

}  // namespace zg::tools
