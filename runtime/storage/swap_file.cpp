#include "zerograd/runtime/storage/swap_file.h"

#include <algorithm>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

constexpr int64_t block = BlockIo::block;

// 0 marks a block that was never written.
uint64_t checksum_of(const std::byte* bytes) {
  return std::max<uint64_t>(1, XXH3_64bits(bytes, static_cast<size_t>(block)));
}

}  // namespace

SwapFile::SwapFile(const SwapOptions& options)
    : directory_(options.directory),
      io_(BlockIo::open(options)),
      slots_(static_cast<size_t>(io_->depth())),
      worker_([this] { serve(); }) {}

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

std::string SwapFile::requests() const {
  return fmt::format("{} requests of {} bytes", io_->depth(), io_->request_bytes());
}

void SwapFile::reserve(int64_t bytes) {
  const int64_t whole = (bytes + block - 1) / block * block;
  if (whole <= reserved_) return;
  // The lock prevents new jobs. After the wait the worker is idle, so checksums_ may be resized.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    return std::ranges::all_of(queues_, [](const Queue& q) { return q.done == q.pushed; });
  });
  if (failure_) std::rethrow_exception(failure_);
  io_->reserve(whole);
  checksums_.resize(static_cast<size_t>(whole / block), 0);
  reserved_ = whole;
}

SwapFile::Part SwapFile::part_of(const Job& job) {
  const int64_t end = job.offset + job.bytes;
  return {.first = job.offset / block,
          .last = (end + block - 1) / block,
          .begin = job.offset,
          .end = end,
          .memory = job.memory,
          .writes = job.writes};
}

SwapFile::Ticket SwapFile::push(Job job, bool ahead) {
  Ticket ticket = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto conflicts = [part = part_of(job)](const Job& other) {
      return part.conflicts_with(part_of(other));
    };
    const size_t index = ahead && std::ranges::none_of(queues_[1].jobs, conflicts) ? 0 : 1;
    queues_[index].jobs.push_back(std::move(job));
    ticket = 2 * ++queues_[index].pushed + static_cast<Ticket>(index);
  }
  changed_.notify_all();
  return ticket;
}

void SwapFile::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_of(ticket).done >= ticket / 2; });
  if (failure_) std::rethrow_exception(failure_);
}

bool SwapFile::is_done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  return queue_of(ticket).done >= ticket / 2 || failure_;
}

// After a failure no request is served: reads would return wrong bytes.
void SwapFile::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return stop_ || busy_ > 0 || !queues_[0].jobs.empty() || !queues_[1].jobs.empty();
    });
    if (stop_) return give_up();
    if (!failure_) {
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (!split_next(queues_.size())) finish_one();
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
    }
    if (!failure_) continue;
    give_up();
    for (Queue& queue : queues_) {
      queue.jobs.clear();
      queue.done = queue.pushed;
    }
    changed_.notify_all();
  }
}

bool SwapFile::split_next(size_t queues) {
  std::unique_lock lock(mutex_);
  for (size_t index = 0; index < queues; ++index) {
    Queue& queue = queues_[index];
    if (queue.jobs.empty()) continue;
    const Job& job = queue.jobs.front();  // stays until it is divided, for push()
    const int64_t number = queue.pushed - std::ssize(queue.jobs) + 1;
    lock.unlock();
    split(job, 2 * number + static_cast<Ticket>(index));
    lock.lock();
    queue.jobs.pop_front();
    return true;
  }
  return false;
}

void SwapFile::split(const Job& job, Ticket ticket) {
  // Counts the call itself, until all its requests are made.
  queue_of(ticket).unfinished.push_back(1);
  if (job.span.trace) traced_.push_back({ticket, job, job.span.trace->now_ns()});
  const int64_t step = io_->request_bytes() / block;
  const Part all = part_of(job);
  for (int64_t first = all.first; first < all.last; first += step) {
    while (!is_ahead(ticket) && split_next(1)) {
    }
    const int64_t begin = std::max(job.offset, first * block);
    start({.first = first,
           .last = std::min(all.last, first + step),
           .begin = begin,
           .end = std::min(all.end, (first + step) * block),
           .memory = job.memory + (begin - job.offset),
           .writes = job.writes},
          ticket);
  }
  finish_request(ticket);
}

void SwapFile::start(const Part& part, Ticket ticket) {
  const int slot = free_slot_for(part);
  const bool aligned =
      reinterpret_cast<uintptr_t>(part.memory) % static_cast<uintptr_t>(io_->memory_alignment()) ==
      0;
  const bool direct = aligned && part.is_whole();
  if (part.writes && !direct) {
    load_ends(slot, part, ticket);
    std::memcpy(io_->buffer(slot) + (part.begin - part.first * block), part.memory,
                static_cast<size_t>(part.bytes()));
  }
  submit(slot, part, direct, ticket);
  if (part.writes) store_checksums(part.first, blocks_of(slot));  // while the disk writes
}

// A write must keep the bytes of its first and last block that it does not cover. So this reads
// these blocks.
void SwapFile::load_ends(int slot, const Part& part, Ticket ticket) {
  const auto load = [&](int64_t index) {
    const int64_t begin = index * block;
    submit(slot,
           {.first = index,
            .last = index + 1,
            .begin = begin,
            .end = begin + block,
            .memory = io_->buffer(slot) + (begin - part.first * block),
            .writes = false},
           /*direct=*/true, ticket);
    while (slots_[static_cast<size_t>(slot)].busy) finish_one();
  };
  const int64_t last = part.last - 1;
  const bool first_is_cut = part.begin > part.first * block;
  if (first_is_cut) load(part.first);
  if (part.end < part.last * block && (last > part.first || !first_is_cut)) load(last);
}

void SwapFile::submit(int slot, const Part& part, bool direct, Ticket ticket) {
  Slot& place = slots_[static_cast<size_t>(slot)];
  place = {.direct = direct, .part = part, .ticket = ticket};
  const std::span<std::byte> blocks = blocks_of(slot);
  io_->submit(slot, {part.first * block, blocks.data(), std::ssize(blocks), part.writes});
  place.busy = true;
  ++busy_;
  ++unfinished(ticket);
}

bool SwapFile::Part::conflicts_with(const Part& other) const {
  const bool blocks = first < other.last && other.first < last;
  const bool bytes = memory < other.memory + other.bytes() && other.memory < memory + this->bytes();
  // Two requests that only read the same blocks may run at the same time.
  return (blocks && (writes || other.writes)) || (bytes && !(writes && other.writes));
}

int SwapFile::free_slot_for(const Part& part) {
  for (;;) {
    int free = -1;
    bool must_wait = false;
    for (int i = 0; i < io_->depth(); ++i) {
      const Slot& slot = slots_[static_cast<size_t>(i)];
      if (!slot.busy) free = i;
      must_wait = must_wait || (slot.busy && part.conflicts_with(slot.part));
    }
    if (free >= 0 && !must_wait) return free;
    finish_one();
  }
}

std::span<std::byte> SwapFile::blocks_of(int slot) const {
  const auto& [busy, direct, part, ticket] = slots_[static_cast<size_t>(slot)];
  return {direct ? part.memory : io_->buffer(slot),
          static_cast<size_t>((part.last - part.first) * block)};
}

void SwapFile::finish_one() {
  const auto [index, error] = io_->wait();
  Slot& slot = slots_[static_cast<size_t>(index)];
  slot.busy = false;
  --busy_;
  const Part& part = slot.part;
  if (error != 0) io_->fail(part.writes ? "written" : "read", error);
  if (!part.writes) {
    verify_checksums(part.first, blocks_of(index));
    if (!slot.direct)
      std::memcpy(part.memory, io_->buffer(index) + (part.begin - part.first * block),
                  static_cast<size_t>(part.bytes()));
  }
  finish_request(slot.ticket);
}

int& SwapFile::unfinished(Ticket ticket) {
  Queue& queue = queue_of(ticket);
  return queue.unfinished[static_cast<size_t>(ticket / 2 - queue.done - 1)];
}

void SwapFile::finish_request(Ticket ticket) {
  Queue& queue = queue_of(ticket);
  --unfinished(ticket);
  int64_t done = queue.done;
  for (; !queue.unfinished.empty() && queue.unfinished.front() == 0; queue.unfinished.pop_front())
    ++done;
  if (done == queue.done) return;
  record(2 * done + ticket % 2);
  {
    const std::lock_guard lock(mutex_);
    queue.done = done;
  }
  changed_.notify_all();
}

// Calls overlap in time, so each span begins where the previous one ended.
void SwapFile::record(Ticket done) {
  std::erase_if(traced_, [&](const Traced& call) {
    if (is_ahead(call.ticket) != is_ahead(done) || call.ticket > done) return false;
    const Job& job = call.job;
    Trace& trace = *job.span.trace;
    const int64_t end_ns = trace.now_ns();
    trace.span({.rank = job.span.rank,
                .track = "disk",
                .kind = Trace::Kind::copy,
                .name = (job.writes ? "write " : "read ") + job.span.name,
                .begin_ns = std::min(end_ns, std::max(call.begin_ns, last_end_ns_)),
                .end_ns = end_ns,
                .arguments = {{"bytes", job.bytes}}});
    last_end_ns_ = end_ns;
    return true;
  });
}

// Waits for the requests in progress, because they use the callers' memory.
void SwapFile::give_up() noexcept {
  try {
    for (; busy_ > 0; --busy_) io_->wait();
  } catch (...) {
    busy_ = 0;  // no request is in progress any more
  }
  for (Slot& slot : slots_) slot.busy = false;
  for (Queue& queue : queues_) queue.unfinished.clear();
  traced_.clear();
}

void SwapFile::verify_checksums(int64_t first, std::span<const std::byte> bytes) const {
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block)) {
    const size_t index = static_cast<size_t>(first) + at / static_cast<size_t>(block);
    if (checksums_[index] != 0 && checksums_[index] != checksum_of(bytes.data() + at))
      raise<FileError>(
          "nvme: {}: the block at byte {} is not what was written there; expected a disk that "
          "returns what was written; try another (--nvme-path), and resume from a checkpoint",
          directory_, static_cast<int64_t>(index) * block);
  }
}

void SwapFile::store_checksums(int64_t first, std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(block))
    checksums_[static_cast<size_t>(first) + at / static_cast<size_t>(block)] =
        checksum_of(bytes.data() + at);
}

}  // namespace zg::cpu
