#include "runtime/cpu/uring_io.h"

#include <liburing.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "runtime/swap.h"

namespace zg::cpu {
namespace {

class Ring {
 public:
  explicit Ring(int depth)
      : error_(-io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0)) {}
  ~Ring() {
    if (error_ == 0) io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  int error() const { return error_; }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  int error_;
};

/// Up to queue_depth requests at once; what comes back short is asked for again.
class UringIo final : public BlockIo {
 public:
  UringIo(const SwapOptions& options, int file, bool direct, std::unique_ptr<Ring> ring)
      : BlockIo(options, file, direct),
        ring_(std::move(ring)),
        slots_(static_cast<size_t>(depth_)) {}

  void read(int64_t offset, std::span<std::byte> to) override {
    transfer(offset, to.data(), static_cast<int64_t>(to.size()), /*writes=*/false);
  }
  void write(int64_t offset, std::span<const std::byte> from) override {
    transfer(offset, const_cast<std::byte*>(from.data()), static_cast<int64_t>(from.size()),
             /*writes=*/true);
  }
  const char* engine() const override { return "io_uring"; }

 private:
  struct Slot {
    std::byte* memory = nullptr;
    int64_t offset = 0, bytes = 0;  // still to come
    bool busy = false;
  };

  void transfer(int64_t offset, std::byte* memory, int64_t bytes, bool writes) {
    int under_way = 0, error = 0;
    while (under_way > 0 || (bytes > 0 && error == 0)) {
      for (Slot& slot : slots_) {
        if (slot.busy || bytes == 0 || error != 0) continue;
        slot = {memory, offset, std::min(bytes, request_bytes_), true};
        memory += slot.bytes, offset += slot.bytes, bytes -= slot.bytes;
        submit(slot, writes);
        ++under_way;
      }
      under_way -= finish_one(writes, error);
    }
    if (error != 0) fail(writes ? "written" : "read", error);
  }

  void submit(Slot& slot, bool writes) {
    io_uring_sqe* entry = io_uring_get_sqe(ring_->get());
    const auto bytes = static_cast<unsigned>(slot.bytes);
    const auto offset = static_cast<uint64_t>(slot.offset);
    if (writes)
      io_uring_prep_write(entry, descriptor_, slot.memory, bytes, offset);
    else
      io_uring_prep_read(entry, descriptor_, slot.memory, bytes, offset);
    io_uring_sqe_set_data(entry, &slot);
    io_uring_submit(ring_->get());
  }

  // How many requests have ended. After an error the others are waited for: memory is theirs.
  int finish_one(bool writes, int& error) {
    io_uring_cqe* entry = nullptr;
    if (const int result = io_uring_wait_cqe(ring_->get(), &entry); result < 0) {
      if (result == -EINTR) return 0;
      fail("waited for", -result);
    }
    Slot& slot = *static_cast<Slot*>(io_uring_cqe_get_data(entry));
    const int count = entry->res;
    io_uring_cqe_seen(ring_->get(), entry);
    const bool again = count == -EINTR || count == -EAGAIN;
    if (count <= 0 && !again) {
      error = error ? error : count < 0 ? -count : EIO;
    } else if (again || count < slot.bytes) {
      const int64_t done = again ? 0 : count;
      slot.memory += done, slot.offset += done, slot.bytes -= done;
      submit(slot, writes);
      return 0;
    }
    slot.busy = false;
    return 1;
  }

  std::unique_ptr<Ring> ring_;
  std::vector<Slot> slots_;
};

}  // namespace

std::unique_ptr<BlockIo> open_uring(const SwapOptions& options, int file, bool direct) {
  auto ring = std::make_unique<Ring>(std::max(1, options.queue_depth));
  if (ring->error() != 0) return nullptr;
  return std::make_unique<UringIo>(options, file, direct, std::move(ring));
}

}  // namespace zg::cpu

namespace zg {

std::string io_uring_absence() {
  const cpu::Ring ring(1);
  return ring.error() == 0 ? ""
                           : std::string("the kernel refuses it (") + std::strerror(ring.error()) +
                                 "); drives are read by pread and pwrite";
}

}  // namespace zg
