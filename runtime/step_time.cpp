#include "zerograd/runtime/step_time.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "zerograd/runtime/portable_math.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

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

// Files of the schema zerograd.peaks/1.

namespace {

using Json = nlohmann::ordered_json;
constexpr const char* peaks_schema = "zerograd.peaks/1";

void allow(const JsonNode& node, const std::vector<std::string>& keys) {
  if (!node.value.is_object()) node.fail("an object");
  for (const auto& [key, unused] : node.value.items())
    if (std::ranges::find(keys, key) == keys.end())
      node.at(key).fail("no such key, but " + join(keys, ", "));
}

std::vector<JsonNode> items(const JsonNode& node) {
  return node.value.is_null() ? std::vector<JsonNode>() : node.members();
}

std::string optional_text(const JsonNode& node) { return node.value.is_null() ? "" : node.text(); }

/// Returns a number of 1e-12 or more, because a quotient by a smaller number could overflow. With
/// `may_be_zero` 0 is also allowed, and an absent number is 0.
double number(const JsonNode& node, bool may_be_zero = false, double most = 1e30) {
  if (node.value.is_null() && may_be_zero) return 0.0;
  const double least = may_be_zero ? 0.0 : 1e-12;
  const double number = node.value.is_number() ? node.value.get<double>() : -1.0;
  if (!(number >= least && number <= most))
    node.fail(fmt::format("a number from {:g} to {:g}", least, most));
  return number;
}

/// A number, or a list of [size, value] with rising sizes.
Curve curve_of(const JsonNode& node, double most = 1e30) {
  if (node.value.is_null()) return {};
  if (node.value.is_number()) return {{{1.0, number(node, false, most)}}};
  if (!node.value.is_array()) node.fail("a number, or a list of [size, value]");
  Curve curve;
  for (const JsonNode& point : node.members()) {
    if (!point.value.is_array() || point.value.size() != 2) point.fail("[size, value]");
    const std::vector<JsonNode> pair = point.members();
    const double size = number(pair[0]);
    if (curve && size <= curve.points.back().first) pair[0].fail("a size above the one before");
    curve.points.emplace_back(size, number(pair[1], false, most));
  }
  if (!curve) node.fail("a number, or a list of [size, value]");
  return curve;
}

/// A share can be above 1: a cache is faster than the memory, and the clock of a measurement can be
/// higher than the clock for which the peak is stated.
constexpr double largest_share = 100.0;

void check_name(const JsonNode& node, const std::string& name,
                const std::vector<std::string>& known) {
  if (!name.empty() && std::ranges::find(known, name) == known.end()) node.fail(join(known, ", "));
}

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const KernelClass kind : every_kernel_class) names.push_back(name_of(kind));
  return names;
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
    names.push_back(name_of(dtype));
  return names;
}

Efficiency efficiency_of(const JsonNode& node) {
  allow(node, {"class", "op", "kernel", "dtype", "bandwidth", "operations", "source"});
  Efficiency entry{.kind = optional_text(node.at("class")),
                   .op = optional_text(node.at("op")),
                   .kernel = optional_text(node.at("kernel")),
                   .dtype = optional_text(node.at("dtype")),
                   .bandwidth = curve_of(node.at("bandwidth"), largest_share),
                   .operations = curve_of(node.at("operations"), largest_share),
                   .source = node.at("source").text()};
  check_name(node.at("class"), entry.kind, kind_names());
  check_name(node.at("dtype"), entry.dtype, dtype_names());
  if (!entry.bandwidth && !entry.operations) node.fail("bandwidth, operations or both");
  return entry;
}

Json json_of(const Curve& curve) {
  if (curve.points.size() == 1) return curve.points[0].second;
  Json points = Json::array();
  for (const auto& [size, value] : curve.points) points.push_back({size, value});
  return points;
}

}  // namespace

Peaks Peaks::parse(const std::string& text, const std::string& path) {
  const std::string advice = "; see bench/peaks/README.md";
  const auto file = parse_json_object(text, path, {.unique_keys = true, .advice = advice});
  const JsonNode root{.value = file, .name = path + ": ", .advice = advice};
  allow(root, {"schema", "name", "sources", "multiprocessors", "bandwidth", "operations",
               "launch_seconds", "call_seconds", "wait_seconds", "collective_seconds",
               "collective_bandwidth", "efficiencies"});
  if (root.at("schema").value != peaks_schema) root.at("schema").fail(peaks_schema);
  const auto seconds = [&](const char* key) { return number(root.at(key), /*may_be_zero=*/true); };
  Peaks peaks{.name = root.at("name").text(),
              .multiprocessors = static_cast<int64_t>(
                  number(root.at("multiprocessors"), /*may_be_zero=*/true, 1e6)),
              .bandwidth = curve_of(root.at("bandwidth")),
              .launch_seconds = seconds("launch_seconds"),
              .call_seconds = seconds("call_seconds"),
              .wait_seconds = seconds("wait_seconds"),
              .collective_seconds = seconds("collective_seconds"),
              .collective_bandwidth = seconds("collective_bandwidth")};
  if (!peaks.bandwidth) root.at("bandwidth").fail("bytes/s");
  for (const JsonNode& source : items(root.at("sources"))) {
    allow(source, {"title", "url"});
    peaks.sources.push_back({source.at("title").text(), optional_text(source.at("url"))});
  }
  const JsonNode operations = root.at("operations");
  if (!operations.value.is_object()) operations.fail("an object with operations/s by dtype");
  for (const auto& [dtype, unused] : operations.value.items()) {
    check_name(operations, dtype, dtype_names());
    peaks.operations[dtype] = number(operations.at(dtype));
  }
  for (const JsonNode& entry : items(root.at("efficiencies")))
    peaks.efficiencies.push_back(efficiency_of(entry));
  return peaks;
}

Peaks Peaks::read(const std::string& path) {
  constexpr int64_t most = 16 << 20;
  return parse(read_text(path, most), path);
}

std::string Peaks::json() const {
  Json file = {{"schema", peaks_schema}, {"name", name}};
  file["sources"] = Json::array();
  for (const Source& source : sources)
    file["sources"].push_back({{"title", source.title}, {"url", source.url}});
  file["multiprocessors"] = multiprocessors;
  file["bandwidth"] = json_of(bandwidth);
  file["operations"] = operations;
  file["launch_seconds"] = launch_seconds;
  file["call_seconds"] = call_seconds;
  file["wait_seconds"] = wait_seconds;
  file["collective_seconds"] = collective_seconds;
  file["collective_bandwidth"] = collective_bandwidth;
  file["efficiencies"] = Json::array();
  for (const Efficiency& entry : efficiencies) {
    Json one = Json::object();
    const auto add = [&](const char* key, const std::string& text) {
      if (!text.empty()) one[key] = text;
    };
    add("class", entry.kind);
    add("op", entry.op);
    add("kernel", entry.kernel);
    add("dtype", entry.dtype);
    if (entry.bandwidth) one["bandwidth"] = json_of(entry.bandwidth);
    if (entry.operations) one["operations"] = json_of(entry.operations);
    one["source"] = entry.source;
    file["efficiencies"].push_back(one);
  }
  return file.dump(1) + "\n";
}

}  // namespace zg
