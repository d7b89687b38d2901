#include "zerograd/runtime/memory_rows.h"

#include <algorithm>

#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

// Whole MiB, as in the tables of the tutorials; with one decimal for small numbers.
std::string table_mib(int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 20);
  return fmt::format("{:.{}f}", value, value < 100.0 ? 1 : 0);
}

}  // namespace

const char* name_of(StepPoint cell) {
  constexpr const char* names[] = {"before_forward", "after_forward", "before_backward",
                                   "after_backward", "before_step",   "after_step"};
  return names[static_cast<size_t>(cell)];
}

void MemoryRows::begin_step(int64_t step) {
  step_ = step;
  if (keep_ == Keep::one_step) rows_.clear();
  first_ = rows_.size();
}

void MemoryRows::note(StepPoint cell) {
  rows_.push_back(now());
  rows_.back().at = cell;
  device_.memory().reset_peaks();
}

MemoryRow MemoryRows::now() const {
  const MemoryTracker& memory = device_.memory();
  MemoryRow row = {
      .step = step_,
      .at = StepPoint::before_forward,
      .live = memory.live(),
      .max = memory.peak(),
      .reserved = memory.peak_reserved(),
      .host_max = memory.peak_reserved(Space::pinned) + memory.peak_reserved(Space::host),
      .file_max = memory.peak_reserved(Space::file),
      .phase = memory.peak_phase(),
      .at_max = memory.live_by_purpose(),
      .spaces = {}};
  int64_t largest = row.live;
  for (const MemoryTracker::Row& phase : memory.rows())
    if (phase.space == Space::device && phase.peak > largest) {
      largest = phase.peak;
      row.at_max = phase.live;
    }
  for (size_t space = 0; space < row.spaces.size(); ++space)
    row.spaces[space] = memory.live_by_purpose(static_cast<Space>(space));
  return row;
}

int64_t MemoryRows::step_peak() const {
  int64_t largest = 0;
  for (size_t i = first_; i < rows_.size(); ++i) largest = std::max(largest, rows_[i].reserved);
  return largest;
}

int64_t MemoryRows::host_step_peak() const {
  int64_t largest = 0;
  for (size_t i = first_; i < rows_.size(); ++i) largest = std::max(largest, rows_[i].host_max);
  return largest;
}

std::string memory_table(const std::vector<MemoryRow>& rows) {
  std::string table =
      "| step | Before forward (M) | After forward (M) | Before backward (M) "
      "| After backward (M) | Before step (M) | After step (M) | Max memory (M) |\n"
      "| ---- | ---- | ---- | ---- | ---- | ---- | ---- | ---- |";
  int64_t largest = 0;
  for (const MemoryRow& row : rows) {
    if (row.at == StepPoint::before_forward) {
      table += fmt::format("\n| {} |", row.step);
      largest = 0;
    }
    largest = std::max(largest, row.reserved);
    const std::string live = table_mib(row.live), peak = table_mib(row.reserved);
    table += " " + live +
             (row.reserved > row.live && live != peak ? fmt::format(" (max {}) |", peak) : " |");
    if (row.at == StepPoint::after_step) table += fmt::format(" {} |", table_mib(largest));
  }
  return table;
}

}  // namespace zg
