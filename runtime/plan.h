#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/memory.h"
#include "zerograd/runtime/storage/swap.h"

// One function, planned or run. A program is a function of (communicator, device): one rank's part
// of a job. run_ranks() runs it on devices and reports what it took; plan_ranks() calls the same
// function on devices without memory and predicts that report, to the byte, in milliseconds.
//
//   void train(Communicator& ranks, const Device& device) { ... }
//
//   const Plan plan = plan_ranks(8, train);
//   std::puts(plan.table().c_str());
//   const MemoryReport run = run_ranks(8, train);
//   assert(plan.ranks == run.ranks);
//
// A plan equals the run as long as no allocation and no collective depends on a value that the
// device computed, on time, or on host state that ranks share. On a device without memory item()
// and to_host() return zeros, and are counted; data() throws. Memory of the program's own
// containers is not counted. RunOptions::expect compares a run with its plan and names the first
// difference.
namespace zg {

using Program = std::function<void(Communicator& ranks, const Device& device)>;

/// An allocation that a cap refused.
struct RefusedAllocation {
  int64_t bytes = 0;
  Space space = Space::device;
  Purpose purpose = Purpose::activation;
  std::string phase;
  std::string name;  ///< purpose of the allocation, "block.3 moments"; may be empty
  std::string message;
  bool operator==(const RefusedAllocation&) const = default;
};

/// The memory and the exchanges of one rank, as taken or as planned.
struct RankReport {
  int rank = 0;
  /// A row for each phase and space, in order of first use: the bytes by purpose when the phase's
  /// peak was reached, the peak, and the most that was reserved.
  std::vector<MemoryTracker::Row> phases;
  std::array<int64_t, space_count> peak{};      ///< by space: the most that was live
  std::array<int64_t, space_count> reserved{};  ///< by space: the most that was reserved
  WireCounts wire{};                            ///< received, over all groups of the rank
  SwapCount file_io{};                          ///< to and from Space::file
  int64_t steps = 0;                            ///< calls of count_step()
  /// In a plan: the rank ends here. A program that catches OutOfMemory and goes on has none.
  std::optional<RefusedAllocation> refused;

  bool operator==(const RankReport&) const = default;
};

/// The memory and the exchanges of a program's ranks, as taken or as planned.
struct ZG_API MemoryReport {
  int world = 1;
  Device::Traits machine;
  std::vector<RankReport> ranks;

  /// The most that was reserved, by rank and space.
  std::vector<std::array<int64_t, space_count>> peaks() const;
  /// Markdown in MiB: a line per rank, then the phases of the rank that needs the most.
  std::string table() const;
  /// One line: {"schema":"zerograd.memory/1",...}; integers in bytes, keys in a fixed order.
  std::string json() const;
  bool operator==(const MemoryReport&) const = default;
};

/// One allocation or collective of a rank, in program order.
struct PlannedEvent {
  enum class Kind : uint8_t { allocation, collective } kind;
  Space space;            ///< allocations only
  Purpose purpose;        ///< allocations only
  Collective collective;  ///< collectives only
  int64_t bytes;          ///< allocated, rounded up; for a collective: bytes of its tensor
  int64_t step;
  int32_t name;   ///< index into RankEvents::names: the purpose, for example "block.3 moments"
  int32_t phase;  ///< index into RankEvents::names: an allocation's phase, or a collective's group
  bool operator==(const PlannedEvent&) const = default;
};

struct RankEvents {
  int rank = 0;
  int64_t reads = 0;  ///< times that the program or the engine read values; each read got zeros
  std::vector<std::string> names;
  std::vector<PlannedEvent> events;
  bool operator==(const RankEvents&) const = default;
};

struct ZG_API Plan : MemoryReport {
  bool complete = true;  ///< false: PlanOptions::steps ended it before the program did
  std::vector<RankEvents> events;
  bool operator==(const Plan&) const = default;
};

struct PlanOptions {
  /// The devices as the run has them: threads (0: a rank's share of this machine's cores),
  /// instruction set, caps and the directory of Space::file.
  DeviceOptions device = {};
  Device::Type type = Device::Type::cpu;  ///< cpu, cuda or hpu; needs no such device
  std::vector<int> ranks = {};            ///< which to plan; empty: all
  int64_t steps = 0;                      ///< ends each rank after so many steps; 0: where it ends
  /// A rank that takes more is a PlanError: it waits for a value that a plan does not have.
  int64_t most_steps = 100000;
  int64_t most_reads = 10000000;
};

/// Calls the program as each rank, one after another on this thread, on devices without memory. An
/// allocation that a cap refuses ends that rank and is in its report. What the program throws comes
/// back with the rank before its message.
ZG_API Plan plan_ranks(int world, const Program& program, const PlanOptions& options = {});

/// Tells a plan or run of which this device is a part that a step is done. zero::Engine::step()
/// calls it; a program without an engine may.
ZG_API void count_step(const Device& device);

struct RunOptions {
  LocalOptions local = {};
  /// Compares every allocation and collective with the plan of its rank, in order, and at the end
  /// the report: PlanError with rank, step, what was planned and what came, at the first
  /// difference.
  const Plan* expect = nullptr;
};

/// Runs the program on `world` ranks: on threads of this process or, where mpirun started it, as
/// one of so many processes. Returns the report of all ranks, on every process.
ZG_API MemoryReport run_ranks(int world, const Program& program, const RunOptions& options = {});

}  // namespace zg
