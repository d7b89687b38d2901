#pragma once

#include <array>
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

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/storage/block_io.h"
#include "zerograd/runtime/trace.h"

namespace zg::cpu {

/// The file that holds the data of a device's Space::file. It has no name, so no other process can
/// open it, and the system removes it when the process ends. A worker thread divides calls into
/// requests and keeps queue_depth of them in progress. Meanwhile it computes the checksums of other
/// requests: every block has a checksum, kept in memory. Requests for the same blocks or the same
/// memory are done in the order of the calls. Apart from that, requests of calls with `ahead` come
/// first. A request uses the caller's memory if that is aligned for direct I/O. Other memory, and
/// partial blocks at the ends of a range, go through aligned buffers of queue_depth * block_size
/// bytes.
class SwapFile {
 public:
  using Ticket = int64_t;  ///< 2 * the call's number in its queue, from 1, + the queue's index
  /// The trace, rank and name of the span that a call records. Without a trace nothing is recorded.
  struct SpanInfo {
    std::shared_ptr<Trace> trace = {};
    int rank = 0;
    std::string name = {};
  };

  /// A call: a transfer between the file and memory.
  struct Job {
    int64_t offset;
    std::byte* memory;
    int64_t bytes;
    bool writes;  ///< from memory to the file
    SpanInfo span;
  };

  explicit SwapFile(const SwapOptions& options);  ///< throws FileError
  ~SwapFile();
  SwapFile(const SwapFile&) = delete;
  SwapFile& operator=(const SwapFile&) = delete;

  /// Allocates the space on the disk. Throws FileError with path, needed and free bytes if the disk
  /// has too little space.
  void reserve(int64_t bytes);

  /// The memory must stay valid until wait() of the ticket has returned.
  Ticket push(Job job, bool ahead);
  /// Returns when this call and all before it in its queue are done. Throws FileError if one of
  /// them failed, or if a block that was read does not have the checksum of the bytes written
  /// there. Every later call throws the same error.
  void wait(Ticket ticket);
  /// Whether the call is in the queue that comes first.
  static bool is_ahead(Ticket ticket) { return ticket % 2 == 0; }
  /// True also after a failure, because then no more transfers are done.
  bool is_done(Ticket ticket);

  /// "io_uring past the page cache"
  std::string description() const;
  std::string requests() const;  ///< "8 requests of 1048576 bytes"

 private:
  /// A running call that is traced.
  struct Traced {
    Ticket ticket;
    Job job;
    int64_t begin_ns;
  };
  /// The blocks of a job that one request reads or writes.
  struct Part {
    int64_t first, last;  // blocks of the file
    int64_t begin, end;   // byte range that the job asks for, within those blocks
    std::byte* memory;    // address of byte `begin`
    bool writes;

    int64_t bytes() const { return end - begin; }
    bool is_whole() const { return bytes() == (last - first) * BlockIo::block; }
    /// True if one of the two requests must be done before the other starts.
    bool conflicts_with(const Part& other) const;
  };
  /// A buffer of the queue and the request that uses it.
  struct Slot {
    bool busy = false;
    bool direct = false;  // true: the request uses the caller's memory; false: the slot's buffer
    Part part{};
    Ticket ticket = 0;
  };
  static Part part_of(const Job& job);
  void serve();
  /// Divides a call of the first of the queues [0, queues) that is not empty; false: all are empty.
  bool split_next(size_t queues);
  void split(const Job& job, Ticket ticket);
  void start(const Part& part, Ticket ticket);
  void submit(int slot, const Part& part, bool direct, Ticket ticket);
  void load_ends(int slot, const Part& part, Ticket ticket);
  int free_slot_for(const Part& part);
  void finish_one();
  void finish_request(Ticket ticket);
  int& unfinished(Ticket ticket);
  void record(Ticket done);
  void give_up() noexcept;
  std::span<std::byte> blocks_of(int slot) const;
  void verify_checksums(int64_t first_block, std::span<const std::byte> bytes) const;
  void store_checksums(int64_t first_block, std::span<const std::byte> bytes);

  const std::string directory_;
  std::unique_ptr<BlockIo> io_;
  int64_t reserved_ = 0;
  std::vector<uint64_t> checksums_;  // by block; 0: never written

  // Used by the worker thread only.
  std::vector<Slot> slots_;
  int busy_ = 0;
  std::deque<Traced> traced_;
  int64_t last_end_ns_ = 0;  // end of the last traced span

  std::mutex mutex_;
  std::condition_variable changed_;
  struct Queue {
    std::deque<Job> jobs;
    int64_t pushed = 0, done = 0;
    std::deque<int> unfinished;  // requests of call done + 1 + index; used by the worker only
  };
  Queue& queue_of(Ticket ticket) { return queues_[is_ahead(ticket) ? 0 : 1]; }
  std::array<Queue, 2> queues_;  // 0: calls with `ahead` that overtake all in 1; 1: the others
  bool stop_ = false;
  std::exception_ptr failure_;
  std::thread worker_;
};

}  // namespace zg::cpu
