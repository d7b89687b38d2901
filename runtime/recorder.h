#pragma once

#include <map>
#include <optional>
#include <string>

#include "zerograd/runtime/device_state.h"
#include "zerograd/runtime/plan.h"

namespace zg {

int64_t received_bytes(const WireCounts& wire);  ///< the sum over all collectives

/// Records allocations and collectives of one rank in program order. It keeps them as events of a
/// plan, or compares them with those of a plan. Used by the rank's own thread only.
class Recorder final : public DeviceObserver {
 public:
  enum class Mode : uint8_t { keep, compare, ignore };

  explicit Recorder(int rank, const PlanOptions& limits);  ///< keeps the events of a plan
  /// Compares with a plan; ignores all events if the plan is null or lacks this rank.
  Recorder(int rank, const Plan* expected);

  void note_allocation(int64_t bytes, Space space, Purpose purpose, const std::string& phase,
                       const std::string& name) override;
  void note_collective(Collective collective, int64_t bytes, const std::string& name,
                       const std::string& group);
  /// Records a refused allocation in a plan. Does nothing in a run, which throws the error itself.
  void note_refusal(RefusedAllocation refused) override {
    if (mode_ == Mode::keep) refused_ = std::move(refused);
  }
  void forget_refusal() { refused_.reset(); }  ///< the program continued without the memory
  /// Counts a read of tensor values. In a plan throws PlanError after PlanOptions::max_reads reads.
  void note_read() override;
  /// Adds the byte counts of a communicator that is destroyed.
  void note_wire(const WireCounts& wire);
  void note_step() override;  ///< may throw PlanEnd or PlanError

  /// Throws PlanError if the plan has more events, or if its report differs from `measured`.
  void finish(const RankReport& measured) const;

  RankReport report(const Device& device) const;
  RankEvents take_events() { return std::move(own_); }
  const std::optional<RefusedAllocation>& refused() const { return refused_; }

 private:
  void note(PlannedEvent event, const std::string& name, const std::string& phase);
  void compare(const PlannedEvent& event, const std::string& name, const std::string& phase);
  int32_t index_of(const std::string& name);
  std::string text(const PlannedEvent& event, const std::string& name,
                   const std::string& phase) const;

  const int rank_;
  const Mode mode_;
  const int64_t last_step_ = 0, max_steps_ = 0, max_reads_ = 0;
  const RankEvents* expected_ = nullptr;
  const RankReport* expected_report_ = nullptr;
  const bool expected_is_complete_ = false;
  size_t next_ = 0;  // index of the next expected event
  RankEvents own_;
  std::map<std::string, int32_t> names_;
  int64_t steps_ = 0;
  WireCounts wire_{};
  std::optional<RefusedAllocation> refused_;
};

/// Thrown to end a planned rank after PlanOptions::steps. Not derived from Error, because programs
/// catch Errors.
struct PlanEnd {};

/// Text files that a program writes and later reads in the same plan. They exist in memory only.
/// Paths are compared as text after std::filesystem::path::lexically_normal().
ZG_API void plan_file(const Device& device, const std::string& path, const std::string& text);
ZG_API std::map<std::string, std::string> planned_files(const Device& device);

/// Wraps a communicator so that a recorder sees its collectives and groups.
std::unique_ptr<Communicator> recorded(Communicator& ranks, Recorder& recorder);

}  // namespace zg
