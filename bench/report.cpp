#include "bench/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"

namespace zg::bench {
namespace {

constexpr const char* matmul_peak = "matmul peak";

bool is_measured(const Limits& l) {
  return l.matmul_f32 + l.matmul_bf16 + l.memory + l.update + l.read != 0.0;
}

Bound bound_of(const Work& work, const Limits& limits, bool cold) {
  constexpr double cached = 1 << 20;  // bytes that stay in a second-level cache from run to run
  if (!is_measured(limits)) return {};
  const double peak = work.dtype == DType::bf16 ? limits.matmul_bf16 : limits.matmul_f32;
  const Bound compute{matmul_peak, peak > 0.0 ? work.flops / peak : 0.0};
  const double read_s = work.read / limits.read;
  const double moved_s = work.bytes() / std::max(limits.memory, limits.update);
  const Bound memory = read_s > moved_s ? Bound{"read", read_s} : Bound{"memory", moved_s};
  const bool computes =
      compute.seconds > memory.seconds || (!cold && work.bytes() <= cached && peak > 0.0);
  return computes ? compute : memory;
}

void require(bool is_right, const std::string& what, const std::string& expected, double got) {
  if (!is_right)
    throw ConfigError("bench: " + what + ": expected " + expected + ", got " + std::to_string(got));
}

bool is_amount(double value) { return value >= 0.0 && std::isfinite(value); }

void validate(const Limits& limits) {
  if (!is_measured(limits)) return;
  const auto is_rate = [](double rate) { return rate > 0.0 && std::isfinite(rate); };
  const char* bytes = "bytes in a second, above 0";
  require(is_rate(limits.memory), "limits.memory", bytes, limits.memory);
  require(is_rate(limits.read), "limits.read", bytes, limits.read);
  require(is_amount(limits.update), "limits.update", "0 or more", limits.update);
  require(is_amount(limits.matmul_f32), "limits.matmul_f32", "0 or more", limits.matmul_f32);
  require(is_amount(limits.matmul_bf16), "limits.matmul_bf16", "0 or more", limits.matmul_bf16);
}

/// Checks text that becomes a cell of the table.
void validate_cell(const char* what, const std::string& text) {
  if (text.find_first_of("|\n\r") != std::string::npos)
    throw ConfigError(std::string("bench: ") + what + ": expected one line without '|', got '" +
                      text + "'");
}

void validate(const Work& work) {
  if (work.name.empty()) throw ConfigError("bench: work.name: expected a name, got none");
  validate_cell("work.name", work.name);
  validate_cell("work.shape", work.shape);
  require(is_amount(work.flops), work.name + ": flops", "0 or more", work.flops);
  require(is_amount(work.read), work.name + ": bytes read", "0 or more", work.read);
  require(is_amount(work.written), work.name + ": bytes written", "0 or more", work.written);
  if (work.flops + work.bytes() <= 0.0)
    throw ConfigError("bench: " + work.name +
                      ": flops, read and written are all 0; expected the work of one run");
}

/// Throws Unsupported for devices whose times do not represent an accelerator or CPU.
void refuse_emulator_and_meta(const Device& device) {
  if (device.type() == Device::Type::meta)
    throw Unsupported("bench: " + device.name() +
                      " computes nothing; expected a cpu, cuda or hpu device to measure");
  if (const std::string what = emulator_name(device.type(), device.index()); !what.empty())
    throw Unsupported(
        "bench: " + device.name() + " is the " + what +
        ": times measured on it mean nothing; expected an accelerator to measure; try "
        "Device::cpu()");
}

/// A logical device to measure limits on, so that the caller's memory accounting does not change.
Device separate(const Device& device) {
  const Device::Traits& traits = device.traits();
  return Device::parse(device.name(),
                       {.threads = traits.threads, .isa = traits.isa, .separate = true});
}

/// The limits, with those that were measured again.
Limits with_newer(Limits limits, const Limits& newer) {
  for (double Limits::*limit :
       {&Limits::matmul_f32, &Limits::matmul_bf16, &Limits::memory, &Limits::update, &Limits::read})
    if (newer.*limit > 0.0) limits.*limit = newer.*limit;
  return limits;
}

}  // namespace

double Row::quantile(double q) const { return bench::quantile(seconds, q); }

std::optional<double> Row::percent_of_limit(double q) const {
  if (bound.seconds <= 0.0 || seconds.empty() || others > share_of_busy_machine)
    return std::nullopt;
  return 100.0 * bound.seconds / quantile(q);
}

std::string Row::cache() const {
  constexpr double noise_percent = 5.0;
  const bool above = percent_of_limit(0.5).value_or(0.0) > 100.0 + noise_percent;
  return type == Device::Type::cpu && above && std::string_view(bound.name) != matmul_peak
             ? cache_of(work.bytes(), threads)
             : "";
}

Report::Report(const Device& device, const ReportOptions& options)
    : device_(device), effort_(options.effort), beside_(!options.limits) {
  validate(effort_);
  refuse_emulator_and_meta(device);
  if (effort_.cold && device.type() != Device::Type::cpu)
    throw Unsupported("bench: effort.cold: expected a cpu, got " + device.name());
  limits_ =
      options.limits ? *options.limits : measure_limits(separate(device), effort_.limit_rounds);
  validate(limits_);
}

Row Report::row_of(const Work& work) const {
  validate(work);
  const bool computes_on_threads = device_.type() == Device::Type::cpu;
  return {.work = work,
          .type = device_.type(),
          .threads = computes_on_threads ? device_.traits().threads : 1,
          .bound = bound_of(work, limits_, effort_.cold)};
}

Row Report::add(const Work& work, const std::function<void()>& run) {
  Row row = row_of(work);
  if (effort_.cold) row.work.name += ", cold";
  if (!run) throw ConfigError("bench: " + work.name + ": expected a function to run, got none");
  std::optional<LimitsBeside> beside;
  if (beside_ && device_.type() == Device::Type::cpu)
    beside.emplace(separate(device_), work, row.bound.name == std::string_view(matmul_peak),
                   effort_.cold);
  const OtherPrograms others;
  row.seconds = measure(device_, run, effort_, [&] {
    if (beside) beside->sample();
  });
  row.others = others.share();
  if (beside) row.bound = bound_of(work, with_newer(limits_, beside->limits()), effort_.cold);
  return rows_.emplace_back(std::move(row));
}

Row Report::add(const Work& work, std::vector<double> seconds) {
  Row row = row_of(work);
  if (seconds.empty()) throw ConfigError("bench: " + work.name + ": expected seconds, got none");
  for (const double value : seconds)
    require(value > 0.0 && std::isfinite(value), work.name + ": seconds", "more than 0", value);
  std::ranges::sort(seconds);
  row.seconds = std::move(seconds);
  return rows_.emplace_back(std::move(row));
}

Row Report::add_unmeasured(const Work& work, const std::string& why) {
  Row row = row_of(work);
  validate_cell("why", why);
  if (why.empty()) throw ConfigError("bench: " + work.name + ": expected a reason, got none");
  row.unmeasured = why;
  return rows_.emplace_back(std::move(row));
}

std::string fixed(double value, int digits) {
  char text[64];
  const int length = std::snprintf(text, sizeof text, "%.*f", digits, value);
  if (length < static_cast<int>(sizeof text)) return text;
  std::snprintf(text, sizeof text, "%.*e", digits, value);  // no measured number is as large
  return text;
}

namespace {

using Json = nlohmann::ordered_json;

/// A rate in billions a second.
std::string giga(double rate) { return fixed(1e-9 * rate, 1); }

struct LimitLine {
  const char* name;
  const char* dtype;
  double flops, bytes;  ///< a second; 0: an empty cell
};

bool is_measured(const Row& row) { return row.unmeasured.empty(); }

/// The rows that have figures, of every report.
std::vector<const Row*> measured_rows(const std::vector<Report>& reports) {
  std::vector<const Row*> rows;
  for (const Report& report : reports)
    for (const Row& row : report.rows())
      if (is_measured(row)) rows.push_back(&row);
  return rows;
}

void require_one_kind(const char* function, const std::vector<Report>& reports) {
  if (reports.empty())
    throw ConfigError(std::string("bench: ") + function + ": expected a report or more, got none");
  const Device& first = reports.front().device();
  for (const Report& report : reports)
    if (report.device().type() != first.type() ||
        report.device().description() != first.description())
      throw ConfigError(std::string("bench: ") + function + ": reports of " + first.name() +
                        " and " + report.device().name() +
                        "; expected one kind of device; call it once for each kind");
}

Json json_of(const Report& report) {
  const Limits& limits = report.limits();
  const bool is_cpu = report.device().type() == Device::Type::cpu;
  return {{"threads", is_cpu ? report.device().traits().threads : 1},
          {"matmul_f32", limits.matmul_f32},
          {"matmul_bf16", limits.matmul_bf16},
          {"memory", limits.memory},
          {"update", limits.update},
          {"read", limits.read}};
}

Json json_of(const Row& row) {
  const Work& work = row.work;
  const double median = row.quantile(0.5);
  const std::optional<double> percent = row.percent_of_limit(0.5);
  const std::string cache = row.cache();
  return {{"case", work.name},
          {"shape", work.shape},
          {"dtype", name_of(work.dtype)},
          {"threads", row.threads},
          {"samples", row.seconds.size()},
          {"median_s", median},
          {"p10_s", row.quantile(0.1)},
          {"p90_s", row.quantile(0.9)},
          {"p99_s", row.quantile(0.99)},
          {"best_s", row.seconds.front()},
          {"samples_s", row.seconds},
          {"others", row.others},
          {"flops", work.flops},
          {"bytes", work.bytes()},
          {"flops_per_byte", work.bytes() > 0.0 ? Json(work.flops / work.bytes()) : Json(nullptr)},
          {"flops_per_s", work.flops / median},
          {"bytes_per_s", work.bytes() / median},
          {"limit", row.bound.name},
          {"limit_s", row.bound.seconds > 0.0 ? Json(row.bound.seconds) : Json(nullptr)},
          {"percent_of_limit", percent ? Json(*percent) : Json(nullptr)},
          {"cache", cache.empty() ? Json(nullptr) : Json(cache)}};
}

}  // namespace

std::string table_head() {
  return "| case | shape | dtype | threads | median ms | p10 - p90 | GFLOP/s | GB/s | limit | "
         "% of limit | best |\n"
         "|---|---|---|---:|---:|---:|---:|---:|---|---:|---:|\n";
}

std::string lines_of_limits(const Report& report) {
  const Limits& limits = report.limits();
  if (!is_measured(limits)) return "";
  const bool is_cpu = report.device().type() == Device::Type::cpu;
  std::vector<LimitLine> lines;
  if (limits.matmul_f32 > 0.0) lines.push_back({"matmul peak", "f32", limits.matmul_f32, 0.0});
  if (limits.matmul_bf16 > 0.0) lines.push_back({"matmul peak", "bf16", limits.matmul_bf16, 0.0});
  lines.push_back({is_cpu ? "memory, y += x" : "memory, a copy", "f32", 0.0, limits.memory});
  if (is_cpu) {
    lines.push_back({"memory, y += 1", "f32", 0.0, limits.update});
    lines.push_back({"read", "f32", 0.0, limits.read});
  }
  const std::string threads = std::to_string(is_cpu ? report.device().traits().threads : 1);
  const auto cell = [](double rate) { return rate > 0.0 ? giga(rate) : std::string(); };
  std::string text;
  for (const LimitLine& line : lines)
    text += std::string("| limit: ") + line.name + " | | " + line.dtype + " | " + threads +
            " | | | " + cell(line.flops) + " | " + cell(line.bytes) + " | | | |\n";
  return text;
}

std::string line_of(const Row& row) {
  const Work& work = row.work;
  const std::string first = "| " + work.name + " | " + work.shape + " | " + name_of(work.dtype) +
                            " | " + std::to_string(row.threads) + " | ";
  if (!is_measured(row)) return first + row.unmeasured + " | | | | | | |\n";
  const auto ms = [&](double q) { return fixed(1e3 * row.quantile(q), 3); };
  const auto percent = [&](double q) {
    const std::optional<double> value = row.percent_of_limit(q);
    return value ? fixed(*value, 0) + " %" : std::string();
  };
  const bool is_busy = row.others > share_of_busy_machine;

  const double median = row.quantile(0.5);
  const std::string cache = row.cache();
  return first + ms(0.5) + " | " + ms(0.1) + " - " + ms(0.9) + " | " + giga(work.flops / median) +
         " | " + giga(work.bytes() / median) + " | " + row.bound.name + " | " +
         (is_busy ? "others: " + fixed(100.0 * row.others, 0) + " %" : percent(0.5)) +
         (cache.empty() ? "" : " (" + cache + ")") + " | " + percent(0.0) + " |\n";
}

std::string note_of(const std::vector<Report>& reports) {
  const std::vector<const Row*> rows = measured_rows(reports);
  std::string notes;
  if (!std::ranges::all_of(rows, [](const Row* row) { return row->cache().empty(); }))
    notes +=
        "\nA cache behind a percentage: it holds the operands from run to run, so that the limit "
        "of memory does not bound the row.\n";
  if (std::ranges::any_of(rows, [](const Row* row) { return row->others > share_of_busy_machine; }))
    notes +=
        "\n\"others: 43 %\": other programs used this share of the cores' time while the row was "
        "measured, so it has no percentage of a limit.\n";
  return notes;
}

std::string table(const std::vector<Report>& reports) {
  require_one_kind("table", reports);
  std::string text = table_head();
  for (const Report& report : reports) text += lines_of_limits(report);
  for (const Report& report : reports)
    for (const Row& row : report.rows()) text += line_of(row);
  return text + note_of(reports);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      return line.substr(std::min(line.size(), line.find(':') + 2));
  return "unknown";
}

nlohmann::ordered_json machine_json(Device::Type type) {
  if (type != Device::Type::cpu)
    return {{"device", device_of_rank(type, 0, {}).description()},
            {"devices", Device::count(type)}};
  return {{"isa", name_of(best_isa())}, {"cores", available_cores()}};
}

namespace {

/// When, by which build and in which state of the machine the rows were measured.
Json circumstances() {
  const std::time_t now = std::time(nullptr);
  char date[32] = "";
  std::strftime(date, sizeof date, "%FT%TZ", std::gmtime(&now));
  std::ifstream file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  std::string governor;
  double load = 0.0;
  file >> governor;
  return {{"date", date},
          {"version", version()},
          {"commit", *commit ? Json(commit) : Json(nullptr)},
          {"compiler", __VERSION__},
          {"processor", processor_name()},
          {"governor", governor.empty() ? Json(nullptr) : Json(governor)},
          {"load", getloadavg(&load, 1) == 1 ? Json(load) : Json(nullptr)}};
}

// The rows of a record, each with the parts that all have.
std::string rows_as_csv(Json record) {
  const auto line_of_cells = [](const Json& cells) {
    std::string line;
    for (const Json& cell : cells) {
      std::string text = cell.is_string() ? cell.get<std::string>()
                         : cell.is_null() ? ""
                                          : cell.dump();
      if (text.find_first_of(",\"") != std::string::npos) {
        for (size_t i = text.find('"'); i != std::string::npos; i = text.find('"', i + 2))
          text.insert(i, 1, '"');
        text = '"' + text + '"';
      }
      line += (line.empty() ? "" : ",") + text;
    }
    return line + "\n";
  };
  std::string text;
  for (Json& row : record["rows"]) {
    std::string samples;
    for (const Json& sample : row.value("samples_s", Json::array()))
      samples += (samples.empty() ? "" : " ") + sample.dump();
    if (row.contains("samples_s")) row["samples_s"] = samples;
    for (const char* part : {"measured", "machine"}) row.update(record[part]);
    Json names = Json::array();
    for (const auto& [name, value] : row.items()) names.push_back(name);
    if (text.empty()) text = line_of_cells(names);
    text += line_of_cells(row);
  }
  return text;
}

}  // namespace

std::string json(const std::vector<Report>& reports) {
  require_one_kind("json", reports);
  const Device& device = reports.front().device();
  const Json machine = device.type() == Device::Type::cpu
                           ? machine_json()
                           : Json::object({{"device", device.description()}});
  Json limits = Json::array(), rows = Json::array();
  for (const Report& report : reports) limits.push_back(json_of(report));
  for (const Row* row : measured_rows(reports)) rows.push_back(json_of(*row));
  return Json{{"schema", 1},        {"bench", "kernels"}, {"measured", circumstances()},
              {"machine", machine}, {"limits", limits},   {"rows", rows}}
      .dump(1);
}

std::string csv(const std::vector<Report>& reports) {
  return rows_as_csv(Json::parse(json(reports)));
}

std::string json_of(const std::vector<Explanation>& explanations) {
  Json rows = Json::array();
  for (const Explanation& explanation : explanations)
    for (const Influence& influence : explanation.influences) {
      const Change& change = influence.change;
      Json& row = rows.emplace_back(json_of(explanation.row));
      row.erase("samples_s");  // compare() takes no such row for a measurement
      row.update({{"cause", name_of(influence.cause)},
                  {"changed", influence.is_removed ? "without" : "with"},
                  {"time", change.ratio},
                  {"low", change.low},
                  {"high", change.high},
                  {"verdict", name_of(change.verdict)},
                  {"share", row["percent_of_limit"].is_null() ? Json() : Json(influence.share)}});
    }
  return Json{{"schema", 1},
              {"bench", "explain"},
              {"measured", circumstances()},
              {"machine", machine_json()},
              {"rows", rows}}
      .dump(1);
}

std::string csv_of(const std::vector<Explanation>& explanations) {
  return rows_as_csv(Json::parse(json_of(explanations)));
}

void write_csv(const std::string& path, const std::vector<Report>& reports) {
  replace_text(path, csv(reports));
}

void write_json(const std::string& path, const std::vector<Report>& reports) {
  replace_text(path, json(reports));
}

}  // namespace zg::bench
