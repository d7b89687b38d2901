#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/memory_rows.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/zero/states/model_states.h"

namespace zg::tools {

/// Bytes that a rank received along one axis of a mesh.
struct AxisWire {
  const char* axis;
  WireCounts wire{};
};

/// The part of the model that a rank of a mesh computes.
struct ModelSlice {
  int stage = 0, tensor_rank = 0;
  int64_t first_layer = 0, end_layer = 0;
  int64_t parameters = 0;  ///< elements, replicas included
};

/// The largest reserved bytes of each space; host includes pinned memory.
struct Needs {
  int64_t device = 0, host = 0, file = 0;

  /// Whether they are within --device-memory and --host-memory; a limit of 0 is none.
  bool fit(const DeviceOptions& limits) const;
};

/// The memory of one rank, measured in a run or predicted by a plan.
struct RankMemory {
  int rank = 0;
  zero::RestingBytes resting;
  std::vector<MemoryRow> rows;
  std::optional<MemoryRow> start = {};  ///< for a run without steps: construction and loading
  Needs end = {};  ///< for such a run, in a plan: additional needs of saving, scores and the hash
  WireCounts wire{};           ///< received in the steps of the rows
  std::vector<AxisWire> axes;  ///< the same by axis; empty if ranks share only the data
  ModelSlice model_slice;
  SwapCount io{};  ///< disk reads and writes, including initialisation
  /// With --kernels: of the run's second step, or its only one. It is not in to_json().
  std::optional<StepLaunches> launches = {};
  /// In that step: of all ranks, of this rank. They are not in to_json() either.
  int64_t counted_tokens = 0, counted_micro_batches = 0;
};

/// The row with the largest needs on the device: the first with the largest `reserved`, or `start`.
const MemoryRow& peak_of(const RankMemory& memory);

Needs needs_of(const RankMemory& memory);
Needs needs_of(const RankReport& report);

/// The memory of a run or of a plan. Equal records give the same bytes of JSON.
struct MemoryRecord {
  int64_t parameters = 0;
  int world = 1, stage = 0;
  std::string precision;
  int64_t steps = 0;
  Device::Traits machine;
  std::vector<RankMemory> ranks;
};

/// One line, keys in a fixed order, integers in bytes; no times, paths or host names.
std::string to_json(const MemoryRecord& record);
std::string to_json(const RankMemory& rank);
/// The record with `ranks`, texts from to_json(), in place of its own ranks.
std::string to_json(const MemoryRecord& record, const std::vector<std::string>& ranks);
/// Writes one such text, or that of StepLaunches, to the file that `flag` names. Throws FileError.
void write_json(const char* flag, const std::string& path, const std::string& json);

}  // namespace zg::tools
