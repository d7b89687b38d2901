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

/// The result of a system call, made again while a signal interrupts it before it does anything.
/// Not for close(), which has closed the file by then.
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
  static File create(const std::string& path);  ///< to write; empties what was there
  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const;
  /// Whether its path still leads to it: no other file has taken its place.
  bool has_its_path() const;
  /// Fills `bytes` from that place (pread); FileError when the file ends before.
  void read_at(int64_t offset, std::span<std::byte> bytes) const;
  /// Allocates so many bytes on the disk and sets the size of the file. Does nothing where the file
  /// system cannot allocate, or where this is no regular file.
  void reserve(int64_t bytes);
  void write(std::span<const std::byte> bytes);  ///< appends
  /// Writes over existing bytes or beyond the end. write() continues where it was before.
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  void sync();   ///< returns when the bytes are on the disk
  void close();  ///< reports what the destructor could not

 private:
  File(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_;
};

/// A folder that is held open: as long as it is, no later one can be taken for it. FileError.
class ZG_API Folder {
 public:
  static std::optional<Folder> open(const std::string& path);  ///< absent: there is none
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&& other) noexcept;

  /// Whether the path still leads to this folder, and not to nothing or to another one.
  bool is_at(const std::string& path) const;
  /// False: another process has locked it. True where the file system has no locks. The lock goes
  /// with this object.
  bool lock();

 private:
  explicit Folder(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

/// Throws FileError for a file of more than `most_bytes`: no valid file of the expected format is
/// larger.
ZG_API std::string read_text(const std::string& path, int64_t most_bytes = INT64_MAX);
ZG_API std::string read_text(const File& file, int64_t most_bytes = INT64_MAX);
ZG_API void write_text(const std::string& path, const std::string& text);  ///< and syncs it
/// Bytes that this process may still write to the file system of `path`, or of the nearest existing
/// folder above it. Absent where the system does not report them.
ZG_API std::optional<int64_t> free_bytes(const std::string& path);
/// Makes a directory and those above it that are missing, durably. FileError.
ZG_API void make_directories(const std::string& path);
/// Makes the names in a directory durable: what was created, renamed or removed there.
ZG_API void sync_directory(const std::string& path);
/// Gives `from` the name `to` in one step, also where `to` exists: there is no moment without it. A
/// file that was there is gone; a directory that was there is now called `from`.
ZG_API void rename_over(const std::string& from, const std::string& to);

// Where a path leads, through links. FileError where the system does not say: a loop of links, a
// name that is too long, a folder on the way that may not be searched.
ZG_API bool is_regular_file(const std::string& path);
ZG_API bool is_directory(const std::string& path);
ZG_API bool path_exists(const std::string& path);

}  // namespace zg
