#include "zerograd/runtime/storage/block_io.h"

#include <liburing.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/text/format.h"

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

/// If the system transfers only a part of a request, the rest is requested again.
class UringIo final : public BlockIo {
 public:
  UringIo(const SwapOptions& options, int file, bool direct, std::unique_ptr<Ring> ring)
      : BlockIo(options, file, direct),
        ring_(std::move(ring)),
        slots_(static_cast<size_t>(depth_)) {}

  void submit(int slot, const Request& request) override {
    slots_[static_cast<size_t>(slot)] = {.left = request};
    if (const int error = request_rest(slot)) fail("asked", error);
  }
  Ended wait() override {
    for (;;) {
      io_uring_cqe* entry = nullptr;
      if (const int result = io_uring_wait_cqe(ring_->get(), &entry); result < 0) {
        if (result == -EINTR) continue;
        fail("waited for", -result);
      }
      const auto slot = static_cast<int>(io_uring_cqe_get_data64(entry));
      const int count = entry->res;
      io_uring_cqe_seen(ring_->get(), entry);
      const bool again = is_temporary(count) && may_retry(slot);
      if (count <= 0 && !again) return {slot, count < 0 ? -count : EIO};
      Request& left = slots_[static_cast<size_t>(slot)].left;
      const int64_t done = again ? 0 : count;
      left.memory += done, left.offset += done, left.bytes -= done;
      if (left.bytes == 0) return {slot, 0};
      if (const int error = request_rest(slot)) return {slot, error};
    }
  }
  const char* engine() const override { return "io_uring"; }

 private:
  struct Slot {
    Request left;  // bytes that are not transferred yet
    int refusals = 0;
  };

  static bool is_temporary(int result) {
    return result == -EINTR || result == -EAGAIN || result == -EBUSY;
  }

  // The system may lack memory or queue entries for a while. After ten seconds that is an error.
  bool may_retry(int slot) {
    constexpr int max_refusals = 10'000;
    if (++slots_[static_cast<size_t>(slot)].refusals > max_refusals) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return true;
  }

  // Requests the bytes that are left. Returns the error number if the system did not accept the
  // request.
  int request_rest(int slot) {
    io_uring_sqe* entry = io_uring_get_sqe(ring_->get());
    const Request& left = slots_[static_cast<size_t>(slot)].left;
    const auto bytes = static_cast<unsigned>(left.bytes);
    const auto offset = static_cast<uint64_t>(left.offset);
    if (left.writes)
      io_uring_prep_write(entry, descriptor_, left.memory, bytes, offset);
    else
      io_uring_prep_read(entry, descriptor_, left.memory, bytes, offset);
    io_uring_sqe_set_data64(entry, static_cast<uint64_t>(slot));
    int taken = 0;
    do taken = io_uring_submit(ring_->get());
    while (is_temporary(taken) && may_retry(slot));
    return taken < 0 ? -taken : 0;
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
  return ring.error() == 0
             ? ""
             : fmt::format("the kernel refuses it ({}); drives are read by pread and pwrite",
                           std::strerror(ring.error()));
}

}  // namespace zg
