#include "zerograd/models/data/token_writer.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <vector>

#include "zerograd/models/data/indexed_dataset.h"
#include "zerograd/models/data/token_source.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::models {
namespace {

/// A file of a set, written a MiB at a time.
class OutputFile {
 public:
  OutputFile(FileSet& files, const std::string& name)
      : path_(files.path_of(name)), file_(File::create(files.add(name))) {}

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
  void close() {
    flush();
    file_.close();
  }

  const std::string& path() const { return path_; }  ///< the path after finish()

 private:
  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

  std::string path_;
  File file_;
  std::vector<std::byte> buffer_;
};

void append(OutputFile& file, std::span<const int32_t> tokens, bool narrow) {
  for (int32_t token : tokens)
    if (narrow)
      file.append(static_cast<uint16_t>(token));
    else
      file.append(token);
}

void check(const std::string& path, std::span<const int32_t> tokens, int64_t vocabulary) {
  for (int32_t token : tokens)
    if (token < 0 || token >= vocabulary)
      raise<FileError>("{}: expected ids below {}, got {}", path, vocabulary, token);
}

class IndexedDatasetWriter final : public TokenWriter {
 public:
  IndexedDatasetWriter(FileSet& files, const std::string& name, int64_t vocabulary)
      : vocabulary_(vocabulary), data_(files, name + ".bin"), index_(files, name + ".idx") {}

  void add_document(std::span<const int32_t> tokens) override {
    if (tokens.size() > size_t{INT32_MAX})
      raise<FileError>("{}: expected at most {} tokens in a document, got {}", data_.path(),
                       INT32_MAX, tokens.size());
    check(data_.path(), tokens, vocabulary_);
    append(data_, tokens, narrow());
    sizes_.push_back(static_cast<int32_t>(tokens.size()));
  }

  void finish() override {
    write_index();
    data_.close();
    index_.close();
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
    for (int64_t sequence = 0; sequence <= std::ssize(sizes_); ++sequence) index_.append(sequence);
  }

  int64_t vocabulary_;
  OutputFile data_, index_;
  std::vector<int32_t> sizes_;
};

class TokenFileWriter final : public TokenWriter {
 public:
  TokenFileWriter(FileSet& files, const std::string& name, int64_t vocabulary)
      : vocabulary_(vocabulary), file_(files, name) {
    file_.append(TokenFileHeader{});
  }

  void add_document(std::span<const int32_t> tokens) override {
    check(file_.path(), tokens, vocabulary_);
    written_ += std::ssize(tokens);
    if (written_ > INT32_MAX)
      raise<FileError>(
          "{}: expected at most {} tokens, the limit of llm.c's header; try Megatron's format",
          file_.path(), INT32_MAX);
    append(file_, tokens, true);
  }

  void finish() override {
    const TokenFileHeader header = {token_file_magic, token_file_version,
                                    static_cast<int32_t>(written_)};
    file_.write_at(0, std::as_bytes(std::span(header)));
    file_.close();
  }

 private:
  int64_t vocabulary_, written_ = 0;
  OutputFile file_;
};

/// A writer with its own set of files.
class OneSet final : public TokenWriter {
 public:
  using Make = std::function<std::unique_ptr<TokenWriter>(FileSet& files, const std::string& name)>;
  OneSet(const std::filesystem::path& path, const Make& make)
      : files_(path.has_parent_path() ? path.parent_path().string() : ".",
               path.filename().string()),
        writer_(make(files_, path.filename().string())) {}

  void add_document(std::span<const int32_t> tokens) override { writer_->add_document(tokens); }
  void finish() override {
    writer_->finish();
    files_.finish();
  }

 private:
  FileSet files_;
  std::unique_ptr<TokenWriter> writer_;
};

}  // namespace

std::unique_ptr<TokenWriter> indexed_dataset_writer(FileSet& files, const std::string& name,
                                                    int64_t vocabulary) {
  return std::make_unique<IndexedDatasetWriter>(files, name, vocabulary);
}

std::unique_ptr<TokenWriter> indexed_dataset_writer(const std::string& prefix, int64_t vocabulary) {
  return std::make_unique<OneSet>(prefix, [&](FileSet& files, const std::string& name) {
    return indexed_dataset_writer(files, name, vocabulary);
  });
}

std::unique_ptr<TokenWriter> token_file_writer(FileSet& files, const std::string& file,
                                               int64_t vocabulary) {
  if (vocabulary > 65536)
    raise<ConfigError>(
        "{}: llm.c's files have ids of 16 bits; expected a vocabulary of at most "
        "65536, got {}; try Megatron's format",
        files.path_of(file), vocabulary);
  return std::make_unique<TokenFileWriter>(files, file, vocabulary);
}

std::unique_ptr<TokenWriter> token_file_writer(const std::string& path, int64_t vocabulary) {
  return std::make_unique<OneSet>(path, [&](FileSet& files, const std::string& name) {
    return token_file_writer(files, name, vocabulary);
  });
}

}  // namespace zg::models
