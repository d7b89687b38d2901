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

/// The PREFIX of Megatron's dataset that `source` names as PREFIX or PREFIX.bin, if PREFIX.idx
/// exists beside it. Empty: it names none.
std::string indexed_prefix(const std::string& source);

/// Unknown for data that is not a regular file: sort, adder, a pipe. For Megatron's dataset, which
/// may have hundreds of GB: the size of the token file and the checksum of the index. Throws
/// FileError.
Contents contents_of(const std::string& path);

/// "data: text.txt has other contents: 12 bytes in the checkpoint, 13 now"; empty if both are the
/// same or one is unknown.
std::string change_of(const Contents& saved, const Contents& now, const std::string& path);

/// Warnings, one per line, about characters that a model would learn by mistake: a byte order mark,
/// and the CR of line ends.
std::vector<std::string> oddities_of(const std::string& characters, const std::string& path);

}  // namespace zg::tools
