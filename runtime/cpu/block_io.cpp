#include "runtime/cpu/block_io.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/cpu/uring_io.h"
#include "runtime/error.h"

namespace zg::cpu {
namespace {

std::string reason(int error) { return std::strerror(error); }

// Without a name from the start, or named and removed at once where the file system has no such.
int open_unnamed(const std::string& directory, int more) {
  const int flags = O_RDWR | O_CLOEXEC | more;
  if (const int file = ::open(directory.c_str(), O_TMPFILE | flags, 0600); file >= 0) return file;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -1;
  std::string name = directory + "/zerograd_" + std::string(6, 'X');
  const int file = mkostemp(name.data(), O_CLOEXEC | more);
  if (file >= 0) unlink(name.c_str());
  return file;
}

/// One request after the other.
class PreadIo final : public BlockIo {
 public:
  PreadIo(const SwapOptions& options, int descriptor, bool direct)
      : BlockIo(options, descriptor, direct) {}
  void read(int64_t offset, std::span<std::byte> to) override {
    while (!to.empty()) {
      const size_t bytes = std::min(to.size(), static_cast<size_t>(request_bytes_));
      const ssize_t count = pread(descriptor_, to.data(), bytes, offset);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("read", count < 0 ? errno : EIO);
      to = to.subspan(static_cast<size_t>(count));
      offset += count;
    }
  }
  void write(int64_t offset, std::span<const std::byte> from) override {
    while (!from.empty()) {
      const size_t bytes = std::min(from.size(), static_cast<size_t>(request_bytes_));
      const ssize_t count = pwrite(descriptor_, from.data(), bytes, offset);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) fail("written", count < 0 ? errno : EIO);
      from = from.subspan(static_cast<size_t>(count));
      offset += count;
    }
  }
  const char* engine() const override { return "pread"; }
};

}  // namespace

void BlockIo::Free::operator()(std::byte* memory) const { std::free(memory); }

BlockIo::BlockIo(const SwapOptions& options, int descriptor, bool direct)
    : directory_(options.directory),
      request_bytes_(std::max(block, options.block_size / block * block)),
      depth_(std::max(1, options.queue_depth)),
      descriptor_(descriptor),
      direct_(direct),
      buffer_bytes_(static_cast<size_t>(request_bytes_ * depth_)),
      buffer_(static_cast<std::byte*>(std::aligned_alloc(block, buffer_bytes_))) {
  if (!buffer_)
    throw OutOfMemory("nvme: no memory for " + std::to_string(buffer_bytes_) +
                      " bytes of requests; try a smaller aio.queue_depth");
}

BlockIo::~BlockIo() { close(descriptor_); }

void BlockIo::fail(const char* what, int error) const {
  throw FileError("nvme: " + directory_ + " cannot be " + what + ": " + reason(error) +
                  "; expected a drive that works; try another --nvme-path");
}

void BlockIo::reserve(int64_t bytes) {
  const int error = posix_fallocate(descriptor_, 0, bytes);
  if (error == 0) return;
  struct statvfs drive {};
  const bool known = fstatvfs(descriptor_, &drive) == 0;
  const auto free = static_cast<int64_t>(drive.f_bavail) * static_cast<int64_t>(drive.f_frsize);
  throw FileError("nvme: " + directory_ + " has no room: " + reason(error) + "; expected " +
                  std::to_string(bytes) + " bytes in all, got " +
                  (known ? std::to_string(free) : std::string("an unknown number")) +
                  " more free; try another --nvme-path, or host instead of nvme");
}

std::unique_ptr<BlockIo> BlockIo::open(const SwapOptions& options) {
  int file = open_unnamed(options.directory, O_DIRECT);
  const bool direct = file >= 0;
  if (!direct) file = open_unnamed(options.directory, 0);
  if (file < 0)
    throw FileError("nvme: " + options.directory + " cannot be written: " + reason(errno) +
                    "; expected a directory on a drive; try another --nvme-path");
  if (auto io = open_uring(options, file, direct)) return io;
  return std::make_unique<PreadIo>(options, file, direct);
}

}  // namespace zg::cpu
