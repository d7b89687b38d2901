#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/call.h"

namespace zg::cpu {

/// Records the last collectives of one rank in one group, to be printed after a failure: call,
/// step, and the times at which it was queued, started and done. It always records, into memory
/// that is allocated once. Any thread may call.
class CollectiveLog {
 public:
  /// Rank and size count all ranks.
  CollectiveLog(int rank, int size, std::string group = {});

  void queued(int64_t sequence, const Call& call, int64_t step);
  void started(int64_t sequence);
  void done(int64_t sequence);

  /// A header and at most 64 lines, oldest first. The running collective is among them.
  std::string text() const;
  /// Prints text() on stderr at the first call; later calls do nothing.
  void dump() noexcept;

 private:
  struct Entry {
    int64_t sequence = -1, step = 0, count = 0;
    Collective op{};
    DType dtype{};
    int root = -1;
    char name[80] = {};                     // longer names are cut
    double queued_ms, started_ms, done_ms;  // since the log began; negative: not yet
  };
  double now_ms() const;
  Entry& at(int64_t sequence) { return entries_[static_cast<size_t>(sequence) % entries_.size()]; }
  std::string line(const Entry& entry) const;

  const std::string rank_;  // "rank 1/4"
  const std::string group_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::atomic<bool> dumped_ = false;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  // ring buffer, by sequence number
  int64_t queued_ = 0, done_ = 0;
};

}  // namespace zg::cpu
