#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/memory.h"

namespace zg {

/// The points of a training step at which memory is recorded.
enum class StepPoint : uint8_t {
  before_forward,
  after_forward,
  before_backward,
  after_backward,
  before_step,
  after_step
};
inline constexpr int cell_count = 6;
ZG_API const char* name_of(StepPoint cell);

/// The memory of one device at one point of a step. Bytes.
struct MemoryRow {
  int64_t step;
  StepPoint at;
  int64_t live;           ///< device
  int64_t max;            ///< largest `live` since the previous row
  int64_t reserved;       ///< largest reservation since the previous row
  int64_t host_max;       ///< as `reserved`, for pinned and host memory together
  int64_t file_max;       ///< as `reserved`, for the file on the disk
  std::string phase;      ///< the phase that first reached `reserved`
  BytesByPurpose at_max;  ///< live bytes when `max` was reached
  std::array<BytesByPurpose, space_count> spaces;  ///< live, by space
};

/// Records a device's memory at six points of each step. Peaks restart at each row, so a peak is
/// recorded in the first row after it. The first row includes the peak of initialisation.
/// zero::note_memory() fills the rows from a zero::Trainer.
class ZG_API MemoryRows {
 public:
  enum class Keep : uint8_t { one_step, all_steps };
  MemoryRows(const Device& device, Keep keep) : device_(device), keep_(keep) {}

  void begin_step(int64_t step);
  void note(StepPoint cell);
  /// Returns a row for this moment, with the peaks since the last row. It is not stored, and peaks
  /// do not restart.
  MemoryRow now() const;
  const std::vector<MemoryRow>& rows() const { return rows_; }
  int64_t step_peak() const;  ///< the largest reservation in this step's rows
  int64_t host_step_peak() const;

 private:
  Device device_;
  Keep keep_;
  int64_t step_ = 0;
  size_t first_ = 0;  // first row of this step
  std::vector<MemoryRow> rows_;
};

/// Markdown in MiB, a line per step. Each of the six cells has the live bytes and, if more was
/// reserved since the cell before, "(max ...)". The last column is the maximum of the step.
ZG_API std::string memory_table(const std::vector<MemoryRow>& rows);

}  // namespace zg
