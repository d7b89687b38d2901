#include "tools/memory_table.h"

#include <algorithm>

#include "runtime/memory.h"
#include "tools/text.h"

namespace zg::tools {
namespace {

// Whole MiB as in the tutorials' tables; a tenth where that would hide a small model.
std::string mib(int64_t bytes) {
  const double value = static_cast<double>(bytes) / (1 << 20);
  return text(value < 100.0 ? "%.1f" : "%.0f", value);
}

int64_t host_peak_of(const MemoryTracker& memory) {
  return memory.peak(Space::pinned) + memory.peak(Space::host);
}

}  // namespace

void MemoryTable::note_peaks() {
  peak_ = std::max(peak_, device_.memory().peak());
  host_peak_ = std::max(host_peak_, host_peak_of(device_.memory()));
}

void MemoryTable::begin_step(int64_t step) {
  step_ = step;
  peak_ = host_peak_ = 0;
  cells_.clear();
  device_.memory().reset_peaks();
}

void MemoryTable::cell() {
  MemoryTracker& memory = device_.memory();
  const int64_t live = memory.live(), peak = memory.peak();
  note_peaks();
  memory.reset_peaks();
  const std::string shown = mib(live), most = mib(peak);
  cells_.push_back(shown == most ? shown : shown + " (max " + most + ")");
}

void MemoryTable::end_step() {
  rows_ += text("\n| %lld |", static_cast<long long>(step_));
  for (const std::string& cell : cells_) rows_ += " " + cell + " |";
  rows_ += " " + mib(step_peak()) + " |";
}

std::string MemoryTable::markdown() const {
  return "| step | Before forward (M) | After forward (M) | Before backward (M) | After backward "
         "(M) "
         "| Before step (M) | After step (M) | Max memory (M) |\n"
         "| ---- | ---- | ---- | ---- | ---- | ---- | ---- | ---- |" +
         rows_;
}

int64_t MemoryTable::step_peak() const { return std::max(peak_, device_.memory().peak()); }

int64_t MemoryTable::host_step_peak() const {
  return std::max(host_peak_, host_peak_of(device_.memory()));
}

}  // namespace zg::tools
