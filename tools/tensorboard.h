#pragma once

#include <cstdint>
#include <string>

#include "tools/metrics.h"
#include "zerograd/runtime/storage/tensorboard.h"

namespace zg::tools {

/// The events of --tensorboard-dir: scalars under Megatron-DeepSpeed's tags, each by steps and, as
/// "TAG vs samples", by the samples consumed.
class TensorBoardFile {
 public:
  explicit TensorBoardFile(const std::string& directory);  ///< FileError

  /// How far the run is.
  struct Place {
    int64_t steps, samples;
  };
  void write(const StepRecord& record, const Place& place);  ///< after the step
  struct Validation {
    double loss;
  };
  void write(const Validation& validation, const Place& place);
  const std::string& path() const { return writer_.path(); }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write(const Scalars& scalars, const Place& place);

  TensorBoardWriter writer_;
};

}  // namespace zg::tools
