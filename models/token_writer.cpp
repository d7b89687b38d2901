#include "models/token_writer.h"

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include "models/indexed_format.h"
#include "models/token_file.h"
#include "runtime/error.h"
#include "runtime/file_io.h"

namespace zg::models {
namespace {

/// A file under a name of its own until it is complete, written a MiB at a time.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(std::string path)
      : path_(std::move(path)), file_(File::create(path_ + ".unfinished")) {}
  ~UnfinishedFile() {
    if (!finished_) std::remove(file_.path().c_str());
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  template <class T>
  void append(const T& value) {
    const size_t before = buffer_.size();
    buffer_.resize(before + sizeof value);
    std::memcpy(buffer_.data() + before, &value, sizeof value);
    if (buffer_.size() >= size_t{1} << 20) flush();
  }
  void write_at(int64_t offset, std::span<const std::byte> bytes) {
    flush();
    file_.write_at(offset, bytes);
  }
  void sync() {
    flush();
    file_.sync();
    file_.close();
  }
  void take_name() {
    rename_over(file_.path(), path_);
    finished_ = true;
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    sync_directory(folder.empty() ? "." : folder);
  }

  const std::string& path() const { return path_; }

 private:
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  std::string path_;
  File file_;
  std::vector<std::byte> buffer_;
  bool finished_ = false;
};

void append(UnfinishedFile& file, std::span<const int32_t> tokens, bool narrow) {
  for (int32_t token : tokens)
    if (narrow)
      file.append(static_cast<uint16_t>(token));
    else
      file.append(token);
}

void check(const std::string& path, std::span<const int32_t> tokens, int64_t vocabulary) {
  for (int32_t token : tokens)
    if (token < 0 || token >= vocabulary)
      throw FileError(path + ": expected ids below " + std::to_string(vocabulary) + ", got " +
                      std::to_string(token));
}

class IndexedDatasetWriter final : public TokenWriter {
 public:
  IndexedDatasetWriter(const std::string& prefix, int64_t vocabulary)
      : vocabulary_(vocabulary), data_(prefix + ".bin"), index_(prefix + ".idx") {}

  void add_document(std::span<const int32_t> tokens) override {
    if (tokens.size() > size_t{INT32_MAX})
      throw FileError(data_.path() + ": expected at most " + std::to_string(INT32_MAX) +
                      " tokens in a document, got " + std::to_string(tokens.size()));
    check(data_.path(), tokens, vocabulary_);
    append(data_, tokens, narrow());
    sizes_.push_back(static_cast<int32_t>(tokens.size()));
  }

  void finish() override {
    write_index();
    data_.sync();
    index_.sync();
    // Else an end between the two names would leave these tokens under an older index.
    std::remove(index_.path().c_str());
    data_.take_name();
    index_.take_name();
  }

 private:
  bool narrow() const { return vocabulary_ < 65500; }

  void write_index() {
    index_.append(indexed_magic);
    index_.append(uint64_t{1});
    index_.append(uint8_t{narrow() ? uint8_t{8} : uint8_t{4}});
    index_.append(static_cast<uint64_t>(sizes_.size()));
    index_.append(static_cast<uint64_t>(sizes_.size() + 1));
    for (int32_t size : sizes_) index_.append(size);
    int64_t pointer = 0;
    for (int32_t size : sizes_) {
      index_.append(pointer);
      pointer += size * (narrow() ? int64_t{2} : int64_t{4});
    }
    for (int64_t sequence = 0; sequence <= static_cast<int64_t>(sizes_.size()); ++sequence)
      index_.append(sequence);
  }

  int64_t vocabulary_;
  UnfinishedFile data_, index_;
  std::vector<int32_t> sizes_;
};

class TokenFileWriter final : public TokenWriter {
 public:
  TokenFileWriter(const std::string& path, int64_t vocabulary)
      : vocabulary_(vocabulary), file_(path) {
    file_.append(TokenFileHeader{});
  }

  void add_document(std::span<const int32_t> tokens) override {
    check(file_.path(), tokens, vocabulary_);
    written_ += static_cast<int64_t>(tokens.size());
    if (written_ > INT32_MAX)
      throw FileError(file_.path() + ": expected at most " + std::to_string(INT32_MAX) +
                      " tokens, which is what llm.c's header can say; try Megatron's format");
    append(file_, tokens, true);
  }

  void finish() override {
    const TokenFileHeader header = {token_file_magic, token_file_version,
                                    static_cast<int32_t>(written_)};
    file_.write_at(0, std::as_bytes(std::span(header)));
    file_.sync();
    file_.take_name();
  }

 private:
  int64_t vocabulary_, written_ = 0;
  UnfinishedFile file_;
};

}  // namespace

std::unique_ptr<TokenWriter> indexed_dataset_writer(const std::string& prefix, int64_t vocabulary) {
  return std::make_unique<IndexedDatasetWriter>(prefix, vocabulary);
}

std::unique_ptr<TokenWriter> token_file_writer(const std::string& path, int64_t vocabulary) {
  if (vocabulary > 65536)
    throw ConfigError(path + ": llm.c's files have ids of 16 bits; expected a vocabulary of at " +
                      "most 65536, got " + std::to_string(vocabulary) + "; try Megatron's format");
  return std::make_unique<TokenFileWriter>(path, vocabulary);
}

}  // namespace zg::models
