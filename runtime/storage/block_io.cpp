#include "zerograd/runtime/storage/block_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

std::string reason(int error) { return std::strerror(error); }

// Opens a file without a name. Where the file system has no such files, it makes a named one and
// removes the name at once.
int open_unnamed(const std::string& directory, int more) {
  const int flags = O_RDWR | O_CLOEXEC | more;
  const int unnamed = retried([&] { return ::open(directory.c_str(), O_TMPFILE | flags, 0600); });
  if (unnamed >= 0) return unnamed;
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) return -1;
  std::string name = fmt::format("{}/zerograd_{}", directory, std::string(6, 'X'));
  const int file = retried([&] { return mkostemp(name.data(), O_CLOEXEC | more); });
  if (file >= 0) unlink(name.c_str());
  return file;
}

// The memory alignment that O_DIRECT requires.
int64_t memory_alignment_of(int descriptor) {
#ifdef STATX_DIOALIGN
  struct statx file {};
  if (statx(descriptor, "", AT_EMPTY_PATH, STATX_DIOALIGN, &file) == 0 &&
      file.stx_dio_mem_align > 0)
    return file.stx_dio_mem_align;
#endif
  return BlockIo::block;
}

/// I/O by threads; each thread does one request at a time.
class PreadIo final : public BlockIo {
 public:
  PreadIo(const SwapOptions& options, int descriptor, bool direct)
      : BlockIo(options, descriptor, direct) {
    constexpr int max_threads = 4;  // more threads do not hide more latency
    try {
      for (int i = 0; i < std::min(depth_, max_threads); ++i)
        threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& error) {  // the system refuses more threads: these suffice
      if (threads_.empty())
        raise<OutOfMemory>(
            "nvme: the system refused a thread: {}; expected fewer than `ulimit -u`; try a higher "
            "limit",
            error.what());
    }
  }
  ~PreadIo() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    asked_for_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  void submit(int slot, const Request& request) override {
    {
      const std::lock_guard lock(mutex_);
      requests_.emplace_back(slot, request);
    }
    asked_for_.notify_one();
  }
  Ended wait() override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return !ended_.empty(); });
    const Ended first = ended_.front();
    ended_.pop_front();
    return first;
  }
  const char* engine() const override { return "pread"; }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asked_for_.wait(lock, [&] { return stop_ || !requests_.empty(); });
      if (requests_.empty()) return;
      const auto [slot, request] = requests_.front();
      requests_.pop_front();
      lock.unlock();
      const int error = transfer(request);
      lock.lock();
      ended_.push_back({slot, error});
      done_.notify_one();
    }
  }
  int transfer(Request left) const {
    while (left.bytes > 0) {
      const auto bytes = static_cast<size_t>(left.bytes);
      const ssize_t count = retried([&] {
        return left.writes ? pwrite(descriptor_, left.memory, bytes, left.offset)
                           : pread(descriptor_, left.memory, bytes, left.offset);
      });
      if (count <= 0) return count < 0 ? errno : EIO;
      left.offset += count, left.memory += count, left.bytes -= count;
    }
    return 0;
  }

  std::mutex mutex_;
  std::condition_variable asked_for_, done_;
  std::deque<std::pair<int, Request>> requests_;
  std::deque<Ended> ended_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void BlockIo::Free::operator()(std::byte* memory) const { std::free(memory); }

BlockIo::BlockIo(const SwapOptions& options, int descriptor, bool direct)
    : directory_(options.directory),
      request_bytes_(std::max(block, options.block_size / block * block)),
      depth_(std::max(1, options.queue_depth)),
      descriptor_(descriptor),
      direct_(direct),
      memory_alignment_(direct ? memory_alignment_of(descriptor) : 1),
      buffer_(static_cast<std::byte*>(
          std::aligned_alloc(block, static_cast<size_t>(request_bytes_ * depth_)))) {
  if (!buffer_)
    raise<OutOfMemory>("nvme: no memory for {} bytes of requests; try a smaller aio.queue_depth",
                       request_bytes_ * depth_);
  // All pages are used now, not when requests first happen to overlap: memory does not grow later.
  std::memset(buffer_.get(), 0, static_cast<size_t>(request_bytes_ * depth_));
}

BlockIo::~BlockIo() { close(descriptor_); }

void BlockIo::fail(const char* what, int error) const {
  raise<FileError>("nvme: {} cannot be {}: {}; expected a working disk; try another (--nvme-path)",
                   directory_, what, reason(error));
}

void BlockIo::reserve(int64_t bytes) {
  int error = 0;
  do error = posix_fallocate(descriptor_, 0, bytes);
  while (error == EINTR);
  if (error == 0) return;
  struct statvfs disk {};
  const bool known = fstatvfs(descriptor_, &disk) == 0;
  const auto free = static_cast<int64_t>(disk.f_bavail) * static_cast<int64_t>(disk.f_frsize);
  raise<FileError>(
      "nvme: {} has no room: {}; expected {} bytes in all, got {} more free; try another "
      "directory (--nvme-path), or host instead of nvme",
      directory_, reason(error), bytes,
      known ? std::to_string(free) : std::string("an unknown number"));
}

std::unique_ptr<BlockIo> BlockIo::open(const SwapOptions& options) {
  int file = open_unnamed(options.directory, O_DIRECT);
  const bool direct = file >= 0;
  if (!direct) file = open_unnamed(options.directory, 0);
  if (file < 0)
    raise<FileError>(
        "nvme: {} cannot be written: {}; expected a directory on a disk; try another (--nvme-path)",
        options.directory, reason(errno));
  if (options.io_uring)
    if (auto io = open_uring(options, file, direct)) return io;
  return std::make_unique<PreadIo>(options, file, direct);
}

}  // namespace zg::cpu
