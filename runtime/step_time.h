#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "zerograd/runtime/api.h"
#include "zerograd/runtime/launches.h"

// The time of a training step, predicted from its counted launches and the rates of a machine: a
// roofline (Williams, Waterman, Patterson 2009, doi:10.1145/1498765.1498785) for each kernel.
//
//     const Peaks peaks = Peaks::read("bench/peaks/h100-sxm.json");
//     const StepTime time = predict(launches, peaks, {.tokens = 16 * 1024});
//     time.seconds; time.tokens_per_second;
namespace zg {

/// A rate or a share that may depend on the size of a launch. Between two points it is linear in
/// the logarithm of the size. Below the first point and above the last it is constant.
struct ZG_API Curve {
  std::vector<std::pair<double, double>> points;  ///< (size, value), sizes rise; empty: unknown
  explicit operator bool() const { return !points.empty(); }
  double at(double size) const;
  bool operator==(const Curve&) const = default;
};

/// The share of a peak that kernels reach. Absent fields fit every row of launches.
struct Efficiency {
  std::string kind, op, kernel, dtype;  ///< names of LaunchRow's fields; empty: any
  Curve bandwidth;                      ///< share by the bytes of a launch
  Curve operations;                     ///< share by the operations of a launch
  std::string source;                   ///< where the shares are from
};

/// The rates of a machine. bench/peaks has files for some GPUs, and `zerograd info --measure
/// --peaks FILE` measures a CPU's.
struct ZG_API Peaks {
  struct Source {
    std::string title, url;
  };
  std::string name;
  std::vector<Source> sources;
  int64_t multiprocessors = 0;               ///< 0: a CPU. No time depends on it
  Curve bandwidth;                           ///< bytes/s by the bytes of a launch
  std::map<std::string, double> operations;  ///< 1/s by the name of a dtype
  double launch_seconds = 0.0;               ///< the least time of a launch
  double call_seconds = 0.0;                 ///< added to the time of each launch
  double wait_seconds = 0.0;                 ///< time for which a host wait leaves the device idle
  double collective_seconds = 0.0;           ///< latency of a collective
  double collective_bandwidth = 0.0;         ///< bytes/s that a rank receives; 0: unknown
  /// For a row of launches, the last fitting entry with `bandwidth` and the last one with
  /// `operations` are used.
  std::vector<Efficiency> efficiencies;

  /// Reads a file of the schema zerograd.peaks/1 (bench/peaks/README.md). Throws FileError, with
  /// the file, the key, what was expected, what was found and what to try.
  static Peaks read(const std::string& path);
  static Peaks parse(const std::string& text, const std::string& path);
  std::string json() const;  ///< the text of such a file
};

/// Properties of a step that its counted launches do not contain.
struct StepShape {
  int64_t micro_batches = 1;   ///< of one rank
  int64_t tokens = 0;          ///< of the step, of all ranks
  int64_t collectives = 0;     ///< calls of one rank in the step
  int64_t received_bytes = 0;  ///< by one rank in the step
};

struct StepTime {
  /// The prediction for one row of launches.
  struct Row {
    LaunchRow launches;
    double seconds = 0.0;    ///< of all its launches
    const char* bound = "";  ///< "bandwidth", "operations" or "launch": the longest of the three
  };
  std::string peaks;  ///< Peaks::name
  StepShape shape;
  std::vector<Row> per_micro_batch, per_step;
  double micro_batch_seconds = 0.0;  ///< of its launches and host waits
  double once_seconds = 0.0;         ///< of the launches and host waits of per_step
  double collective_seconds = 0.0;   ///< of the step's collectives, as if no kernel ran meanwhile
  double seconds = 0.0;              ///< of all micro-batches, once_seconds and collective_seconds
  double tokens_per_second = 0.0;
  /// Seconds of the launches of the whole step, without host waits and collectives.
  std::map<KernelClass, double> by_kind;
};

/// Throws ConfigError if the peaks lack a rate that the step needs.
ZG_API StepTime predict(const StepLaunches& launches, const Peaks& peaks, const StepShape& shape);
/// StepLaunches::json() with "seconds" and "bound" in each row of "kernels" and, at the end,
/// "predicted":{"peaks":...,"micro_batches":...,"tokens":...,"collectives":...,
/// "received_bytes":...,"micro_batch_seconds":...,"once_seconds":...,"collective_seconds":...,
/// "step_seconds":...,"tokens_per_second":...,"class_seconds":{"memory":...,...}}.
ZG_API std::string to_json(const StepLaunches& launches, const StepTime& time);

}  // namespace zg
