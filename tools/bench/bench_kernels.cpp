#include <cstdio>
#include <sstream>

#include "bench/case.h"
#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/flags.h"
#include "tools/run/run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

using bench::Case;
using bench::Report;

/// The cases of "matmul:512,768,64".
std::vector<Case> cases_of_shape(const std::string& text) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string op = text.substr(0, colon);
  std::vector<int64_t> extents;
  std::istringstream words(text.substr(std::min(colon + 1, text.size())));
  for (std::string word; std::getline(words, word, ',');)
    extents.push_back(parse_integer("--shape " + op, word, 0, 1 << 30));
  return bench::cases_of_shape(op, extents);
}

std::vector<Case> chosen(const std::string& filter, const std::string& shape, Device::Type type) {
  const std::regex pattern = pattern_of(filter);
  std::vector<Case> cases = shape.empty() ? bench::kernel_cases(type) : cases_of_shape(shape);
  std::erase_if(cases, [&](const Case& c) { return !std::regex_search(c.text(), pattern); });
  if (cases.empty())
    raise<ConfigError>(
        "--filter: expected part of a case, shape and dtype as in 'matmul NT 1024x768x768 f32', "
        "got '{}', which is in none",
        printable(filter));
  return cases;
}

void show(const std::string& lines) {
  std::fputs(lines.c_str(), stdout);
  std::fflush(stdout);
}

/// Prints the lines of the table as they are measured: all limits before the first case.
std::vector<Report> measure(const std::vector<Device>& devices, const std::vector<Case>& cases,
                            const bench::ReportOptions& options) {
  std::vector<Report> reports;
  show(bench::table_head());
  for (const Device& device : devices)
    show(bench::lines_of_limits(reports.emplace_back(device, options)));
  for (Report& report : reports)
    for (const Case& c : cases) show(bench::line_of(bench::add(report, c)));
  show(bench::note_of(reports));
  return reports;
}

}  // namespace

std::vector<int> parse_threads(const std::string& name, const std::string& list) {
  std::vector<int> threads;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const auto count = static_cast<int>(parse_integer(name, word, 0, 4096));
    threads.push_back(count > 0 ? count : available_cores());
  }
  if (threads.empty()) raise<ConfigError>("{}: expected numbers as in 1,2, got nothing", name);
  return threads;
}

int bench_kernels(const std::vector<std::string>& arguments) {
  std::string filter, shape, json, csv;
  bool lists = false, explains = false, has_limits = true;
  bench::ReportOptions options;
  Device::Type type = Device::Type::cpu;
  std::vector<int> threads{1};
  if (available_cores() > 1) threads.push_back(available_cores());
  const CommandLine line = {
      .usage = "zerograd bench kernels [flags]",
      .summary =
          "Measures the limits of this machine, then compares every kernel with the limit that\n"
          "bounds it: multiply-adds on registers, or memory that is read or updated. The bytes\n"
          "are those of each operand, counted once. A row's limit is measured again between its\n"
          "samples, of memory with as many bytes as the row has, so that a cache which holds the\n"
          "operands counts. Takes some minutes and up to 2 GiB.\n"
          "On an accelerator the limits are the rates of a copy and of the largest product, and\n"
          "operands are larger: up to 16 GiB.",
      .groups = {{"flags",
                  {text_flag(
                       {"--filter"}, "RE", filter,
                       "only cases whose \"case shape dtype\" matches this regular expression"),
                   text_flag({"--shape"}, "OP:N,...", shape,
                             "one op at these extents, as in matmul:512,768,64"),
                   device_flag(type),
                   {{"--threads"},
                    "LIST",
                    "threads to compute with, as in 1,2; 0: every core [1 and every core]",
                    [&](const std::string& name, const std::string& value) {
                      threads = parse_threads(name, value);
                    }},
                   number_flag({"--seconds"}, options.effort.seconds, measured_seconds,
                               "time for the samples of a row"),
                   {{"--limits"},
                    "on|off",
                    "measure the limits; without them rows have no percentage [on]",
                    [&](const std::string& name, const std::string& value) {
                      has_limits = parse_switch(name, value);
                    }},
                   switch_flag({"--cold"}, options.effort.cold,
                               "displace the operands from the caches before each run"),
                   switch_flag({"--explain"}, explains,
                               "vary alignment, pages, tail, caches and threads of each case, and\n"
                               "say which of them keeps it from its limit"),
                   switch_flag({"--list"}, lists, "print the cases and measure nothing"),
                   path_flag({"--json"}, "F", json, PathUse::writes, "write results as JSON"),
                   path_flag({"--csv"}, "F", csv, PathUse::writes,
                             "write results as comma-separated values")}},
                 unsupported_flags(/*one_rank=*/true)},
      .notes = "  zerograd bench kernels --filter 'attention.*f32' --threads 1"};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  refuse_emulator(type);
  check_writable("--json", json);
  check_writable("--csv", csv);
  const std::vector<Case> cases = chosen(filter, shape, type);
  if (lists) {
    for (const Case& c : cases) print_line(stdout, "{}", c.text());
    return 0;
  }
  if (!has_limits) options.limits = bench::Limits{};
  if (explains) {
    if (type != Device::Type::cpu)
      raise<Unsupported>("--explain: expected --device cpu, got {}", name_of(type));
    std::vector<bench::Explanation> all;
    for (const Case& c : cases)
      for (const int count : threads) {
        all.push_back(bench::explain(bench::conditions_of(c, count, options.effort.cold),
                                     bench::trials_of(c), options));
        show(bench::table_of(all.back()) + "\n");
      }
    if (!json.empty()) replace_text(json, bench::json_of(all));
    if (!csv.empty()) replace_text(csv, bench::csv_of(all));
    return 0;
  }
  std::vector<Device> devices;
  if (type == Device::Type::cpu)
    for (const int count : threads)
      devices.push_back(Device::cpu(0, {.threads = count, .bits = Bits::fast}));
  else
    devices.push_back(device_of_rank(type, 0, {}));
  const std::vector<Report> reports = measure(devices, cases, options);
  if (!json.empty()) bench::write_json(json, reports);
  if (!csv.empty()) bench::write_csv(csv, reports);
  return 0;
}

}  // namespace zg::tools
