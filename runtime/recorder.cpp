#include "zerograd/runtime/recorder.h"

#include <algorithm>
#include <filesystem>

#include "zerograd/runtime/text/format.h"

namespace zg {

int64_t received_bytes(const WireCounts& wire) {
  int64_t bytes = 0;
  for (const WireCount& count : wire) bytes += count.bytes;
  return bytes;
}

namespace {

// The part of a plan that is about a rank; null: there is none.
template <class T, class Part>
const T* part_of(const Plan* plan, std::vector<T> Part::*parts, int rank) {
  if (!plan) return nullptr;
  const auto found = std::ranges::find(plan->*parts, rank, &T::rank);
  return found == (plan->*parts).end() ? nullptr : &*found;
}

std::string difference(const std::string& what, int64_t planned, int64_t got) {
  return fmt::format("{} {} were planned and {} taken", what, planned, got);
}

std::string first_difference(const RankReport& planned, const RankReport& measured) {
  if (planned.steps != measured.steps) return difference("of steps", planned.steps, measured.steps);
  for (size_t i = 0; i < std::min(planned.phases.size(), measured.phases.size()); ++i) {
    const MemoryTracker::Row &a = planned.phases[i], &b = measured.phases[i];
    const std::string where = fmt::format(" in phase {} ({})", b.phase, b.space);
    if (a.peak != b.peak) return difference("of bytes at the peak" + where, a.peak, b.peak);
    if (a.reserved != b.reserved)
      return difference("of bytes reserved" + where, a.reserved, b.reserved);
    if (a != b) return "bytes by purpose differ" + where;
  }
  for (size_t i = 0; i < planned.peak.size(); ++i) {
    const std::string where = std::string(" in space ") + name_of(static_cast<Space>(i));
    if (planned.peak[i] != measured.peak[i])
      return difference("of bytes at the peak" + where, planned.peak[i], measured.peak[i]);
    if (planned.reserved[i] != measured.reserved[i])
      return difference("of bytes reserved" + where, planned.reserved[i], measured.reserved[i]);
  }
  if (planned.file_io != measured.file_io) return "the bytes to and from files differ";
  return "the bytes on the wire differ";
}

}  // namespace

Recorder::Recorder(int rank, const PlanOptions& limits)
    : rank_(rank),
      mode_(Mode::keep),
      last_step_(limits.steps),
      max_steps_(limits.max_steps),
      max_reads_(limits.max_reads) {
  own_.rank = rank;
}

Recorder::Recorder(int rank, const Plan* expected)
    : rank_(rank),
      mode_(part_of(expected, &Plan::events, rank) ? Mode::compare : Mode::ignore),
      expected_(part_of(expected, &Plan::events, rank)),
      expected_report_(part_of(expected, &Plan::ranks, rank)),
      expected_is_complete_(expected && expected->complete) {}

void plan_file(const Device& device, const std::string& path, const std::string& text) {
  DeviceState::of(device).planned_files[std::filesystem::path(path).lexically_normal()] = text;
}
std::map<std::string, std::string> planned_files(const Device& device) {
  return DeviceState::of(device).planned_files;
}

void Recorder::note_allocation(int64_t bytes, Space space, Purpose purpose,
                               const std::string& phase, const std::string& name) {
  if (mode_ == Mode::ignore) return;
  note({.kind = PlannedEvent::Kind::allocation, .space = space, .purpose = purpose, .bytes = bytes},
       name, phase);
}

void Recorder::note_collective(Collective collective, int64_t bytes, const std::string& name,
                               const std::string& group) {
  if (mode_ == Mode::ignore) return;
  note({.kind = PlannedEvent::Kind::collective, .collective = collective, .bytes = bytes}, name,
       group);
}

void Recorder::note_read() {
  if (mode_ != Mode::keep || ++own_.reads <= max_reads_) return;
  raise<PlanError>(
      "plan: has read {} values in step {}; a plan reads zeros, so a loop that waits for a value "
      "does not end; expected a loop whose length does not depend on values; try "
      "PlanOptions::steps",
      own_.reads, steps_);
}

void Recorder::note_wire(const WireCounts& wire) { wire_ = added(wire_, wire); }

void Recorder::note_step() {
  ++steps_;
  if (mode_ != Mode::keep) return;
  if (steps_ == last_step_) throw PlanEnd();
  if (steps_ > max_steps_)
    raise<PlanError>(
        "plan: goes on after {} steps; a plan reads zeros, so a loop that waits for a value (a "
        "loss, say) does not end; expected a number of steps that does not depend on values; try "
        "PlanOptions::steps to plan the first ones, or raise max_steps",
        max_steps_);
}

namespace {

/// The message for a run that goes on after the point where a memory limit ended its plan.
std::string beyond_refusal(size_t events) {
  return fmt::format(
      "plan: the plan ends out of memory after {} events, this run does not; expected the memory "
      "limits of the plan; try a plan without memory_limit and host_limit",
      events);
}

}  // namespace

void Recorder::finish(const RankReport& measured) const {
  if (mode_ != Mode::compare || !expected_is_complete_) return;
  if (next_ == expected_->events.size()) {
    if (measured == *expected_report_) return;
    if (expected_report_->refused) throw PlanError(beyond_refusal(next_));
    raise<PlanError>(
        "plan: every allocation and collective is as planned, but {}; look for memory that is "
        "freed earlier or later, or for steps that are counted, depending on a value",
        first_difference(*expected_report_, measured));
  }
  const PlannedEvent& event = expected_->events[next_];
  raise<PlanError>(
      "plan: the program ended after event {} of {}; next was planned: {}; the program ends "
      "earlier than its plan: look for a branch on a value, on time or on state that ranks share",
      next_, expected_->events.size(),
      text(event, expected_->names[static_cast<size_t>(event.name)],
           expected_->names[static_cast<size_t>(event.phase)]));
}

RankReport Recorder::report(const Device& device) const {
  RankReport report{.rank = rank_,
                    .phases = device.memory().lifetime_rows(),
                    .wire = wire_,
                    .file_io = swapped_as_planned(device),
                    .steps = steps_,
                    .refused = refused_};
  for (size_t i = 0; i < report.peak.size(); ++i) {
    report.peak[i] = device.memory().lifetime_peak(static_cast<Space>(i));
    report.reserved[i] = device.memory().lifetime_reserved(static_cast<Space>(i));
  }
  return report;
}

void Recorder::note(PlannedEvent event, const std::string& name, const std::string& phase) {
  event.step = steps_;
  if (mode_ == Mode::compare) return compare(event, name, phase);
  event.name = index_of(name);
  event.phase = index_of(phase);
  own_.events.push_back(event);
}

void Recorder::compare(const PlannedEvent& event, const std::string& name,
                       const std::string& phase) {
  if (next_ == expected_->events.size()) {
    if (!expected_is_complete_) return;  // the plan covers only the first steps
    if (expected_report_->refused) throw PlanError(beyond_refusal(next_));
    raise<PlanError>(
        "plan: expected the end after event {}, got {}; the program goes on after its plan: look "
        "for a branch on a value, on time or on state that ranks share",
        next_, text(event, name, phase));
  }
  const PlannedEvent& planned = expected_->events[next_];
  const std::string& planned_name = expected_->names[static_cast<size_t>(planned.name)];
  const std::string& planned_phase = expected_->names[static_cast<size_t>(planned.phase)];
  // Names are indices into two different lists, so they are compared as texts.
  PlannedEvent renumbered = planned;
  renumbered.name = event.name;
  renumbered.phase = event.phase;
  if (renumbered != event || planned_name != name || planned_phase != phase)
    raise<PlanError>(
        "plan: event {} differs from the plan: expected {}, got {}; look for a branch on a value, "
        "on time or on state that ranks share",
        next_, text(planned, planned_name, planned_phase), text(event, name, phase));
  ++next_;
}

int32_t Recorder::index_of(const std::string& name) {
  const auto [found, is_new] = names_.try_emplace(name, static_cast<int32_t>(own_.names.size()));
  if (is_new) own_.names.push_back(name);
  return found->second;
}

std::string Recorder::text(const PlannedEvent& event, const std::string& name,
                           const std::string& phase) const {
  const std::string for_name = name.empty() ? "" : fmt::format(" for '{}'", name);
  const std::string in_step = fmt::format(" in step {}", event.step);
  if (event.kind == PlannedEvent::Kind::allocation)
    return fmt::format("an allocation of {} bytes of {} ({}){}{}, phase {}", event.bytes,
                       event.purpose, event.space, for_name, in_step, phase);
  return fmt::format("the collective {} of {} bytes{}{}{}", event.collective, event.bytes, for_name,
                     phase.empty() ? "" : fmt::format(" of group '{}'", phase), in_step);
}

namespace {

class RecordedCommunicator final : public Communicator {
 public:
  RecordedCommunicator(Communicator& inner, Recorder& recorder, std::string group)
      : inner_(inner), recorder_(recorder), group_(std::move(group)) {}
  RecordedCommunicator(std::unique_ptr<Communicator> inner, Recorder& recorder, std::string group)
      : owned_(std::move(inner)), inner_(*owned_), recorder_(recorder), group_(std::move(group)) {}
  ~RecordedCommunicator() override { recorder_.note_wire(inner_.wire()); }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Ticket all_gather(const Tensor& shard, const Tensor& full, const std::string& name,
                    Chunk chunk) override {
    const int64_t count = chunk.count < 0 ? shard.numel() - chunk.begin : chunk.count;
    note(Collective::all_gather, count * size_of(shard.dtype()), name);
    return inner_.all_gather(shard, full, name, chunk);
  }
  Ticket reduce_scatter(const Tensor& full, const Tensor& shard, bool fresh, Combine combine,
                        const std::string& name, Chunk chunk) override {
    const int64_t count = chunk.count < 0 ? shard.numel() - chunk.begin : chunk.count;
    note(Collective::reduce_scatter, count * size_of(full.dtype()), name);
    return inner_.reduce_scatter(full, shard, fresh, combine, name, chunk);
  }
  Ticket all_reduce(const Tensor& x, const std::string& name) override {
    note(Collective::all_reduce, x.bytes(), name);
    return inner_.all_reduce(x, name);
  }
  Ticket broadcast(const Tensor& x, int root, const std::string& name) override {
    note(Collective::broadcast, x.bytes(), name);
    return inner_.broadcast(x, root, name);
  }
  Ticket barrier(const std::string& name) override {
    note(Collective::barrier, 0, name);
    return inner_.barrier(name);
  }
  Ticket all_to_all(const Pieces& sent, const Pieces& received, const std::string& name) override {
    note(Collective::all_to_all, received.tensor.bytes(), name);
    return inner_.all_to_all(sent, received, name);
  }
  Ticket scatter(const Pieces& full, const Tensor& x, int root, const std::string& name) override {
    note(Collective::scatter, x.bytes(), name);
    return inner_.scatter(full, x, root, name);
  }
  std::unique_ptr<Communicator> group(std::span<const int> members,
                                      const std::string& name) override {
    return std::make_unique<RecordedCommunicator>(inner_.group(members, name), recorder_, name);
  }
  void wait(Ticket ticket) override { inner_.wait(ticket); }
  void wait_on_device(Ticket ticket) override { inner_.wait_on_device(ticket); }
  void abort(const std::string& cause) noexcept override { inner_.abort(cause); }
  void set_step(int64_t step) override { inner_.set_step(step); }
  WireCounts wire() const override { return inner_.wire(); }
  std::string transport() const override { return inner_.transport(); }
  void sum_by_library() override { inner_.sum_by_library(); }
  bool is_done(Ticket ticket) override { return inner_.is_done(ticket); }

 private:
  void note(Collective collective, int64_t bytes, const std::string& name) {
    recorder_.note_collective(collective, bytes, name, group_);
  }
  std::unique_ptr<Communicator> owned_;  // null: the world's communicator outlives this object
  Communicator& inner_;
  Recorder& recorder_;
  const std::string group_;
};

}  // namespace

std::unique_ptr<Communicator> recorded(Communicator& ranks, Recorder& recorder) {
  return std::make_unique<RecordedCommunicator>(ranks, recorder, "");
}

}  // namespace zg
