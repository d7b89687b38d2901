#include <cstdio>
#include <nlohmann/json.hpp>

#include "bench/command.h"
#include "bench/offload.h"
#include "tools/options/model_flags.h"
#include "tools/run/run.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/error.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

using bench::OffloadResult;
using bench::OffloadRow;

double percent_of_limit(const OffloadRow& row) { return 100.0 * row.limit_s / row.quantile(0.5); }
double rate(const OffloadRow& row) { return row.bytes / row.quantile(0.5); }

void print(const OffloadResult& result) {
  if (!result.disk.empty()) std::printf("drive: %s\n\n", result.disk.c_str());
  std::printf(
      "| case | shape | dtype | median ms | p10 - p90 | GB/s | %% of limit |\n"
      "|---|---|---|---:|---:|---:|---:|\n");
  if (result.limits.memory > 0.0)
    std::printf("| limit: memory, y += x | 128 MiB | f32 | | | %.2f | |\n",
                1e-9 * result.limits.memory);
  for (const OffloadRow& row : result.rows) {
    const std::string percent =
        row.limit_s > 0.0 ? text("%.0f %%", percent_of_limit(row)) : std::string();
    std::printf("| %s | %s | %s | %.1f | %.1f - %.1f | %.2f | %s |\n", row.name.c_str(),
                row.shape.c_str(), name_of(row.dtype), 1e3 * row.quantile(0.5),
                1e3 * row.quantile(0.1), 1e3 * row.quantile(0.9), 1e-9 * rate(row),
                percent.c_str());
  }
  if (result.overlap)
    std::printf("\noverlap of AdamW and the drive: %.0f %%\n", 100.0 * *result.overlap);
}

std::string json_of(const OffloadResult& result, const Device& device) {
  const Device::Traits& traits = device.traits();
  using Json = nlohmann::ordered_json;
  Json rows = Json::array();
  for (const OffloadRow& row : result.rows) {
    rows.push_back(
        {{"case", row.name},
         {"shape", row.shape},
         {"dtype", name_of(row.dtype)},
         {"samples", row.seconds.size()},
         {"median_s", row.quantile(0.5)},
         {"p10_s", row.quantile(0.1)},
         {"p90_s", row.quantile(0.9)},
         {"bytes", row.bytes},
         {"bytes_per_s", rate(row)},
         {"percent_of_limit", row.limit_s > 0.0 ? Json(percent_of_limit(row)) : Json(nullptr)}});
  }
  const Json json = {
      {"schema", 1},
      {"bench", "offload"},
      {"machine", device.type() == Device::Type::cpu
                      ? Json{{"isa", name_of(traits.isa)}, {"threads", traits.threads}}
                      : Json{{"device", device.description()}}},
      {"drive", result.disk},
      {"limits",
       {{"memory", result.limits.memory},
        {"read", result.limits.read},
        {"write", result.limits.write}}},
      {"rows", rows},
      {"overlap", result.overlap ? Json(*result.overlap) : Json(nullptr)}};
  return json.dump(1);
}

}  // namespace

int bench_offload(const std::vector<std::string>& arguments) {
  bench::OffloadOptions options;
  SwapOptions& swap = options.device.swap;
  swap.directory = ".";
  std::string filter, json;
  int64_t threads = 0;
  const CommandLine line = {
      .usage = "zerograd bench offload [flags]",
      .summary =
          "Measures a drive and memory, then what offload makes of them: transfers, AdamW where\n"
          "its states are, and how much of the drive's time it hides. Takes 5 times --size\n"
          "of memory, 4 times of the drive, and half a minute; leaves no file. Of an "
          "accelerator:\n"
          "copies to and from pinned memory, and AdamW with its states on either side.",
      .groups = {{"flags",
                  {text_flag({"--nvme-path"}, "DIR", swap.directory, "a directory on the drive"),
                   size_flag({"--size"}, options.bytes,
                             "bytes of a transfer, and of the masters that AdamW updates"),
                   integer_flag({"--threads"}, threads, "threads to compute with; 0: every core"),
                   device_flag(options.type),
                   text_flag({"--filter"}, "RE", filter,
                             "only cases of which this finds something in \"case dtype\""),
                   text_flag({"--json"}, "F", json, "writes the same as JSON")}},
                 unsupported_flags(/*one_rank=*/true)}};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  require_figures(options.type);
  constexpr int64_t least = 1 << 20;
  if (options.bytes < least || options.bytes % least != 0)
    throw ConfigError("--size: expected a multiple of 1MiB, got " + std::to_string(options.bytes));
  if (!is_directory(swap.directory))
    throw FileError("--nvme-path: " + swap.directory +
                    " is no directory; expected one on the drive to measure");
  check_writable("--json", json);
  const std::regex pattern = pattern_of(filter);
  options.device.threads = static_cast<int>(threads);
  const OffloadResult result = bench::measure_offload(
      options, [&](const std::string& row) { return std::regex_search(row, pattern); });
  print(result);
  if (!json.empty())
    write_text(json, json_of(result, device_of_rank(options.type, 0, options.device)));
  return 0;
}

}  // namespace zg::tools
