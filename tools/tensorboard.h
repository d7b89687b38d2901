#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/metrics.h"

namespace zg::tools {

/// A file of events that TensorBoard reads: scalars under Megatron-DeepSpeed's tags, each by steps
/// and, as "TAG vs samples", by the samples consumed. A run that goes on begins another file in the
/// same folder, which TensorBoard shows as one run with the first.
///
/// Its records are TFRecords: a length of 8 bytes, its masked CRC-32C, an Event in the encoding of
/// protocol buffers, and that one's. Each step's are written at once, so a run that is killed
/// leaves whole ones.
class TensorBoardFile {
 public:
  /// Begins DIRECTORY/events.out.tfevents.SECONDS.HOST.PID.N, and the folders it lies in.
  /// FileError.
  explicit TensorBoardFile(const std::string& directory);

  /// How far the run is.
  struct Place {
    int64_t steps, samples;
  };
  void write(const StepRecord& record, const Place& place);  ///< after the step
  struct Validation {
    double loss;
  };
  void write(const Validation& validation, const Place& place);
  const std::string& path() const { return path_; }

 private:
  struct Scalar {
    std::string tag;
    double value;
  };
  void write_scalars(const std::vector<Scalar>& scalars, const Place& place);
  void write_bytes(const std::string& bytes);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
  int64_t whole_bytes_ = 0;  // of whole records
};

/// The bytes as a TFRecord.
std::string tf_record(const std::string& bytes);

}  // namespace zg::tools
