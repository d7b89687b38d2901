#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/memory.h"

namespace zg {

/// Collects spans and counters and writes them as Chrome trace JSON, which Perfetto opens: a
/// process per rank, a track per stream, counters for memory. Safe to share between ranks.
class ZG_API Trace {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  struct Span {
    int rank;
    const char* track;
    std::string name;
    int64_t begin_ns, end_ns;
  };

  int64_t now_ns() const;  ///< since construction
  void span(int rank, const char* track, std::string name, int64_t begin_ns, int64_t end_ns);
  /// One point of the stacked counter "memory" (bytes by purpose) of a rank.
  void memory(int rank, int64_t at_ns, const BytesByPurpose& live);
  std::vector<Span> spans() const;            ///< so far, in the order in which they ended
  void write(const std::string& path) const;  ///< throws FileError

 private:
  std::unique_ptr<struct TraceState> state_;
};

/// RAII: a span on the stream's track from construction to scope exit; free when not tracing.
class ZG_API TraceSpan {
 public:
  TraceSpan(const Stream& stream, const char* name);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  const Stream* stream_;
  const char* name_;
  int64_t begin_ns_;
};

}  // namespace zg
