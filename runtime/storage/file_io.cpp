#include "zerograd/runtime/storage/file_io.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <vector>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

[[noreturn]] void fail(const char* operation, const std::string& path) {
  const int reason = errno;
  raise<FileError>("{}: {}: {}", operation, path, std::strerror(reason));
}

/// Raises the soft limit of open files, often 1024, to the hard limit. Returns whether it rose.
/// (The low soft limit exists for programs that call select().)
bool raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

/// Calls a system function that follows the path's symbolic links. A FileSet may replace a link by
/// a file meanwhile, so that the link just read leads nowhere; then the call is repeated.
template <class F>
int followed(const std::string& path, const F& call) {
  constexpr int max_attempts = 100;
  int result = retried(call);
  for (int attempt = 1; result < 0 && errno == ENOENT && attempt < max_attempts; ++attempt) {
    struct stat own;
    if (::lstat(path.c_str(), &own) != 0) break;  // there is nothing of that name
    result = retried(call);
  }
  return result;
}

/// -1 with errno if it cannot be opened.
int try_open(const std::string& path, int flags) {
  const auto open = [&] {
    return followed(path, [&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
  };
  int descriptor = open();
  // A checkpoint of a thousand ranks has as many shards, which are open at the same time.
  if (descriptor < 0 && errno == EMFILE && raise_open_files()) descriptor = open();
  return descriptor;
}

int open_descriptor(const std::string& path, int flags) {
  const int descriptor = try_open(path, flags);
  if (descriptor < 0) fail("open", path);
  return descriptor;
}

/// False if another process has locked it. True also if the file system has no locks.
bool try_lock(int descriptor) {
  return retried([&] { return ::flock(descriptor, LOCK_EX | LOCK_NB); }) == 0 ||
         errno != EWOULDBLOCK;
}

[[noreturn]] void refuse_in_use(const std::string& path) {
  raise<FileError>(
      "write: {} is in use: another process writes the same file; expected one at a time; try "
      "again when it has ended, or another path",
      path);
}

struct stat status_of(int descriptor, const std::string& path) {
  struct stat status;
  if (::fstat(descriptor, &status) != 0) fail("stat", path);
  return status;
}

bool leads_to(const std::string& path, int descriptor) {
  struct stat there {};
  if (followed(path, [&] { return ::stat(path.c_str(), &there); }) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail("stat", path);
  }
  const struct stat own = status_of(descriptor, path);
  return own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

std::filesystem::file_type type_of(const std::string& path) {
  using std::filesystem::file_type;
  struct stat status;
  if (followed(path, [&] { return ::stat(path.c_str(), &status); }) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return file_type::not_found;
    fail("open", path);
  }
  return S_ISREG(status.st_mode)   ? file_type::regular
         : S_ISDIR(status.st_mode) ? file_type::directory
                                   : file_type::unknown;
}

// One call moves at most 0x7ffff000 bytes on Linux.
constexpr size_t call_bytes = size_t{1} << 30;

/// Calls transfer(done, size), which returns how many bytes it has transferred or -1, until all
/// bytes are.
template <class F>
void in_parts(const char* operation, const std::string& path, size_t bytes, const F& transfer) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t count = transfer(done, std::min(bytes - done, call_bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(operation, path);
    done += static_cast<size_t>(count);
  }
}

}  // namespace

File File::open(const std::string& path) {
  // Without O_NONBLOCK, opening a pipe that has no writer would block for ever.
  File file(path, open_descriptor(path, O_RDONLY | O_NONBLOCK));
  if (!S_ISREG(status_of(file.descriptor_, path).st_mode))
    raise<FileError>("open: {}: expected a regular file", path);
  return file;
}

File File::create(const std::string& path) {
  return File(path, open_descriptor(path, O_WRONLY | O_CREAT | O_TRUNC));
}

File File::create_locked(const std::string& path) {
  constexpr int max_attempts = 100;  // other processes may remove and create it meanwhile
  for (int attempt = 0; attempt < max_attempts; ++attempt) {
    if (const int made = try_open(path, O_WRONLY | O_CREAT | O_EXCL); made >= 0) {
      File file(path, made);
      if (try_lock(made) && file.has_its_path()) return file;
      continue;
    }
    if (errno != EEXIST) fail("open", path);
    const int found = try_open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (found < 0 && errno == ENOENT) continue;
    if (found < 0 && errno != ELOOP) fail("open", path);
    const File leftover(path, found);  // -1: a link
    if (found >= 0 && !try_lock(found)) refuse_in_use(path);
    if ((found < 0 || leftover.has_its_path()) && ::unlink(path.c_str()) != 0 && errno != ENOENT)
      fail("remove", path);
  }
  refuse_in_use(path);
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

bool File::has_its_path() const { return leads_to(path_, descriptor_); }

int64_t File::size() const { return status_of(descriptor_, path_).st_size; }

void File::read_at(int64_t offset, std::span<std::byte> bytes) const {
  in_parts("read", path_, bytes.size(), [&](size_t done, size_t size) {
    const off_t at = offset + static_cast<off_t>(done);
    const ssize_t count = ::pread(descriptor_, bytes.data() + done, size, at);
    if (count == 0)
      raise<FileError>("read: {}: the file ends at byte {}; expected {} bytes from byte {}", path_,
                       at, bytes.size(), offset);
    return count;
  });
}

void File::reserve(int64_t bytes) {
  if (bytes <= 0) return;
  int result = 0;
  do result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(bytes));
  while (result != 0 && errno == EINTR);
  constexpr int unable[] = {EOPNOTSUPP, ENOSYS, ENODEV, ESPIPE, EINVAL};
  if (result != 0 && std::ranges::find(unable, errno) == std::end(unable)) fail("reserve", path_);
}

void File::write(std::span<const std::byte> bytes) {
  in_parts("write", path_, bytes.size(), [&](size_t done, size_t size) {
    return ::write(descriptor_, bytes.data() + done, size);
  });
}

void File::write_at(int64_t offset, std::span<const std::byte> bytes) {
  in_parts("write", path_, bytes.size(), [&](size_t done, size_t size) {
    return ::pwrite(descriptor_, bytes.data() + done, size, offset + static_cast<off_t>(done));
  });
}

void File::sync() {
  // EINVAL: a device or a pipe, which cannot be synced.
  if (retried([&] { return ::fsync(descriptor_); }) != 0 && errno != EINVAL) fail("fsync", path_);
}

void File::close() {
  // EINTR: Linux has closed the file anyway.
  if (::close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) fail("close", path_);
}

namespace {
namespace fs = std::filesystem;

/// Follows links, so that the target is replaced and not the link, also if it does not exist yet.
std::string target_of(const std::string& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  fs::path target = fs::canonical(path, error);
  if (error) target = fs::path(path).parent_path() / fs::read_symlink(path, error);
  return error ? path : target.string();
}

/// False for a path that a new file must not replace: a device, a pipe, or the name of an open
/// descriptor such as /dev/stdout.
bool is_replaceable(const std::string& path) {
  std::error_code missing;
  for (const char* open : {"/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/self/fd/"})
    if (path.starts_with(open)) return false;
  return !fs::exists(path, missing) || fs::is_regular_file(path, missing);
}

std::string folder_of(const std::string& path) {
  const fs::path folder = fs::path(path).parent_path();
  return folder.empty() ? "." : folder.string();
}
}  // namespace

UnfinishedFile::UnfinishedFile(const std::string& path)
    : path_(is_replaceable(path) ? target_of(path) : path),
      in_place_(!is_replaceable(path)),
      file_(in_place_ ? File::create(path_) : File::create_locked(path_ + ".unfinished")) {}

UnfinishedFile::~UnfinishedFile() {
  if (in_place_ || finished_) return;
  try {
    if (file_.has_its_path()) ::unlink(file_.path().c_str());
  } catch (const FileError&) {  // ignored: the next UnfinishedFile of this PATH removes the file
  }
}

void UnfinishedFile::finish() {
  file_.sync();
  if (!in_place_) {
    if (!file_.has_its_path()) refuse_in_use(file_.path());  // the file system has no locks
    rename_over(file_.path(), path_);
  }
  finished_ = true;
  file_.close();
  if (!in_place_) sync_directory(folder_of(path_));
}

std::optional<Folder> Folder::open(const std::string& path) {
  const int descriptor =
      retried([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (descriptor >= 0) return Folder(descriptor);
  if (errno == ENOENT) return std::nullopt;
  fail("open", path);
}

Folder::~Folder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Folder::Folder(Folder&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Folder& Folder::operator=(Folder&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

bool Folder::is_at(const std::string& path) const { return leads_to(path, descriptor_); }

bool Folder::lock() { return try_lock(descriptor_); }

std::string read_text(const std::string& path, int64_t max_bytes) {
  return read_text(File::open(path), max_bytes);
}

std::string read_text(const File& file, int64_t max_bytes) {
  if (file.size() > max_bytes)
    raise<FileError>("read: {}: has {} bytes; expected at most {}", file.path(), file.size(),
                     max_bytes);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  File file = File::create(path);
  file.write(std::as_bytes(std::span(text)));
  file.sync();
  file.close();
}

void replace_text(const std::string& path, const std::string& text) {
  UnfinishedFile unfinished(path);
  unfinished.file().write(std::as_bytes(std::span(text)));
  unfinished.finish();
}

std::optional<int64_t> free_bytes(const std::string& path) {
  struct statvfs disk {};
  std::error_code error;
  std::filesystem::path place = std::filesystem::absolute(path, error);
  if (error) return std::nullopt;
  while (::statvfs(place.c_str(), &disk) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return std::nullopt;
    if (place == place.parent_path()) return std::nullopt;
    place = place.parent_path();
  }
  if (disk.f_blocks == 0) return std::nullopt;  // some network file systems report 0 blocks
  const auto blocks = ::geteuid() == 0 ? disk.f_bfree : disk.f_bavail;
  return static_cast<int64_t>(blocks) * static_cast<int64_t>(disk.f_frsize);
}

void make_directories(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path place = fs::absolute(path, error).lexically_normal();
       !error && !fs::exists(place, error); place = place.parent_path())
    if (place.has_filename()) missing.push_back(place);
  for (auto place = missing.rbegin(); !error && place != missing.rend(); ++place) {
    fs::create_directory(*place, error);
    if (!error) sync_directory(place->parent_path().string());
  }
  if (!error && !fs::is_directory(path, error) && !error)
    error = std::make_error_code(std::errc::not_a_directory);
  if (error)
    raise<FileError>(
        "create: {}: {}; expected a folder that exists or can be made; try another path", path,
        error.message());
}

void sync_directory(const std::string& path) {
  const int descriptor = open_descriptor(path, O_RDONLY | O_DIRECTORY);
  const int result = retried([&] { return ::fsync(descriptor); });
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  if (result != 0) fail("fsync", path);
}

void rename_over(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) fail("rename", fmt::format("{} to {}", from, to));
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) != 0)
    fail("rename", fmt::format("{} to {}, which exists", from, to));
}

bool is_regular_file(const std::string& path) {
  return type_of(path) == std::filesystem::file_type::regular;
}

bool is_directory(const std::string& path) {
  return type_of(path) == std::filesystem::file_type::directory;
}

bool path_exists(const std::string& path) {
  return type_of(path) != std::filesystem::file_type::not_found;
}

}  // namespace zg
