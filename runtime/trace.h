#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/memory.h"

namespace zg {

/// Collects spans and counters and writes them as Chrome trace JSON, which Perfetto opens. Each
/// rank is a process with a track for what its own thread does ("compute": phases, units, ops,
/// kernels, and where it waits), one for each group's collectives ("communication"), one for copies
/// between device and host ("copies") and one for NVMe ("disk"), and counters of its memory. Ranks
/// that are threads share one trace; those that are processes have one each, with times of one
/// clock on a machine.
///
///     const auto trace = std::make_shared<Trace>();
///     device.set_trace(trace, rank);   // on each rank, before the first step to trace
///     ...
///     device.set_trace(nullptr);       // on each rank, after the last one
///     trace->write("steps.json");      // once
///
/// On an accelerator every kernel is waited for while a trace is on, so that its span ends with its
/// work: what the device would queue ahead is not seen. A device without a trace costs nothing.
class ZG_API Trace : public std::enable_shared_from_this<Trace> {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// The event's category.
  enum class Kind : uint8_t {
    phase,       ///< "step", "forward", "backward", "optimizer"
    unit,        ///< a unit's use by a tape; in backward from its gradients' begin to their end
    op,          ///< one op's backward
    kernel,      ///< with its operands
    collective,  ///< with the bytes that the rank received from its peers
    wait,        ///< nothing goes on here meanwhile
    copy         ///< bytes on their way between spaces
  };
  using Value = std::variant<int64_t, std::string>;
  struct Argument {
    const char* key;
    Value value;
  };
  /// Spans of one track nest.
  struct Span {
    int rank = 0;
    std::string track = "compute";
    Kind kind = Kind::phase;
    std::string name = {};
    int64_t begin_ns = 0, end_ns = 0;
    std::vector<Argument> arguments = {};

    const Value* find(std::string_view key) const;  ///< null where there is no such argument
  };

  int64_t now_ns() const;  ///< since construction
  void span(Span span);    ///< from any thread
  /// One point of the counter "memory" (bytes by purpose) of a rank; nothing where none changed.
  void memory(int rank, int64_t at_ns, const BytesByPurpose& live);

  std::vector<Span> spans() const;  ///< so far, in the order in which they ended
  bool is_empty() const;            ///< no span so far
  void clear();
  /// Writes a file beside `path`, then gives it that name: what fails leaves what was there. A path
  /// that is no regular file, such as a pipe, is written as it is. Throws FileError.
  void write(const std::string& path) const;

 private:
  std::unique_ptr<struct TraceState> state_;
};
ZG_API const char* name_of(Trace::Kind kind);

/// RAII: a span from construction to scope exit; free when not tracing. Without a track it is on
/// the stream's, and a point of the memory counters follows it.
class ZG_API TraceSpan {
 public:
  TraceSpan(const Stream& stream, const char* name, Trace::Kind kind = Trace::Kind::phase);
  /// The name is joined from its parts where there is a trace.
  TraceSpan(const Stream& stream, std::initializer_list<std::string_view> name, Trace::Kind kind,
            const char* track = nullptr);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  explicit operator bool() const { return open_ != nullptr; }  ///< whether it is recorded
  /// Nothing where it is not recorded.
  void add(const char* key, Trace::Value value);

 private:
  std::unique_ptr<struct OpenSpan> open_;
};

}  // namespace zg
