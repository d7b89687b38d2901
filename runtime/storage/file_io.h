#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "zerograd/runtime/api.h"

namespace zg {

/// Calls a system function again as long as a signal interrupts it before it has done anything. Not
/// for close(), which closes the file even then.
template <class F>
auto retried(const F& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

/// An open file. Every failure is a FileError with the path and the system's reason.
class ZG_API File {
 public:
  static File open(const std::string& path);    ///< to read; must be a regular file
  static File create(const std::string& path);  ///< to write; empties an existing file
  /// Creates a new file to write, locked until it is closed. An existing file that is not locked is
  /// a leftover: it is removed first, and never written to, because it may be a link. Throws
  /// FileError if the existing file is locked.
  static File create_locked(const std::string& path);
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const;
  /// True if its path still leads to this file, and not to another file that replaced it.
  bool has_its_path() const;
  /// Fills `bytes` from this offset (pread). Throws FileError if the file has fewer bytes.
  void read_at(int64_t offset, std::span<std::byte> bytes) const;
  /// Allocates this many bytes on the disk and sets the size of the file. Does nothing if the file
  /// system cannot allocate, or if this is not a regular file.
  void reserve(int64_t bytes);
  void write(std::span<const std::byte> bytes);  ///< appends
  /// Writes at an offset, over existing bytes or beyond the end. The position of write() does not
  /// change.
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void sync();   ///< returns when the bytes are on the disk
  void close();  ///< reports errors that the destructor would ignore

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

/// A file that is written as PATH.unfinished and replaces PATH when it is complete. It is locked: a
/// second process that writes the same PATH at the same time gets a FileError. If PATH is a link,
/// its target is replaced; a device or a pipe is written directly. Functions throw FileError.
class ZG_API UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& path);
  ~UnfinishedFile();  ///< removes it, unless it is finished

  const std::string& path() const { return path_; }
  File& file() { return file_; }
  void finish();  ///< renames it to PATH; returns when it is on the disk

 private:
  const std::string path_;
  const bool in_place_;
  File file_;
  bool finished_ = false;
};

/// An open folder. The object refers to this folder even if the folder is renamed and another one
/// gets its name. Functions throw FileError.
class ZG_API Folder {
 public:
  static std::optional<Folder> open(const std::string& path);  ///< absent: no such folder
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;

  /// True if the path still leads to this folder.
  bool is_at(const std::string& path) const;
  /// Locks the folder until this object is destroyed. Returns false if another process has locked
  /// it. Returns true also if the file system has no locks.
  bool lock();

 private:
  explicit Folder(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// Throws FileError for a file of more than `max_bytes`: no valid file of the expected format is
/// larger.
ZG_API std::string read_text(const std::string& path, int64_t max_bytes = INT64_MAX);
ZG_API std::string read_text(const File& file, int64_t max_bytes = INT64_MAX);
ZG_API void write_text(const std::string& path, const std::string& text);  ///< and syncs it
/// Writes the text through an UnfinishedFile: a reader finds the old file or the complete new one.
ZG_API void replace_text(const std::string& path, const std::string& text);
/// Bytes that this process may still write to the file system of `path`, or of the nearest existing
/// folder above it. Absent where the system does not report them.
ZG_API std::optional<int64_t> free_bytes(const std::string& path);
/// Creates a directory and its missing parents, durably. Throws FileError.
ZG_API void make_directories(const std::string& path);
/// Makes the names in a directory durable, after files were created, renamed or removed.
ZG_API void sync_directory(const std::string& path);
/// Renames `from` to `to` atomically, also if `to` exists. An existing file or empty directory is
/// replaced. If `to` is a directory that is not empty, the names are exchanged: it is then at
/// `from`.
ZG_API void rename_over(const std::string& from, const std::string& to);

// These functions follow symbolic links. They throw FileError if the system cannot follow them: a
// loop, a name that is too long, a folder without permission.
ZG_API bool is_regular_file(const std::string& path);
ZG_API bool is_directory(const std::string& path);
ZG_API bool path_exists(const std::string& path);

}  // namespace zg
