#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/runtime/tensor.h"

namespace zg {

/// Collects spans and counters and writes them as Chrome trace JSON, which Perfetto opens. Each
/// rank is shown as a process with counters of its memory and with these tracks: "compute" (phases,
/// units, ops, kernels and waits of the rank's own thread), "communication" (collectives, one track
/// per group), "copies" (between device and host) and "disk" (Space::file). Ranks that are threads
/// share one trace. Ranks that are processes have a trace each; on one machine their times come
/// from the same clock.
///
///     const auto trace = std::make_shared<Trace>();
///     device.set_trace(trace, rank);   // on each rank, before the first step to trace
///     ...
///     device.set_trace(nullptr);       // on each rank, after the last one
///     trace->write("steps.json");      // once
///
/// On an accelerator the host waits for every kernel while a trace is recorded, so that each span
/// ends with its work. So a trace does not show how far the host normally queues work ahead of the
/// device. Without a trace nothing is measured and nothing is slower.
class ZG_API Trace : public std::enable_shared_from_this<Trace> {
 public:
  Trace();
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Category of a span.
  enum class Kind : uint8_t {
    phase,       ///< "step", "forward", "backward", "optimizer"
    unit,        ///< a tape's use of a unit; in backward: from its first to its last gradient
    op,          ///< one op's backward
    kernel,      ///< its arguments list the operands
    collective,  ///< its arguments have the bytes that the rank received from other ranks
    wait,        ///< the track's thread or queue waits for other work
    copy         ///< transfer of bytes between spaces
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

    const Value* find(std::string_view key) const;  ///< null: no such argument
  };

  int64_t now_ns() const;  ///< nanoseconds since construction
  void span(Span span);    ///< from any thread
  /// Adds a point to the counter "memory" (bytes by purpose) of a rank, unless nothing has changed.
  void memory(int rank, int64_t at_ns, const BytesByPurpose& live);

  /// A kernel or a collective that has ended, and the tensors that it has written (of all_gather,
  /// all_to_all and scatter each rank's piece, "from rank 2"); or a wait for collectives, without.
  struct Call {
    struct Output {
      std::string name;
      Tensor tensor;
    };
    Kind kind = Kind::kernel;
    Stream& stream;  ///< of the call; its work is done
    std::string track, name;
    std::span<const Output> outputs;
    /// The ranks that send in a collective. When the program called it, or the one it waited for.
    std::span<const int> ranks = {};
    int64_t queued_ns = 0;
  };
  /// Called after each call of a device that records in this trace, on the thread of the call. It
  /// may change the tensors. It must not throw.
  using Watch = std::function<void(const Call& call)>;
  /// Calls `watch` until the result is destroyed.
  [[nodiscard]] std::shared_ptr<const Watch> watch(Watch watch);
  bool is_watched() const;
  void note(const Call& call) const;  ///< passes the call to those that watch

  std::vector<Span> spans() const;  ///< all spans so far, in the order in which they ended
  bool is_empty() const;            ///< no span so far
  void clear();
  /// Writes a temporary file beside `path` and renames it, so after a failure an older file is
  /// unchanged. A path that is not a regular file, such as a pipe, is written directly. Throws
  /// FileError.
  void write(const std::string& path) const;

 private:
  std::unique_ptr<struct TraceState> state_;
};
ZG_API const char* name_of(Trace::Kind kind);

/// RAII: records a span from construction to scope exit. Does nothing if the stream has no trace.
/// If `track` is null, the span is on the stream's track, and its end adds a point to the memory
/// counter.
class ZG_API TraceSpan {
 public:
  TraceSpan(const Stream& stream, const char* name, Trace::Kind kind = Trace::Kind::phase);
  /// The parts of the name are joined only if a trace is recorded.
  TraceSpan(const Stream& stream, std::initializer_list<std::string_view> name, Trace::Kind kind,
            const char* track = nullptr);
  ~TraceSpan();
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

  explicit operator bool() const { return open_ != nullptr; }  ///< whether it is recorded
  /// Does nothing if the span is not recorded.
  void add(const char* key, Trace::Value value);

 private:
  std::unique_ptr<struct OpenSpan> open_;
};

}  // namespace zg
