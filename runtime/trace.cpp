#include "runtime/trace.h"

#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <vector>

#include "runtime/error.h"

namespace zg {

struct TraceState {
  struct Memory {
    int rank;
    int64_t at_ns;
    BytesByPurpose live;
  };
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  mutable std::mutex mutex;
  std::vector<Trace::Span> spans;
  std::vector<Memory> memory;
};

Trace::Trace() : state_(std::make_unique<TraceState>()) {}
Trace::~Trace() = default;

int64_t Trace::now_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() -
                                                              state_->start)
      .count();
}

void Trace::span(int rank, const char* track, std::string name, int64_t begin_ns, int64_t end_ns) {
  std::lock_guard lock(state_->mutex);
  state_->spans.push_back({rank, track, std::move(name), begin_ns, end_ns});
}

void Trace::memory(int rank, int64_t at_ns, const BytesByPurpose& live) {
  std::lock_guard lock(state_->mutex);
  state_->memory.push_back({rank, at_ns, live});
}

std::vector<Trace::Span> Trace::spans() const {
  std::lock_guard lock(state_->mutex);
  return state_->spans;
}

void Trace::write(const std::string& path) const {
  std::lock_guard lock(state_->mutex);
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (!file) throw FileError("trace: cannot write '" + path + "'; try another path");
  std::map<std::pair<int, std::string>, int> tracks;  // (rank, track) -> thread id
  std::fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", file);
  const char* separator = "";
  for (const Span& span : state_->spans) {
    const auto [track, fresh] = tracks.try_emplace({span.rank, span.track}, tracks.size() + 1);
    if (fresh) {
      std::fprintf(file,
                   "%s{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":"
                   "\"rank %d\"}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"name\":\"thread_name\","
                   "\"args\":{\"name\":\"%s\"}}",
                   separator, span.rank, span.rank, span.rank, track->second, span.track);
      separator = ",\n";
    }
    std::fprintf(file,
                 "%s{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f}",
                 separator, span.rank, track->second, span.name.c_str(),
                 static_cast<double>(span.begin_ns) * 1e-3,
                 static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
    separator = ",\n";
  }
  for (const TraceState::Memory& point : state_->memory) {
    std::fprintf(file, "%s{\"ph\":\"C\",\"pid\":%d,\"name\":\"memory\",\"ts\":%.3f,\"args\":{",
                 separator, point.rank, static_cast<double>(point.at_ns) * 1e-3);
    for (int p = 0; p < purpose_count; ++p)
      std::fprintf(file, "%s\"%s\":%lld", p ? "," : "", name_of(static_cast<Purpose>(p)),
                   static_cast<long long>(point.live[static_cast<size_t>(p)]));
    std::fputs("}}", file);
    separator = ",\n";
  }
  std::fputs("\n]}\n", file);
  if (std::fclose(file) != 0) throw FileError("trace: writing '" + path + "' failed");
}

TraceSpan::TraceSpan(const Stream& stream, const char* name)
    : stream_(stream.trace() ? &stream : nullptr), name_(name) {
  begin_ns_ = stream_ ? stream_->trace()->now_ns() : 0;
}

TraceSpan::~TraceSpan() {
  if (!stream_ || !stream_->trace()) return;
  Trace& trace = *stream_->trace();
  const Device device = stream_->device();
  const int64_t end_ns = trace.now_ns();
  trace.span(device.index(), stream_->name(), name_, begin_ns_, end_ns);
  trace.memory(device.index(), end_ns, device.memory().live_by_purpose());
}

}  // namespace zg
