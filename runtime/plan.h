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

// One function, planned or run. A program is a function of (communicator, device) that does the
// work of one rank. run_ranks() runs it on real devices and reports the memory and the
// communication of each rank. plan_ranks() calls the same function on devices without memory and
// predicts this report to the byte, in milliseconds.
//
//   void train(Communicator& ranks, const Device& device) { ... }
//
//   const Plan plan = plan_ranks(8, train);
//   std::puts(plan.table().c_str());
//   const MemoryReport run = run_ranks(8, train);
//   assert(plan.ranks == run.ranks);
// A plan equals the run if no allocation and no collective depends on values that the device
// computed, on time, or on host state that ranks share. On a device without memory item() and
// to_host() return zeros and are counted as reads; data() throws. Only tensor memory is counted,
// not the program's own containers. RunOptions::expect compares a run with its plan and names the
// first difference.
namespace zg {

using Program = std::function<void(Communicator& ranks, const Device& device)>;

/// The memory and the communication of one rank, measured or planned.
struct RankReport {
  int rank = 0;
  /// A row for each phase and space, in order of first use: the bytes by purpose when the phase's
  /// peak was reached, the peak, and the most that was reserved. "forward", "backward" and "step"
  /// are phases of the trainer and the engine; "outside" is everything outside of named phases.
  std::vector<MemoryTracker::Row> phases;
  std::array<int64_t, space_count> peak{};      ///< by space: the most that was live
  std::array<int64_t, space_count> reserved{};  ///< by space: the most that was reserved
  WireCounts wire{};                            ///< received by this rank in all its groups
  SwapCount file_io{};                          ///< bytes read from and written to Space::file
  int64_t steps = 0;                            ///< calls of count_step()
  /// In a plan: the allocation at which the rank ended. Absent if the program caught OutOfMemory
  /// and continued.
  std::optional<RefusedAllocation> refused;

  bool operator==(const RankReport&) const = default;
};

/// The memory and the communication of all ranks of a program, measured or planned.
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
  int32_t name;  ///< index into RankEvents::names: the name, for example "block.3 moments"
  /// Index into RankEvents::names: for an allocation its phase, for a collective its group.
  int32_t phase;
  bool operator==(const PlannedEvent&) const = default;
};

struct RankEvents {
  int rank = 0;
  /// How often the program or the engine read values of tensors, which are zeros in a plan.
  int64_t reads = 0;
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
  /// The options of the run's devices: threads (0: a rank's share of this machine's cores),
  /// instruction set, memory limits and the folder of Space::file.
  DeviceOptions device = {};
  /// Cpu, cuda or hpu; this machine need not have such a device.
  Device::Type type = Device::Type::cpu;
  std::vector<int> ranks = {};  ///< the ranks to plan; empty: all
  /// Ends each rank after this many steps; 0: the program must end by itself.
  int64_t steps = 0;
  /// Throws PlanError for a rank with more steps or reads than these limits: its loop probably
  /// waits for a value, and in a plan all values are zero.
  int64_t max_steps = 100000;
  int64_t max_reads = 10000000;
};

/// Calls the program for each rank in turn, on this thread and on devices without memory. An
/// allocation above a limit ends the program for that rank, and RankReport::refused describes it.
/// Other exceptions of the program are rethrown with the rank at the front of the message.
ZG_API Plan plan_ranks(int world, const Program& program, const PlanOptions& options = {});

/// Tells the plan or run to which this device belongs that a step is done. zero::Engine::step()
/// calls it; a program without an engine may call it too.
ZG_API void count_step(const Device& device);

struct RunOptions {
  LocalOptions local = {};
  /// Compares every allocation and collective with the rank's plan, in order, and the whole report
  /// at the end. Throws PlanError at the first difference, with the rank, the step, the planned and
  /// the actual event.
  const Plan* expect = nullptr;
};

/// Runs the program on `world` ranks: on threads of this process or, if mpirun started it, as one
/// rank of `world` processes. Returns the report of all ranks, in every process.
ZG_API MemoryReport run_ranks(int world, const Program& program, const RunOptions& options = {});

}  // namespace zg
