#include "zerograd/runtime/step_time.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/text/format.h"

namespace zg {
namespace {

using Json = nlohmann::ordered_json;

bool fits(const Efficiency& entry, const LaunchRow& row) {
  const auto is = [](const std::string& wanted, const std::string& got) {
    return wanted.empty() || wanted == got;
  };
  return is(entry.kind, name_of(row.kind)) && is(entry.op, row.op) &&
         is(entry.kernel, row.kernel) && is(entry.dtype, name_of(row.dtype));
}

/// The curve of the last entry that fits the row and has one; null: there is none.
const Curve* curve_of(const Peaks& peaks, const LaunchRow& row, Curve Efficiency::*curve) {
  const Curve* found = nullptr;
  for (const Efficiency& entry : peaks.efficiencies)
    if (entry.*curve && fits(entry, row)) found = &(entry.*curve);
  return found;
}

[[noreturn]] void refuse(const Peaks& peaks, const LaunchRow& row, const std::string& missing) {
  raise<ConfigError>(
      "peaks: '{}' has no {} for {} ({}, {}, class {}); expected one; try a file of bench/peaks, "
      "or add the value with its source",
      peaks.name, missing, row.op, row.kernel, row.dtype, name_of(row.kind));
}

StepTime::Row time_of(const LaunchRow& row, const Peaks& peaks) {
  const auto launches = static_cast<double>(row.launches);
  const double bytes = static_cast<double>(row.bytes) / launches;
  const double operations = static_cast<double>(row.operations) / launches;
  StepTime::Row time{.launches = row, .seconds = peaks.launch_seconds, .bound = "launch"};
  const auto at_least = [&](double seconds, const char* bound) {
    if (seconds <= time.seconds) return;
    time.seconds = seconds;
    time.bound = bound;
  };
  if (bytes > 0) {
    const Curve* const bandwidth_share = curve_of(peaks, row, &Efficiency::bandwidth);
    if (!bandwidth_share) refuse(peaks, row, "share of the bandwidth");
    at_least(bytes / (peaks.bandwidth.at(bytes) * bandwidth_share->at(bytes)), "bandwidth");
  }
  const Curve* const operations_share = curve_of(peaks, row, &Efficiency::operations);
  const bool needs_operations = row.kind == KernelClass::product ||
                                row.kind == KernelClass::attention_forward ||
                                row.kind == KernelClass::attention_backward;
  if (!operations_share && needs_operations) refuse(peaks, row, "share of the operations");
  if (operations_share && operations > 0) {
    const auto peak = peaks.operations.find(name_of(row.dtype));
    if (peak == peaks.operations.end()) refuse(peaks, row, "operations per second");
    at_least(operations / (peak->second * operations_share->at(operations)), "operations");
  }
  time.seconds = launches * (time.seconds + peaks.call_seconds);
  return time;
}

/// Returns the seconds of the rows and of the host waits. Appends the rows to `rows`, and adds the
/// seconds of each row, `times` times, to `by_kind`.
double add_times(const LaunchCounts& counts, const Peaks& peaks, double times,
                 std::vector<StepTime::Row>& rows, std::map<KernelClass, double>& by_kind) {
  double seconds = static_cast<double>(counts.host_waits) * peaks.wait_seconds;
  for (const LaunchRow& row : counts.rows) {
    rows.push_back(time_of(row, peaks));
    seconds += rows.back().seconds;
    by_kind[row.kind] += times * rows.back().seconds;
  }
  return seconds;
}

void write_times(Json& counts, const std::vector<StepTime::Row>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    counts["kernels"][i]["seconds"] = rows[i].seconds;
    counts["kernels"][i]["bound"] = rows[i].bound;
  }
}

}  // namespace

double Curve::at(double size) const {
  const auto after =
      std::ranges::find_if(points, [&](const auto& point) { return point.first >= size; });
  if (after == points.begin()) return after->second;
  if (after == points.end()) return points.back().second;
  const auto before = after - 1;
  const double fraction =
      portable::log(size / before->first) / portable::log(after->first / before->first);
  return before->second + fraction * (after->second - before->second);
}

StepTime predict(const StepLaunches& launches, const Peaks& peaks, const StepShape& shape) {
  StepTime time{.peaks = peaks.name, .shape = shape};
  const auto micro_batches = static_cast<double>(shape.micro_batches);
  time.micro_batch_seconds =
      add_times(launches.per_micro_batch, peaks, micro_batches, time.per_micro_batch, time.by_kind);
  time.once_seconds = add_times(launches.per_step, peaks, 1.0, time.per_step, time.by_kind);
  if (shape.received_bytes > 0 && peaks.collective_bandwidth == 0.0)
    raise<ConfigError>(
        "peaks: '{}' has no collective_bandwidth, and a step receives {} bytes from other ranks; "
        "expected a rate in bytes/s; try one rank (--ranks 1), or add it",
        peaks.name, shape.received_bytes);
  if (shape.received_bytes > 0)
    time.collective_seconds =
        static_cast<double>(shape.collectives) * peaks.collective_seconds +
        static_cast<double>(shape.received_bytes) / peaks.collective_bandwidth;
  time.seconds =
      micro_batches * time.micro_batch_seconds + time.once_seconds + time.collective_seconds;
  if (time.seconds > 0.0) time.tokens_per_second = static_cast<double>(shape.tokens) / time.seconds;
  return time;
}

std::string to_json(const StepLaunches& launches, const StepTime& time) {
  Json record = Json::parse(launches.json());
  write_times(record["per_micro_batch"], time.per_micro_batch);
  write_times(record["per_step"], time.per_step);
  Json kinds = Json::object();
  for (const auto& [kind, seconds] : time.by_kind) kinds[name_of(kind)] = seconds;
  record["predicted"] = {{"peaks", time.peaks},
                         {"micro_batches", time.shape.micro_batches},
                         {"tokens", time.shape.tokens},
                         {"collectives", time.shape.collectives},
                         {"received_bytes", time.shape.received_bytes},
                         {"micro_batch_seconds", time.micro_batch_seconds},
                         {"once_seconds", time.once_seconds},
                         {"collective_seconds", time.collective_seconds},
                         {"step_seconds", time.seconds},
                         {"tokens_per_second", time.tokens_per_second},
                         {"class_seconds", kinds}};
  return record.dump();
}

}  // namespace zg
