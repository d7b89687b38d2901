#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/launches.h"
#include "zerograd/runtime/memory_rows.h"
#include "zerograd/runtime/storage/tensorboard.h"
#include "zerograd/zero/step_record.h"
#include "zerograd/zero/trainer.h"

namespace zg::zero {

struct FinalRecord {
  int64_t steps, skipped;
  std::string param_hash;
  std::optional<double> train_score, test_score;  ///< fraction from 0 to 1; absent for texts
  WireCounts wire;                                ///< collectives and bytes of rank 0
  int64_t reduction_groups = 0;                   ///< on which the hash depends; 0: without groups
  Bits bits = Bits::portable;                     ///< on which it depends, too
};

/// Writes JSON lines: one per step as it ends, then a final one. Numbers are printed with %.17g,
/// which restores the same bits. NaN and infinities are strings, because JSON has no numbers for
/// them.
class ZG_API MetricsFile {
 public:
  /// A resumed run appends to the file; lines about steps that the run repeats are removed. Any
  /// other run begins with an empty file. Throws FileError.
  MetricsFile(const std::string& path, bool resumed, int64_t first_step);
  ~MetricsFile();
  void write(const StepRecord& record);
  void write(const FinalRecord& record);

 private:
  std::unique_ptr<class LineFile> file_;
};

/// Writes the same numbers to event files for TensorBoard. Tags are Megatron-DeepSpeed's: "TAG" by
/// steps and "TAG vs samples" by the samples consumed.
class ZG_API MetricsBoard {
 public:
  explicit MetricsBoard(const std::string& directory) : writer_(directory) {}  ///< throws FileError

  struct Progress {
    int64_t steps, samples;
  };
  void write(const StepRecord& record, const Progress& after);
  struct Validation {
    double loss;
  };
  void write(const Validation& validation, const Progress& after);
  const std::string& path() const { return writer_.path(); }

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write(const Scalars& scalars, const Progress& after);

  TensorBoardWriter writer_;
};

/// For TrainerHooks::observe: records a device's memory at six points of each step. With several
/// micro-batches the points up to forward are those of the first micro-batch, the others those of
/// the last one. Peaks between them are included.
ZG_API void note_memory(MemoryRows& rows, TrainerMoment moment, const MicroBatch& batch);

/// For TrainerHooks::observe: the launches of one step, of a run or of a plan. The device must have
/// been made with DeviceOptions::count_launches; ConfigError otherwise.
class ZG_API StepLaunchNotes {
 public:
  /// `step`: the step to count, from 0.
  StepLaunchNotes(const Device& device, int64_t step);
  void note(TrainerMoment moment, const MicroBatch& batch);
  /// Absent until the step is done. Work between step_begins and the last micro-batch that is no
  /// micro-batch's is in neither part.
  const std::optional<StepLaunches>& counted() const { return counted_; }

 private:
  const Device device_;
  const int64_t step_;
  LaunchCounts before_;  // at the last moment
  StepLaunches now_;
  std::optional<StepLaunches> counted_;
};

}  // namespace zg::zero
