#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "zerograd/runtime/device.h"

namespace zg::cpu {

/// Reads and writes whole blocks of a file without a name, by io_uring if the kernel has it,
/// otherwise by threads with pread and pwrite. It bypasses the page cache if the file system allows
/// it. Each of depth() slots is free or has one request in progress. For one thread at a time.
class BlockIo {
 public:
  static constexpr int64_t block = 4096;  ///< alignment that O_DIRECT requires

  struct Request {
    int64_t offset;     ///< a multiple of `block`
    std::byte* memory;  ///< a multiple of memory_alignment()
    int64_t bytes;      ///< a multiple of `block`, at most request_bytes()
    bool writes;
  };
  struct Ended {
    int slot;
    int error;  ///< errno; 0: all bytes were transferred
  };

  static std::unique_ptr<BlockIo> open(const SwapOptions& options);  ///< throws FileError
  virtual ~BlockIo();

  /// Starts a request in a free slot. Its memory must not be used until wait() has returned the
  /// slot.
  virtual void submit(int slot, const Request& request) = 0;
  /// Waits until a request is done and returns its slot and error. At least one must be in
  /// progress. Throws FileError if the system call that waits fails.
  virtual Ended wait() = 0;
  virtual const char* engine() const = 0;  ///< "io_uring" | "pread"

  int depth() const { return depth_; }
  int64_t request_bytes() const { return request_bytes_; }
  int64_t memory_alignment() const { return memory_alignment_; }
  /// Aligned memory of a slot, large enough for one request.
  std::byte* buffer(int slot) const { return buffer_.get() + slot * request_bytes_; }
  void reserve(int64_t bytes);             ///< throws FileError with needed and free bytes
  bool direct() const { return direct_; }  ///< true: I/O bypasses the page cache
  [[noreturn]] void fail(const char* what, int error) const;  ///< throws FileError

 protected:
  BlockIo(const SwapOptions& options, int descriptor, bool direct);

  const std::string directory_;
  const int64_t request_bytes_;
  const int depth_;
  const int descriptor_;
  const bool direct_;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  const int64_t memory_alignment_;
  std::unique_ptr<std::byte[], Free> buffer_;
};

/// Null if this build or kernel has no io_uring; then the caller still owns the file.
std::unique_ptr<BlockIo> open_uring(const SwapOptions& options, int file, bool direct);

}  // namespace zg::cpu
