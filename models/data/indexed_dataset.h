#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"

namespace zg::models {

struct IndexedFiles {
  std::string index, data;
};
/// PREFIX.idx and PREFIX.bin.
IndexedFiles indexed_files(const std::string& prefix);

/// A dataset as Megatron-LM writes it. PREFIX.bin holds tokens; PREFIX.idx, all little-endian: 9
/// bytes "MMIDIDX\0\0", u64 version 1, u8 dtype (1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8
/// uint16), u64 sequences S, u64 entries D, then int32 sizes[S] in tokens, int64 pointers[S] in
/// bytes of PREFIX.bin, int64 documents[D]: the sequence that each document begins with, and S.
/// Samples are cut from sequences, each of them a document, as Megatron's GPT does it.
///
/// FileError with file, field, expected and got for everything that does not fit: every range is
/// checked against the files before anything is read. Sizes stay in memory; the rest is read where
/// it is needed.
class IndexedDataset {
 public:
  explicit IndexedDataset(const IndexedFiles& files);

  int64_t sequences() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t size(int64_t sequence) const { return sizes_[static_cast<size_t>(sequence)]; }
  const std::string& path() const {
    return data_.path();
  }  ///< path of the token file, for error messages

  /// The tokens of a sequence from `begin` on, all within its size. FileError for one that is
  /// negative or beyond int32. Called by several threads at once.
  void read(int64_t sequence, int64_t begin, std::span<int32_t> tokens) const;

 private:
  explicit IndexedDataset(std::pair<File, File> pair);  // index and data
  int64_t read_header();                                // the entries of the last array
  void read_sizes();
  void check_pointers() const;
  void check_documents(int64_t entries) const;
  void check_pointer(int64_t sequence, int64_t pointer) const;

  File index_, data_;
  int64_t data_bytes_ = 0, token_bytes_ = 0;
  uint8_t dtype_ = 0;
  std::vector<int32_t> sizes_;
};

}  // namespace zg::models
