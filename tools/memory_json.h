#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/comm.h"
#include "zerograd/runtime/memory_rows.h"
#include "zerograd/runtime/swap.h"
#include "zerograd/zero/model_states.h"

namespace zg::tools {

/// What a rank received along one axis of a mesh.
struct AxisWire {
  const char* axis;
  WireCounts wire{};
};

/// Which part of the model a rank of a mesh has.
struct ModelPlace {
  int stage = 0, tensor_rank = 0;
  int64_t first_layer = 0, end_layer = 0;
  int64_t parameters = 0;  ///< elements, replicas too
};

/// The most that was reserved of each space. Bytes, host with pinned.
struct Needs {
  int64_t device = 0, host = 0, file = 0;
};

/// What one rank's memory did in a run, or will do.
struct RankMemory {
  int rank = 0;
  zero::RestingBytes rest;
  std::vector<MemoryRow> rows;
  std::optional<MemoryRow> start = {};  ///< of a run without steps: construction and loading
  Needs end = {};     ///< of such a run, by plan: what else saving, scores and the hash need
  WireCounts wire{};  ///< received in the steps of the rows
  std::vector<AxisWire> axes;  ///< the same by axis; empty of ranks that share the data only
  ModelPlace place;
  SwapCount io{};  ///< of the drive, initialisation included
};

/// The row that needs the most of a card: the first with the largest `reserved`, or `start`.
const MemoryRow& peak_of(const RankMemory& memory);

/// A run's or a plan's memory: the same bytes of JSON when they are the same.
struct MemoryRecord {
  int64_t parameters = 0;
  int world = 1, stage = 0;
  std::string precision;
  int64_t steps = 0;
  Device::Traits machine;
  std::vector<RankMemory> ranks;
};

/// One line, keys in a fixed order, integers in bytes; no times, paths or names of hosts.
std::string to_json(const MemoryRecord& record);
std::string to_json(const RankMemory& rank);
/// The record with these ranks, as text from to_json(), in place of its own.
std::string to_json(const MemoryRecord& record, const std::vector<std::string>& ranks);
/// One of them into a file. FileError.
void write_memory_json(const std::string& path, const std::string& json);

}  // namespace zg::tools
