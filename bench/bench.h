#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"

/// Measures a function, for example your own kernel, and compares it with the limits of the
/// machine. The table and the JSON are those of `zerograd bench kernels`. Link zerograd::bench.
///
///     const Device device = Device::cpu();
///     bench::Report report(device);  // measures the limits of the device: some seconds
///     report.add({.name = "scale", .shape = "1048576", .flops = n, .read = 4 * n,
///                 .written = 4 * n},
///                [&] { scale(x, y); });
///     std::fputs(bench::table({report}).c_str(), stdout);
///     bench::write_json("mine.json", {report});  // zerograd bench roofline draws it
///
/// Times are in seconds, sizes in bytes, work in floating-point operations (FLOP).
namespace zg::bench {

/// The highest measured rates per second of all threads of a device. "Percent of limit" refers to
/// these numbers.
struct Limits {
  double matmul_f32 = 0.0, matmul_bf16 = 0.0;  ///< FLOP (kernels/matmul/peak.h); 0: none
  double memory = 0.0;  ///< bytes of y += x; on an accelerator bytes of a copy
  double update = 0.0;  ///< bytes of y += 1, read and written; on an accelerator equal to `memory`
  double read = 0.0;    ///< bytes that are only read; on an accelerator equal to `memory`
};

/// Duration of the measurement.
struct Effort {
  int limit_rounds = 3;  ///< rounds that measure the limits of a CPU; the best counts
  int warm_up = 10;  ///< runs before the first sample; fewer if they take longer than seconds / 4
  int fewest = 7;    ///< samples of a slow run
  int samples = 50;  ///< samples of a fast run, and the maximum for any run
  /// Time for the samples of a row. After this time a row ends as soon as it has `fewest` samples.
  double seconds = 1.0;
  /// A sample repeats the run for at least this time and takes the mean. Absent: 2e-4, and 2e-3 on
  /// an accelerator, where each sample ends with a wait for the device.
  std::optional<double> sample_seconds = {};
  /// On a CPU: other memory displaces the operands from the caches before each sample, which is one
  /// run. The row's name gets ", cold", and the limits are those of memory that no cache holds.
  bool cold = false;
};

/// The work of one run; the first columns of its row.
struct Work {
  std::string name;   ///< "matmul NT"; one line without '|', as in shape
  std::string shape;  ///< "1024x768x768", any text
  DType dtype = DType::f32;
  double flops = 0.0;    ///< exp, tanh and similar functions count as one
  double read = 0.0;     ///< bytes read from memory if nothing is in a cache: each operand once
  double written = 0.0;  ///< bytes written to memory

  double bytes() const { return read + written; }
};

/// The limit that bounds a run: the one that needs the longest time for its work. On a CPU, unless
/// the limits were given, it is measured between the row's samples; of memory with as many bytes.
/// Memory does not bound work on up to 1 MiB, which stays in a core's cache.
struct Bound {
  const char* name = "";  ///< "matmul peak", "memory" (the better of memory and update) or "read"
  double seconds = 0.0;   ///< time of one run at that limit; 0: the device has no such kernel
};

/// One measured run.
struct ZG_API Row {
  Work work;
  Device::Type type = Device::Type::cpu;
  int threads = 1;              ///< CPU threads; 1 on an accelerator
  std::vector<double> seconds;  ///< mean time of one run in each sample, sorted
  Bound bound;
  std::string unmeasured;  ///< reason why there are no seconds
  double others = 0.0;     ///< share of the cores' time that other programs used meanwhile

  double quantile(double q) const;  ///< quantile of `seconds`, nearest sample; q = 0.5: the median
  /// 100 x the bound's seconds / quantile(q). Absent if one of them is, and if other programs were
  /// busy (`others` above 0.1), because the limit was not measured beside them.
  std::optional<double> percent_of_limit(double q) const;
  /// "L2": the processor's cache that holds the operands from run to run. Empty unless the median
  /// exceeds a memory limit by more than the noise (5 %).
  std::string cache() const;
};

struct ReportOptions {
  Effort effort = {};
  /// Measured before, or Limits{} for rows without percentages. Absent: the constructor measures
  /// them.
  std::optional<Limits> limits = {};
};

/// The rows of one device with its limits. For several thread counts, or several devices of one
/// kind, make one report each and pass them to table() together.
class ZG_API Report {
 public:
  /// Measuring takes some seconds and 512 MiB; on an accelerator up to 4 GiB of its memory. Throws
  /// Unsupported on meta devices and on a driver that emulates an accelerator, because its times
  /// are not those of an accelerator. Throws ConfigError for an invalid effort or invalid limits.
  explicit Report(const Device& device, const ReportOptions& options = {});

  /// Calls `run` repeatedly, at least effort.fewest times after the warm-up. `run` computes on this
  /// device. On an accelerator it queues its work on device().compute(), and each sample waits for
  /// the end of that work. Throws the exceptions of `run` without adding a row. Throws ConfigError
  /// for a work without a name, or with only zeros.
  Row add(const Work& work, const std::function<void()>& run);
  /// Adds a row with run times in seconds that were measured elsewhere, in any order.
  Row add(const Work& work, std::vector<double> seconds);
  /// A row of the table that gives a reason instead of figures. The JSON omits it.
  Row add_unmeasured(const Work& work, const std::string& why);

  const Device& device() const { return device_; }
  const Limits& limits() const { return limits_; }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  Row row_of(const Work& work) const;

  Device device_;
  Effort effort_;
  bool beside_;  // a row's limit is measured again between its samples
  Limits limits_;
  std::vector<Row> rows_;
};

/// The Markdown table that `zerograd bench kernels` prints: the limits of every report, then the
/// rows of every report. Throws ConfigError unless all are of one kind of device.
ZG_API std::string table(const std::vector<Report>& reports);
/// The JSON that `zerograd bench kernels --json` writes. Throws ConfigError as for table().
ZG_API std::string json(const std::vector<Report>& reports);
/// The rows of json() as comma-separated values (RFC 4180), each with the state of the machine. The
/// samples are in one cell.
ZG_API std::string csv(const std::vector<Report>& reports);
/// Write json() and csv() to a file. Throw FileError when that fails.
ZG_API void write_json(const std::string& path, const std::vector<Report>& reports);
ZG_API void write_csv(const std::string& path, const std::vector<Report>& reports);

/// The rows of a dtype and number of threads below the limits: rate over operations for a byte. A
/// label that would lie on another one is left out; each point has a title.
struct Drawing {
  std::string dtype;
  int threads;
  std::string svg;
};
/// Draws a file that write_json() wrote. Throws FileError for another file, ConfigError if it has
/// no limits, or no row with operations and bytes.
ZG_API std::vector<Drawing> rooflines(const std::string& path);

// Two versions of a kernel.

/// Samples, in seconds, of two versions that were measured one after the other.
struct Round {
  std::vector<double> before, after;
};

enum class Verdict : uint8_t { noise, faster, slower };
ZG_API const char* name_of(Verdict verdict);  ///< "within noise", "faster", "slower"

struct Change {
  double ratio = 1.0;            ///< after / before: the median over the rounds, of medians
  double low = 1.0, high = 1.0;  ///< 99.9 % of repeated measurements lie between these
  Verdict verdict = Verdict::noise;
};
/// The change of a kernel's time. The interval comes from 4000 draws (bootstrap): of rounds, or of
/// the samples if there is one round. A version is slower or faster if the whole interval differs
/// from 1 by more than `least`. One process may place memory or threads better than the next: so
/// measure each round in new processes, or choose a `least` of 0.05. Throws ConfigError without
/// samples.
ZG_API Change change_of(const std::vector<Round>& rounds, double least);

/// Two files that write_json() wrote.
struct RecordPair {
  std::string before, after;
};
struct ComparedRow {
  std::string name;  ///< first cells of the table: case, shape, dtype and threads
  std::vector<Round> rounds;
  Change change;
};
/// The rows that two records have in common; each pair of records is a round. Throws FileError for
/// a file that is not a record, and ConfigError if the records have no row in common.
ZG_API std::vector<ComparedRow> compare(const std::vector<RecordPair>& records, double least);
/// Lines about rows that only one of the records has, and about records of different machines.
/// Empty: there are none.
ZG_API std::string not_compared(const RecordPair& records);
/// The Markdown table that `zerograd bench compare` prints.
ZG_API std::string table_of_changes(const std::vector<ComparedRow>& rows);

// Why a kernel misses its limit.

/// Conditions of a run on a CPU. A kernel without a cause of lost time has the values of this
/// struct; explain() changes one at a time.
struct Conditions {
  int threads = 1;
  bool aligned = true;     ///< operands, and their rows, begin at multiples of 64 bytes
  bool huge_pages = true;  ///< the operands' memory has pages of 2 MiB
  bool apart = true;       ///< no two threads write to one cache line
  bool whole = true;       ///< extents are multiples of a vector, so that no tail remains
  bool warm = true;        ///< caches keep operands from run to run; explain() sees to it
};
/// A run with operands of its own.
struct Trial {
  Work work;
  std::function<void()> run;
};
/// Makes a run under given conditions; nullopt for conditions that the kernel cannot have.
using Trials = std::function<std::optional<Trial>(const Conditions&)>;

enum class Cause : uint8_t { misalignment, small_pages, shared_lines, tail, cold_caches, threads };
ZG_API const char* name_of(Cause cause);  ///< "small pages"

/// The change of the time for the same work under one other condition.
struct Influence {
  Cause cause = Cause::threads;
  bool is_removed = false;  ///< compared without the cause; false: with it, if the kernel has none
  std::vector<Round> rounds = {};  ///< before: the kernel as it is
  Change change = {};
  /// The time that it costs, divided by the time above the limit; 0 if it costs none. Shares of
  /// causes that act together may add up to more or less than 1.
  double share = 0.0;
};
/// Computes changes and shares from the rounds, and sorts by share, largest first. `time_of_limit`:
/// the limit's part of the kernel's time. Lines that threads share count once, not under threads.
ZG_API std::vector<Influence> ranked(std::vector<Influence> influences, double time_of_limit);

struct Explanation {
  Row row;  ///< the kernel as it is; a sample is the fastest of a round
  std::vector<Influence> influences;
};
/// Runs a kernel as it is and with each condition changed, in turns. Threads are compared by their
/// multiples of the limit of as many threads. Throws ConfigError if there is no trial `as_is`.
ZG_API Explanation explain(const Conditions& as_is, const Trials& make,
                           const ReportOptions& options = {});
/// The Markdown table that `zerograd bench kernels --explain` prints.
ZG_API std::string table_of(const Explanation& explanation);
/// A row for each kernel and cause: the row of json() without samples, "cause", "changed"
/// ("without" the cause or "with" it), the table's columns, "share"; null beside other programs.
ZG_API std::string json_of(const std::vector<Explanation>& explanations);
ZG_API std::string csv_of(const std::vector<Explanation>& explanations);

}  // namespace zg::bench
