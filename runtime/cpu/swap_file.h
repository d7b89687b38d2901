#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cpu/block_io.h"
#include "runtime/device.h"

namespace zg::cpu {

/// The bytes behind a device's Space::file: one file without a name, which no second job can open
/// and which is gone with the process, whatever ends it. One worker reads and writes in the order
/// of the calls, through aligned buffers of its own, so any range may be asked for; what is written
/// can be read by the next call. Every block has a checksum, kept in memory.
class SwapFile {
 public:
  using Ticket = int64_t;

  explicit SwapFile(const SwapOptions& options);  ///< FileError
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  /// Takes the space on the drive. FileError with path, needed and free bytes when it has too
  /// little.
  void reserve(int64_t bytes);

  /// Memory must live until wait() of the ticket.
  Ticket read(int64_t offset, std::span<std::byte> to);
  Ticket write(int64_t offset, std::span<const std::byte> from);
  /// Returns when this call and all before it are done. FileError: one of them failed, or a block
  /// is not what was written there; after it every call says so.
  void wait(Ticket ticket);

  /// "io_uring past the page cache"
  std::string description() const;

 private:
  struct Job {
    int64_t offset;
    std::byte* memory;
    int64_t bytes;
    bool writes;
  };
  Ticket push(const Job& job);
  void serve();
  void run(const Job& job);
  void run_part(const Job& job, int64_t first_block, int64_t last_block);
  void check(int64_t first_block, std::span<const std::byte> bytes) const;
  void note(int64_t first_block, std::span<const std::byte> bytes);

  const std::string directory_;
  std::unique_ptr<BlockIo> io_;
  int64_t reserved_ = 0;
  std::vector<uint64_t> checksums_;  // by block; 0: never written

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Ticket pushed_ = 0, done_ = 0;
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace zg::cpu
