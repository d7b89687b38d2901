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

/// Whether --data names conversations, which decoders learn; an encoder-decoder learns pairs.
inline bool is_conversations(const std::string& source) { return source.ends_with(".jsonl"); }
inline bool is_task(const std::string& source) { return source == "sort" || source == "adder"; }

/// The kinds of --data: empty; sort or adder; Megatron's PREFIX; PATH.bin; PATH.jsonl; PATH.txt or
/// any other file.
enum class DataKind : uint8_t { none, task, documents, tokens, conversations, text };
/// Throws ConfigError for an unknown kind; the message tells whether such a file exists.
DataKind kind_of(const std::string& source);

/// The default block size of conversations, if the model has as many positions.
inline constexpr int64_t conversation_block_size = 1024;

/// Returns PREFIX if `source` names Megatron's indexed dataset: it is PREFIX or PREFIX.bin, and the
/// file PREFIX.idx exists. Otherwise returns "".
std::string indexed_prefix(const std::string& source);

/// Returns the size and the checksum of a file. The result is not known() if the data is not a
/// regular file: sort, adder, a pipe. For Megatron's dataset, which may have hundreds of GB, the
/// size is that of the token file and the checksum that of the index. Throws FileError.
Contents contents_of(const std::string& path);

/// Returns a message if the checksums or the sizes differ, for example "data: text.txt has other
/// contents: 12 bytes in the checkpoint, 13 now". Returns "" if they are equal or one of them is
/// not known().
std::string change_of(const Contents& saved, const Contents& now, const std::string& path);

/// Returns a warning for each kind of unwanted character that would become part of the vocabulary:
/// a byte order mark, and the CR of line ends.
std::vector<std::string> warnings_of(const std::string& characters, const std::string& path);

}  // namespace zg::tools
