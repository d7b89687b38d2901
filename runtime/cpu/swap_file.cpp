#include "runtime/cpu/swap_file.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/error.h"

namespace zg::cpu {
namespace {

constexpr int64_t block = BlockIo::block;

// 0 stands for a block that nobody has written.
uint64_t checksum_of(const std::byte* bytes) {
  return std::max<uint64_t>(1, XXH3_64bits(bytes, static_cast<size_t>(block)));
}

}  // namespace

SwapFile::SwapFile(const SwapOptions& options)
    : directory_(options.directory), io_(BlockIo::open(options)), worker_([this] { serve(); }) {}

SwapFile::~SwapFile() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

std::string SwapFile::description() const {
  return std::string(io_->engine()) +
         (io_->direct() ? " past the page cache"
                        : " through the page cache, as its file system refuses O_DIRECT");
}

void SwapFile::reserve(int64_t bytes) {
  const int64_t whole = (bytes + block - 1) / block * block;
  if (whole <= reserved_) return;
  wait(pushed_);  // the worker reads the checksums
  io_->reserve(whole);
  checksums_.resize(static_cast<size_t>(whole / block), 0);
  reserved_ = whole;
}

SwapFile::Ticket SwapFile::read(int64_t offset, std::span<std::byte> to) {
  return push({offset, to.data(), static_cast<int64_t>(to.size()), false});
}

SwapFile::Ticket SwapFile::write(int64_t offset, std::span<const std::byte> from) {
  return push(
      {offset, const_cast<std::byte*>(from.data()), static_cast<int64_t>(from.size()), true});
}

SwapFile::Ticket SwapFile::push(const Job& job) {
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    ticket = ++pushed_;
  }
  changed_.notify_all();
  return ticket;
}

void SwapFile::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
  if (failure_) std::rethrow_exception(failure_);
}

// After a failure nothing more is done: what is read would be wrong.
void SwapFile::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    if (!failure_ && !stop_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        run(job);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
    }
    ++done_;
    changed_.notify_all();
  }
}

void SwapFile::run(const Job& job) {
  const int64_t step = static_cast<int64_t>(io_->buffer().size()) / block;
  const int64_t first = job.offset / block, last = (job.offset + job.bytes + block - 1) / block;
  for (int64_t begin = first; begin < last; begin += step)
    run_part(job, begin, std::min(last, begin + step));
}

// Blocks [first, last) by way of the aligned buffer. A write keeps what it does not cover of the
// blocks at its ends.
void SwapFile::run_part(const Job& job, int64_t first, int64_t last) {
  const std::span<std::byte> buffer =
      io_->buffer().first(static_cast<size_t>((last - first) * block));
  const int64_t begin = std::max(job.offset, first * block);
  const int64_t end = std::min(job.offset + job.bytes, last * block);
  std::byte* const here = buffer.data() + (begin - first * block);
  std::byte* const there = job.memory + (begin - job.offset);
  const auto load = [&](int64_t from, int64_t to) {
    const auto part = buffer.subspan(static_cast<size_t>((from - first) * block),
                                     static_cast<size_t>((to - from) * block));
    io_->read(from * block, part);
    check(from, part);
  };
  if (!job.writes) {
    load(first, last);
    std::memcpy(there, here, static_cast<size_t>(end - begin));
    return;
  }
  if (begin > first * block) load(first, first + 1);
  if (end < last * block && (last - 1 > first || begin == first * block)) load(last - 1, last);
  std::memcpy(here, there, static_cast<size_t>(end - begin));
  note(first, buffer);
  io_->write(first * block, buffer);
}

void SwapFile::check(int64_t first, std::span<const std::byte> bytes) const {
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block)) {
    const size_t index = static_cast<size_t>(first) + at / static_cast<size_t>(block);
    if (checksums_[index] != 0 && checksums_[index] != checksum_of(bytes.data() + at))
      throw FileError("nvme: " + directory_ + ": the block at byte " +
                      std::to_string(static_cast<int64_t>(index) * block) +
                      " is not what was written there; expected a drive that keeps what it is "
                      "given; try another --nvme-path, and resume from the last checkpoint");
  }
}

void SwapFile::note(int64_t first, std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block))
    checksums_[static_cast<size_t>(first) + at / static_cast<size_t>(block)] =
        checksum_of(bytes.data() + at);
}

}  // namespace zg::cpu
