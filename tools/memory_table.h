#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/device.h"

namespace zg::tools {

/// A step's memory where it is looked at: six cells, each the live MiB and, when more was live
/// since the cell before it, "(max ...)"; the last column is the step's most. Markdown.
class MemoryTable {
 public:
  explicit MemoryTable(const Device& device) : device_(device) {}
  void begin_step(int64_t step);
  void cell();      ///< notes what is live and the peak since the last one
  void end_step();  ///< adds a row of the cells
  std::string markdown() const;
  /// The most that was live since begin_step(), in bytes.
  int64_t step_peak() const;
  int64_t host_step_peak() const;

 private:
  void note_peaks();

  Device device_;
  int64_t step_ = 0, peak_ = 0, host_peak_ = 0;
  std::vector<std::string> cells_;
  std::string rows_;
};

}  // namespace zg::tools
