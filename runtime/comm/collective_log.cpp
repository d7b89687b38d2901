#include "zerograd/runtime/comm/collective_log.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <thread>
#include <utility>

#include "zerograd/runtime/text/format.h"

namespace zg::cpu {
namespace {

constexpr int64_t shown = 64;  // lines printed after a failure
constexpr int64_t ahead = 16;  // at most this many of them are queued after the running one
// number of entries: more than a rank queues at one time, so the running collective is not
// overwritten
constexpr int64_t kept = 512;

// mpirun reads 4096 bytes at a time and mixes those of several ranks. So the text is written in
// chunks of whole lines, and each chunk only after mpirun has read the previous one.
void write_whole_lines(std::string_view text) {
  constexpr size_t piece_bytes = 4096;
  const auto unread = [] {
    int bytes = 0;
    return ioctl(STDERR_FILENO, FIONREAD, &bytes) == 0 && bytes > 0;
  };
  while (!text.empty()) {
    size_t length = std::min(piece_bytes, text.size());
    if (const size_t end = text.substr(0, length).rfind('\n'); end != std::string_view::npos)
      length = end + 1;
    for (int i = 0; i < 50 && unread(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (write(STDERR_FILENO, text.data(), length) < 0) return;
    text.remove_prefix(length);
  }
}

}  // namespace

CollectiveLog::CollectiveLog(int rank, int size, std::string group)
    : rank_(fmt::format("rank {}/{}", rank, size)),
      group_(std::move(group)),
      entries_(static_cast<size_t>(kept)) {}

double CollectiveLog::now_ms() const {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began_)
      .count();
}

void CollectiveLog::queued(int64_t sequence, const Call& call, int64_t step) {
  std::lock_guard lock(mutex_);
  Entry& entry = at(sequence);
  entry.sequence = sequence;
  entry.step = step;
  entry.count = call.count;
  entry.root = call.root;
  entry.op = call.op;
  entry.dtype = call.dtype;
  entry.queued_ms = now_ms();
  entry.started_ms = entry.done_ms = -1.0;
  std::snprintf(entry.name, sizeof entry.name, "%s", call.name.c_str());
  queued_ = sequence + 1;
}

void CollectiveLog::started(int64_t sequence) {
  std::lock_guard lock(mutex_);
  if (at(sequence).sequence == sequence) at(sequence).started_ms = now_ms();
}

void CollectiveLog::done(int64_t sequence) {
  std::lock_guard lock(mutex_);
  if (at(sequence).sequence == sequence) at(sequence).done_ms = now_ms();
  done_ = sequence + 1;
}

std::string CollectiveLog::line(const Entry& entry) const {
  const Call call = {.op = entry.op,
                     .dtype = entry.dtype,
                     .count = entry.count,
                     .name = entry.name,
                     .root = entry.root};
  const auto time = [](const char* what, double ms) {
    return ms >= 0.0 ? fmt::format(" {} {:.3f}", what, ms) : "";
  };
  const char* state = entry.done_ms >= 0.0      ? "done"
                      : entry.started_ms >= 0.0 ? "started"
                                                : "queued";
  return fmt::format("{} {}: {}; ms:{}{}{}\n", rank_,
                     where(call, entry.sequence, group_, entry.step), state,
                     time("queued", entry.queued_ms), time("started", entry.started_ms),
                     time("done", entry.done_ms));
}

std::string CollectiveLog::text() const {
  std::lock_guard lock(mutex_);
  const int64_t end = std::min(queued_, done_ + ahead);
  const int64_t begin = std::max<int64_t>(0, end - shown);
  std::string text =
      fmt::format("{}{} made {} collectives and finished {}", rank_,
                  group_.empty() ? "" : fmt::format(" in group '{}'", group_), queued_, done_);
  text += queued_ == 0 ? "\n" : "; the last of them, ms since it began:\n";
  for (int64_t sequence = begin; sequence < end; ++sequence) {
    const Entry& entry = entries_[static_cast<size_t>(sequence) % entries_.size()];
    if (entry.sequence == sequence) text += line(entry);
  }
  return text;
}

void CollectiveLog::dump() noexcept {
  try {
    if (dumped_.exchange(true)) return;
    std::fflush(stderr);
    write_whole_lines(text());
  } catch (...) {  // ignored: the caller reports its own error
    return;
  }
}

}  // namespace zg::cpu
