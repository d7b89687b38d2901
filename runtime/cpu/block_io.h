#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/device.h"

namespace zg::cpu {

/// Reads and writes whole blocks of a file that has no name, past the page cache where the file
/// system lets it: by io_uring where the kernel does, else by pread and pwrite.
class BlockIo {
 public:
  static constexpr int64_t block = 4096;  ///< what O_DIRECT aligns to

  static std::unique_ptr<BlockIo> open(const SwapOptions& options);  ///< FileError
  virtual ~BlockIo();

  /// Of whole blocks, both aligned to `block`. FileError with the system's reason.
  virtual void read(int64_t offset, std::span<std::byte> to) = 0;
  virtual void write(int64_t offset, std::span<const std::byte> from) = 0;
  virtual const char* engine() const = 0;  ///< "io_uring" | "pread"

  /// Memory for whole requests: queue_depth of block_size bytes, aligned.
  std::span<std::byte> buffer() const { return {buffer_.get(), buffer_bytes_}; }
  void reserve(int64_t bytes);             ///< FileError with needed and free bytes
  bool direct() const { return direct_; }  ///< past the page cache

 protected:
  BlockIo(const SwapOptions& options, int descriptor, bool direct);
  [[noreturn]] void fail(const char* what, int error) const;

  const std::string directory_;
  const int64_t request_bytes_;
  const int depth_;
  const int descriptor_;
  const bool direct_;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  size_t buffer_bytes_;
  std::unique_ptr<std::byte[], Free> buffer_;
};

}  // namespace zg::cpu
