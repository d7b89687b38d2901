#include "zerograd/runtime/trace.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <utility>

#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

using Clock = std::chrono::steady_clock;

int64_t nanoseconds(Clock::duration duration) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

// Tracks of a rank from top to bottom; others follow.
constexpr const char* track_order[] = {"compute", "kernels", "communication", "copies", "disk"};

int place_of(const std::string& track) {
  const auto known =
      std::ranges::find_if(track_order, [&](const char* name) { return track.starts_with(name); });
  return static_cast<int>(known - std::begin(track_order));
}

std::string json_text(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) >= ' ') {
      json += c;
      continue;
    }
    json += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
  }
  return json + '"';
}

std::string json_of(const Trace::Value& value) {
  if (const std::string* text = std::get_if<std::string>(&value)) return json_text(*text);
  return std::to_string(std::get<int64_t>(value));
}

/// In microseconds, the unit of the trace format.
std::string json_of_ns(int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

/// Collects the text of a file.
class Output {
 public:
  explicit Output(const std::string& path) : unfinished_(path) {}

  void write(const std::string& text) {
    buffer_ += text;
    if (buffer_.size() >= size_t{1} << 20) flush();
  }
  void finish() {
    flush();
    unfinished_.finish();
  }

 private:
  void flush() {
    unfinished_.file().write(std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }

  UnfinishedFile unfinished_;
  std::string buffer_;
};

}  // namespace

struct TraceState {
  struct Memory {
    int rank;
    int64_t at_ns;
    BytesByPurpose live;
  };
  void write_to(Output& output) const;

  const Clock::time_point start = Clock::now();
  mutable std::mutex mutex;
  std::vector<Trace::Span> spans;
  std::vector<Memory> memory;
  std::map<int, BytesByPurpose> last;  // by rank
  std::vector<std::weak_ptr<const Trace::Watch>> watches;
};

Trace::Trace() : state_(std::make_unique<TraceState>()) {}
Trace::~Trace() = default;

const char* name_of(Trace::Kind kind) {
  constexpr const char* names[] = {"phase", "unit", "op", "kernel", "collective", "wait", "copy"};
  return names[static_cast<size_t>(kind)];
}

const Trace::Value* Trace::Span::find(std::string_view key) const {
  for (const Argument& argument : arguments)
    if (argument.key == key) return &argument.value;
  return nullptr;
}

int64_t Trace::now_ns() const { return nanoseconds(Clock::now() - state_->start); }

void Trace::span(Span span) {
  const std::lock_guard lock(state_->mutex);
  state_->spans.push_back(std::move(span));
}

void Trace::memory(int rank, int64_t at_ns, const BytesByPurpose& live) {
  const std::lock_guard lock(state_->mutex);
  const auto [last, first] = state_->last.try_emplace(rank, live);
  if (!first && last->second == live) return;
  last->second = live;
  state_->memory.push_back({rank, at_ns, live});
}

std::shared_ptr<const Trace::Watch> Trace::watch(Watch watch) {
  auto added = std::make_shared<const Watch>(std::move(watch));
  const std::lock_guard lock(state_->mutex);
  std::erase_if(state_->watches, [](const auto& old) { return old.expired(); });
  state_->watches.push_back(added);
  return added;
}

bool Trace::is_watched() const {
  const std::lock_guard lock(state_->mutex);
  return std::ranges::any_of(state_->watches, [](const auto& watch) { return !watch.expired(); });
}

void Trace::note(const Call& call) const {
  std::unique_lock lock(state_->mutex);
  const auto watches = state_->watches;
  lock.unlock();
  for (const auto& weak : watches)
    if (const auto watch = weak.lock()) (*watch)(call);
}

std::vector<Trace::Span> Trace::spans() const {
  const std::lock_guard lock(state_->mutex);
  return state_->spans;
}

bool Trace::is_empty() const {
  const std::lock_guard lock(state_->mutex);
  return state_->spans.empty();
}

void Trace::clear() {
  const std::lock_guard lock(state_->mutex);
  state_->spans.clear();
  state_->memory.clear();
  state_->last.clear();
}

// Times are those of the host's steady clock, so that files of several processes can be merged.
void TraceState::write_to(Output& output) const {
  const int64_t start_ns = nanoseconds(start.time_since_epoch());
  std::map<std::pair<int, std::string>, std::string> tracks;  // (rank, track) -> "pid", "tid"
  const char* separator = "";
  const auto event = [&](const std::string& fields) {
    output.write(separator);
    output.write("{" + fields + "}");
    separator = ",\n";
  };
  const auto describe = [&](const std::string& ids, const char* what, const std::string& args) {
    event("\"ph\":\"M\"," + ids + ",\"name\":\"" + what + "\",\"args\":{" + args + "}");
  };
  output.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  for (const Trace::Span& span : spans) {
    const std::string process = "\"pid\":" + std::to_string(span.rank);
    const auto [track, fresh] = tracks.try_emplace(
        {span.rank, span.track}, process + ",\"tid\":" + std::to_string(tracks.size() + 1));
    const std::string& ids = track->second;
    if (fresh) {
      describe(process, "process_name", fmt::format("\"name\":\"rank {}\"", span.rank));
      describe(process, "process_sort_index", "\"sort_index\":" + std::to_string(span.rank));
      describe(ids, "thread_name", "\"name\":" + json_text(span.track));
      describe(ids, "thread_sort_index", "\"sort_index\":" + std::to_string(place_of(span.track)));
    }
    std::string arguments;
    for (const Trace::Argument& argument : span.arguments)
      arguments +=
          (arguments.empty() ? "" : ",") + json_text(argument.key) + ":" + json_of(argument.value);
    event("\"ph\":\"X\"," + ids + ",\"cat\":\"" + name_of(span.kind) + "\",\"name\":" +
          json_text(span.name) + ",\"ts\":" + json_of_ns(start_ns + span.begin_ns) +
          ",\"dur\":" + json_of_ns(span.end_ns - span.begin_ns) +
          (arguments.empty() ? "" : ",\"args\":{" + arguments + "}"));
  }
  for (const Memory& point : memory) {
    std::string values;
    for (int p = 0; p < purpose_count; ++p)
      values += (p ? ",\"" : "\"") + std::string(name_of(static_cast<Purpose>(p))) +
                "\":" + std::to_string(point.live[static_cast<size_t>(p)]);
    event("\"ph\":\"C\",\"pid\":" + std::to_string(point.rank) + ",\"name\":\"memory\",\"ts\":" +
          json_of_ns(start_ns + point.at_ns) + ",\"args\":{" + values + "}");
  }
  output.write("\n]}\n");
}

void Trace::write(const std::string& path) const {
  const std::lock_guard lock(state_->mutex);
  try {
    Output output(path);
    state_->write_to(output);
    output.finish();
  } catch (const FileError& error) {
    raise<FileError>("trace: {} is not written: {}; try another path", path, error.what());
  }
}

struct OpenSpan {
  std::shared_ptr<Trace> trace;
  Device device;
  Trace::Span span;
  bool counts_memory;
};

TraceSpan::TraceSpan(const Stream& stream, const char* name, Trace::Kind kind)
    : TraceSpan(stream, std::initializer_list<std::string_view>{name}, kind) {}

TraceSpan::TraceSpan(const Stream& stream, std::initializer_list<std::string_view> name,
                     Trace::Kind kind, const char* track) {
  Trace* trace = stream.trace();
  if (!trace) return;
  const Device device = stream.device();
  open_ = std::make_unique<OpenSpan>(OpenSpan{.trace = trace->shared_from_this(),
                                              .device = device,
                                              .span = {.rank = device.trace_rank(),
                                                       .track = track ? track : stream.name(),
                                                       .kind = kind,
                                                       .name = {}},
                                              .counts_memory = track == nullptr});
  for (const std::string_view part : name) open_->span.name += part;
  open_->span.begin_ns = trace->now_ns();
}

TraceSpan::~TraceSpan() {
  if (!open_) return;
  Trace& trace = *open_->trace;
  const int rank = open_->span.rank;
  const int64_t end_ns = open_->span.end_ns = trace.now_ns();
  trace.span(std::move(open_->span));
  if (open_->counts_memory) trace.memory(rank, end_ns, open_->device.memory().live_by_purpose());
}

void TraceSpan::add(const char* key, Trace::Value value) {
  if (open_) open_->span.arguments.push_back({key, std::move(value)});
}

}  // namespace zg
