#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zg::tools {

/// What tells one state of a data file from another.
struct Contents {
  int64_t bytes = 0;
  std::string checksum;  ///< XXH3-128, as `xxhsum -H2` prints

  bool known() const { return !checksum.empty(); }
};

/// PREFIX of a dataset of Megatron's that PREFIX or PREFIX.bin names: with PREFIX.idx beside it.
/// Empty: it names none.
std::string indexed_prefix(const std::string& source);

/// Unknown for data that is no regular file: sort, adder, a pipe. Of Megatron's dataset, which may
/// have hundreds of GB, the size of its tokens and the index's checksum. FileError.
Contents contents_of(const std::string& path);

/// "data: text.txt has other contents: 12 bytes in the checkpoint, 13 now", or nothing where both
/// are the same or one is unknown.
std::string change_of(const Contents& saved, const Contents& now, const std::string& path);

/// What a text has that a model will learn without anybody's meaning it to, a line each: a byte
/// order mark, the CR of line ends.
std::vector<std::string> oddities_of(const std::string& characters, const std::string& path);

}  // namespace zg::tools
