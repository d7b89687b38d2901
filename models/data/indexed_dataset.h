#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "zerograd/models/data/token_source.h"
#include "zerograd/runtime/storage/file_io.h"

namespace zg::models {

/// The header of a Megatron index. The file stores the fields in this order without padding.
struct IndexedHeader {
  char magic[9];
  uint64_t version;
  uint8_t dtype;
  uint64_t sequences, documents;
};
inline constexpr char indexed_magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
inline constexpr int64_t indexed_header_bytes = 9 + 8 + 1 + 8 + 8;

struct IndexedFiles {
  std::string index, data;
};
/// PREFIX.idx and PREFIX.bin.
IndexedFiles indexed_files(const std::string& prefix);

/// A dataset as Megatron-LM writes it. PREFIX.bin holds tokens; PREFIX.idx, all little-endian: 9
/// bytes "MMIDIDX\0\0", u64 version 1, u8 dtype (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8
/// uint16), u64 sequences S, u64 entries D, then int32 sizes[S] in tokens, int64 pointers[S] in
/// bytes of PREFIX.bin, int64 documents[D]: the sequence that each document begins with, and S.
/// Samples are cut from sequences; each sequence counts as a document, as in Megatron's GPT.
///
/// Throws FileError with file, field, expected and actual value if anything is inconsistent: every
/// range is checked against the sizes of the files. The sizes of sequences stay in memory;
/// everything else is read when it is needed.
class IndexedDataset {
 public:
  explicit IndexedDataset(const IndexedFiles& files);

  int64_t sequences() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t sequence) const { return sizes_[static_cast<size_t>(sequence)]; }
  /// The path of the token file, for error messages.
  const std::string& path() const { return data_.path(); }

  /// Reads tokens of a sequence from `begin` on; the range must be within it. Throws FileError for
  /// a token that is negative or too large for int32. Several threads may call it at once.
  void read(int64_t sequence, int64_t begin, std::span<int32_t> tokens) const;

 private:
  explicit IndexedDataset(std::pair<File, File> pair);  // index and data
  int64_t read_header();  // returns the number of entries of the last array
  void read_sizes();
  void check_pointers() const;
  void check_documents(int64_t entries) const;
  void check_pointer(int64_t sequence, int64_t pointer) const;

  File index_, data_;
  int64_t data_bytes_ = 0, token_bytes_ = 0;
  uint8_t dtype_ = 0;
  std::vector<int32_t> sizes_;
};

/// A shuffled order of 0 .. n-1. It is a function of (seed, purpose, index), computed for each
/// element, so it takes no memory. It is a Feistel network of eight rounds over pairs of digits,
/// applied again until the result is below n. Black and Rogaway 2002, "Ciphers with arbitrary
/// finite domains", section 5.
class Permutation {
 public:
  /// n from 1 to 2^62; index below 2^32.
  Permutation(uint64_t seed, const char* purpose, uint64_t index, int64_t n);

  int64_t operator()(int64_t place) const;

 private:
  uint64_t seed_;
  uint32_t purpose_, index_;
  uint64_t n_, high_ = 1, low_ = 1;  // the two digits of a position are below high_ and below low_
};

/// The concatenation of `count` sequences of a dataset from `first` on, in their order or shuffled.
/// Takes 8 bytes of memory for every 64 sequences.
class DocumentStream final : public TokenSource {
 public:
  DocumentStream(const IndexedDataset& data, int64_t first, int64_t count,
                 std::optional<Permutation> order = {});

  int64_t size() const override { return starts_.back(); }
  void read(int64_t begin, std::span<int32_t> tokens) const override;

 private:
  int64_t sequence(int64_t place) const { return first_ + (order_ ? (*order_)(place) : place); }

  const IndexedDataset* data_;
  int64_t first_, count_;
  std::optional<Permutation> order_;
  std::vector<int64_t> starts_;  // position of the first token of each 64th sequence, and the end
};

}  // namespace zg::models
