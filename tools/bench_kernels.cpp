#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>

#include "bench/case.h"
#include "tools/bench.h"
#include "tools/device_flag.h"
#include "tools/flags.h"
#include "tools/later.h"
#include "tools/run.h"
#include "tools/text.h"
#include "zerograd/runtime/comm.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/file_io.h"

namespace zg::tools {
namespace {

using bench::Case;
using bench::Limits;
using Json = nlohmann::ordered_json;

struct Row {
  const Case& what;
  int threads;
  std::vector<double> seconds;
  bench::Bound bound;
  Device::Type type = Device::Type::cpu;

  /// Where the machine has the kernel that bounds it.
  std::optional<double> percent_of_limit(double q) const {
    if (bound.seconds <= 0.0) return std::nullopt;
    return 100.0 * bound.seconds / bench::quantile(seconds, q);
  }

  /// The processor's cache that keeps operands from run to run, where that takes the row above a
  /// limit of memory by more than noise; else empty.
  std::string cache() const {
    constexpr double noise_percent = 5.0;
    const bool above = percent_of_limit(0.5).value_or(0.0) > 100.0 + noise_percent;
    return type == Device::Type::cpu && above && std::string_view(bound.name) != "matmul peak"
               ? bench::cache_of(what.bytes(), threads)
               : "";
  }
};

std::vector<int> parse_threads(const std::string& name, const std::string& list) {
  std::vector<int> threads;
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    const auto count = static_cast<int>(parse_integer(name, word, 0, 4096));
    threads.push_back(count > 0 ? count : available_cores());
  }
  if (threads.empty()) throw ConfigError(name + ": expected numbers as in 1,2, got nothing");
  return threads;
}

void print_head() {
  std::printf(
      "| case | shape | dtype | threads | median ms | p10 - p90 | GFLOP/s | GB/s | limit | "
      "%% of limit | best |\n"
      "|---|---|---|---:|---:|---:|---:|---:|---|---:|---:|\n");
}

void print_limit(const char* name, const char* dtype, int threads, double flops, double bytes) {
  const auto cell = [](double rate) {
    return rate > 0.0 ? text("%.1f", 1e-9 * rate) : std::string();
  };
  std::printf("| limit: %s | | %s | %d | | | %s | %s | | | |\n", name, dtype, threads,
              cell(flops).c_str(), cell(bytes).c_str());
}

void print_products(const Limits& limits, int threads) {
  if (limits.matmul_f32 > 0.0) print_limit("matmul peak", "f32", threads, limits.matmul_f32, 0.0);
  if (limits.matmul_bf16 > 0.0)
    print_limit("matmul peak", "bf16", threads, limits.matmul_bf16, 0.0);
}

void print(const Limits& limits, int threads) {
  print_products(limits, threads);
  print_limit("memory, y += x", "f32", threads, 0.0, limits.memory);
  print_limit("memory, y += 1", "i32", threads, 0.0, limits.update);
  print_limit("read", "i32", threads, 0.0, limits.read);
}

void print(const Row& row) {
  const auto quantile = [&](double q) { return bench::quantile(row.seconds, q); };
  const auto percent = [&](double q) {
    const std::optional<double> value = row.percent_of_limit(q);
    return value ? text("%.0f %%", *value) : std::string();
  };
  const Case& c = row.what;
  const double median = quantile(0.5);
  const std::string cache = row.cache();
  std::printf(
      "| %s | %s | %s | %d | %.3f | %.3f - %.3f | %.1f | %.1f | %s | %s | %s |\n", c.name.c_str(),
      c.shape.c_str(), name_of(c.dtype), row.threads, 1e3 * median, 1e3 * quantile(0.1),
      1e3 * quantile(0.9), 1e-9 * c.flops / median, 1e-9 * c.bytes() / median, row.bound.name,
      (percent(0.5) + (cache.empty() ? "" : " (" + cache + ")")).c_str(), percent(0.0).c_str());
  std::fflush(stdout);
}

Json json_of(const Limits& limits, int threads) {
  return {{"threads", threads},
          {"matmul_f32", limits.matmul_f32},
          {"matmul_bf16", limits.matmul_bf16},
          {"memory", limits.memory},
          {"update", limits.update},
          {"read", limits.read}};
}

Json json_of(const Row& row) {
  const Case& c = row.what;
  const double median = bench::quantile(row.seconds, 0.5);
  const std::optional<double> percent = row.percent_of_limit(0.5);
  const std::string cache = row.cache();
  return {{"case", c.name},
          {"shape", c.shape},
          {"dtype", name_of(c.dtype)},
          {"threads", row.threads},
          {"samples", row.seconds.size()},
          {"median_s", median},
          {"p10_s", bench::quantile(row.seconds, 0.1)},
          {"p90_s", bench::quantile(row.seconds, 0.9)},
          {"best_s", row.seconds.front()},
          {"flops", c.flops},
          {"bytes", c.bytes()},
          {"flops_per_s", c.flops / median},
          {"bytes_per_s", c.bytes() / median},
          {"limit", row.bound.name},
          {"percent_of_limit", percent ? Json(*percent) : Json(nullptr)},
          {"cache", cache.empty() ? Json(nullptr) : Json(cache)}};
}

void print_note(const Json& rows) {
  const auto is_marked = [](const Json& row) { return !row.at("cache").is_null(); };
  if (std::any_of(rows.begin(), rows.end(), is_marked))
    std::printf(
        "\nA cache behind a percentage: it holds the operands from run to run, so that the limit "
        "of "
        "memory does not bound the row.\n");
}

std::vector<Case> chosen(const std::string& filter, Device::Type type) {
  const std::regex pattern = pattern_of(filter);
  std::vector<Case> cases = bench::kernel_cases(type);
  std::erase_if(cases, [&](const Case& c) { return !std::regex_search(c.text(), pattern); });
  if (cases.empty())
    throw ConfigError(
        "--filter: expected part of a case, shape and dtype as in 'matmul NT "
        "1024x768x768 f32', got '" +
        printable(filter) + "', which is in none");
  return cases;
}

/// Every limit before any case: what was measured at, and the rows, for --json.
Json measure_on_cpu(const std::vector<Case>& cases, const std::vector<int>& threads) {
  Json limits_json = Json::array(), rows = Json::array();
  std::vector<Limits> limits;
  print_head();
  for (int count : threads) {
    limits.push_back(bench::measure_limits(Device::cpu(0, {.threads = count})));
    print(limits.back(), count);
    limits_json.push_back(json_of(limits.back(), count));
  }
  for (size_t i = 0; i < threads.size(); ++i) {
    const Device device = Device::cpu(0, {.threads = threads[i]});
    for (const Case& c : cases) {
      const Row row{c, threads[i], bench::measure(c.make(device)), bound_of(c, limits[i])};
      print(row);
      rows.push_back(json_of(row));
    }
  }
  print_note(rows);
  return {{"schema", 1},
          {"bench", "kernels"},
          {"machine", machine_json()},
          {"limits", limits_json},
          {"rows", rows}};
}

Json measure_on_accelerator(Device::Type type, const std::vector<Case>& cases) {
  Json rows = Json::array();
  print_head();
  const Device device = device_of_rank(type, 0, {});
  const Limits limits = bench::measure_accelerator_limits(device);
  print_products(limits, 1);
  print_limit("memory, a copy", "f32", 1, 0.0, limits.memory);
  for (const Case& c : cases) {
    const auto seconds = bench::measure_on_accelerator(c, device);
    if (!seconds) {
      std::printf("| %s | %s | %s | 1 | does not fit its memory | | | | | | |\n", c.name.c_str(),
                  c.shape.c_str(), name_of(c.dtype));
      continue;
    }
    const Row row{c, 1, *seconds, bound_of(c, limits), type};
    print(row);
    rows.push_back(json_of(row));
  }
  return {{"schema", 1},
          {"bench", "kernels"},
          {"machine", {{"device", device.description()}}},
          {"limits", {json_of(limits, 1)}},
          {"rows", rows}};
}

}  // namespace

int bench_kernels(const std::vector<std::string>& arguments) {
  std::string filter, json;
  Device::Type type = Device::Type::cpu;
  std::vector<int> threads{1};
  if (available_cores() > 1) threads.push_back(available_cores());
  const CommandLine line = {
      .usage = "zerograd bench kernels [flags]",
      .summary =
          "Measures what this machine reaches at most, then every kernel beside the limit that\n"
          "bounds it: multiply-adds on registers, or memory that is read or updated. Bytes are\n"
          "those of each operand once; operands that a cache holds exceed 100 % of memory, and "
          "the\n"
          "row names the cache. Takes some minutes and up to 2 GiB; on an accelerator up to 16 "
          "GiB,\n"
          "for larger operands, beside the rate of a copy and of the largest product there.",
      .groups = {{"flags",
                  {text_flag({"--filter"}, "RE", filter,
                             "only cases of which this finds something in \"case shape dtype\""),
                   device_flag(type),
                   {{"--threads"},
                    "LIST",
                    "threads to compute with, as in 1,2; 0: every core [1 and every core]",
                    [&](const std::string& name, const std::string& value) {
                      threads = parse_threads(name, value);
                    }},
                   text_flag({"--json"}, "F", json, "writes the same as JSON")}},
                 later_place_flags()},
      .notes = "  zerograd bench kernels --filter 'attention.*f32' --threads 1"};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  require_figures(type);
  check_writable("--json", json);
  const std::vector<Case> cases = chosen(filter, type);
  const Json record = type == Device::Type::cpu ? measure_on_cpu(cases, threads)
                                                : measure_on_accelerator(type, cases);
  if (!json.empty()) write_text(json, record.dump(1));
  return 0;
}

}  // namespace zg::tools
