#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/memory_blocks.h"
#include "zerograd/runtime/memory_rows.h"
#include "zerograd/runtime/plan.h"
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

  /// Whether the needs are within --device-memory and --host-memory; a limit of 0 means no limit.
  bool fit(const DeviceOptions& limits) const;
};

/// The memory of one rank of training, measured in a run or predicted by a plan: the report of the
/// rank at the end of the steps, whose `wire` counts the bytes received in the steps, and the
/// memory rows of the steps.
struct RankMemory : RankReport {
  zero::RestingBytes resting;
  std::optional<SwapCount> redo_io;  ///< Engine::Speculated; of each redone step beside file_io
  std::vector<MemoryRow> rows;
  /// For a run without steps: construction and loading. In a plan of such a run, `reserved` has
  /// also the needs of saving, scores and the hash.
  std::optional<MemoryRow> start;
  std::vector<AxisWire> axes;  ///< the wire by axis; empty if ranks share only the data
  ModelSlice model_slice;
  MemoryBlocks blocks = {};  ///< with --report: of rank 0, in the last reported step
  /// With --kernels: launches of the run's second step, or of its only one. Not in to_json().
  std::optional<StepLaunches> launches;
  /// In that step: tokens of all ranks, micro-batches of this rank. Not in to_json() either.
  int64_t counted_tokens = 0, counted_micro_batches = 0;
};

/// The row with the largest needs on the device: the first with the largest `reserved`, or `start`.
const MemoryRow& peak_of(const RankMemory& memory);

Needs needs_of(const RankMemory& memory);
Needs needs_of(const RankReport& report);

/// The run or plan whose memory is recorded. Equal records give the same bytes of JSON.
struct MemoryRecord {
  int64_t parameters = 0;
  int world = 1, stage = 0;
  std::string precision;
  int64_t reduction_groups = 0, steps = 0;
  Device::Traits machine;
};

/// One line, keys in a fixed order, integers in bytes; no times, paths or host names.
std::string to_json(const RankMemory& rank);
/// A record in the same form, with `ranks`: the texts that to_json() gives for each rank.
std::string to_json(const MemoryRecord& record, const std::vector<std::string>& ranks);
/// Writes one such text, or that of StepLaunches, to the file that `flag` names. Throws FileError.
void write_json(const char* flag, const std::string& path, const std::string& json);

}  // namespace zg::tools
