#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/memory_blocks.h"
#include "zerograd/runtime/memory_rows.h"
#include "zerograd/zero/step_record.h"

// The page of a run: one HTML file that needs no network and no other file, and can be printed.
namespace zg {
class Communicator;
class Trace;
}  // namespace zg

namespace zg::zero {

class Engine;
struct TrainedStep;

/// A value by step, reduced while it streams to at most `most` buckets of equally many steps. When
/// a step lies beyond the last bucket, the width of the buckets doubles.
class ZG_API Envelope {
 public:
  struct Bucket {
    int64_t first = 0;                       ///< its first step
    int64_t count = 0, bad = 0;              ///< finite values; NaN and infinities
    double min = 0.0, max = 0.0, sum = 0.0;  ///< of the finite values

    double mean() const { return sum / static_cast<double>(count); }
  };
  explicit Envelope(int64_t most = 512) : most_(most) {}

  void add(int64_t step, double value);  ///< `step` is not below that of the call before
  const std::vector<Bucket>& buckets() const { return buckets_; }  ///< without empty ones
  int64_t width() const { return width_; }                         ///< steps of a bucket
  Bucket all() const;                                              ///< all buckets as one

 private:
  int64_t most_;
  int64_t width_ = 1;
  std::vector<Bucket> buckets_;
};

/// The values of a run's steps.
struct ZG_API RunCurves {
  std::string name = {};
  Envelope loss, validation, rate, norm, throughput;
  Envelope skipped, restarts;  ///< 1 for such a step, else 0
  int64_t end = 0;             ///< the step after the last one

  void add(const StepRecord& record);
  /// Adds the steps before `end` of a file of MetricsFile. Throws FileError.
  void read(const std::string& metrics, int64_t end = INT64_MAX);
};

/// One setting, and its origin: "flag", "default".
struct ReportSetting {
  std::string group, name, value, source;
};

/// The memory of a rank at six points of each step, measured or planned.
struct ReportedMemory {
  std::string name;
  std::vector<MemoryRow> rows;
};

/// The bytes that a rank keeps from step to step, and the most that it reserved on its device.
struct ReportedRank {
  int rank = 0;
  std::array<BytesByPurpose, space_count> stored{};
  int64_t peak = 0;
};

/// A step by rank: when each rank computed, communicated, copied and waited.
struct ReportedTimeline {
  enum Lane : uint8_t { forward, backward, optimizer, compute, communication, copies, waits };
  static constexpr size_t lane_count = 7;
  using Spans = std::vector<std::pair<int64_t, int64_t>>;  ///< begin and end, ns; in order, apart

  struct Rank {
    std::array<Spans, lane_count> lanes = {};      ///< spans that are nearly adjacent are joined
    std::array<int64_t, lane_count> busy_ns = {};  ///< before they were joined
  };
  int64_t step = -1;  ///< -1: there is none
  int64_t end_ns = 0;
  std::vector<Rank> ranks = {};

  /// The last step that the ranks have recorded, on rank 0. Ranks of other hosts have other clocks:
  /// their time begins with the step. Collective.
  static ReportedTimeline ZG_API of(Communicator& ranks, const Trace& trace);
};

inline constexpr size_t compared_most = 4;  ///< runs beside the page's own that have own colours

/// The contents of a page. Texts may have any characters.
struct ZG_API RunPage {
  std::string title = "Training run";
  std::vector<std::pair<std::string, std::string>> facts = {};  ///< of the run and its machine
  std::vector<ReportSetting> settings = {};
  /// This run, then those that are drawn beside it; the first compared_most have own colours.
  std::vector<RunCurves> runs = {};
  std::string throughput_unit = "samples/s";
  std::vector<ReportedMemory> memory = {};  ///< of rank 0: the run's, and its plan's
  MemoryBlocks blocks = {};                 ///< of rank 0, in a step
  std::vector<ReportedRank> ranks = {};
  ReportedTimeline timeline = {};
  std::string note = {};  ///< below the curves; empty: none

  std::string html() const;  ///< also well-formed XML
};

struct ReportOptions {
  std::string path;
  std::string title = "Training run";
  std::vector<std::pair<std::string, std::string>> facts = {};
  std::vector<ReportSetting> settings = {};
  /// The tokens of a step's samples, for the throughput. Absent: samples are counted.
  std::function<int64_t(int64_t first_sample, int64_t samples)> tokens = {};
  /// A file of MetricsFile, which has the steps before a resume; empty: none.
  std::string metrics = {};
  /// Earlier runs, drawn beside this one: RunCurves::read() reads the file of each.
  std::vector<RunCurves> compared = {};
};

/// Writes the page of a run while it trains, at most once a minute, and at its end. Trainer has
/// one, by TrainerOptions::report. A program with a loop of its own makes one before its first
/// step, calls add() for each, and write() at its end. Rank 0 writes.
class ZG_API Report {
 public:
  /// Throws FileError for a file of metrics that cannot be read.
  Report(Engine& engine, ReportOptions options);

  /// After Engine::step(). `first_sample`: of the step. Returns a warning, once, if the file cannot
  /// be written: then the page is lost, not the run.
  std::optional<std::string> add(const TrainedStep& step, int64_t first_sample);
  void add_timeline(const Trace& trace);            ///< of its last step. Collective.
  void add_validation(int64_t steps, double loss);  ///< after so many steps
  RunPage& page() { return page_; }                 ///< to add memory and other contents
  void set_fact(const std::string& name, const std::string& value);
  std::optional<std::string> write();  ///< now
  bool lost() const { return is_lost_; }

 private:
  using Clock = std::chrono::steady_clock;

  Engine& engine_;
  const ReportOptions options_;
  const int64_t first_step_;  // of this process; above 0 after a resume
  RunPage page_;
  Clock::time_point written_at_ = Clock::now();
  bool is_lost_ = false;
};

}  // namespace zg::zero
