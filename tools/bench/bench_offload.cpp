#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "bench/measure.h"
#include "tools/bench/command.h"
#include "tools/options/flags.h"
#include "tools/run/run.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/kernels/optimizer/optimizer.h"
#include "zerograd/runtime/comm/communicator.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/dtype.h"
#include "zerograd/runtime/storage/block_io.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/config.h"
#include "zerograd/zero/states/transfer.h"

namespace zg::bench {
namespace {

/// Options of the benchmark of the operations that offloading repeats: transfers between disk and
/// memory, AdamW on states in memory or on the disk, and both at once. On an accelerator it
/// measures copies to and from pinned memory and AdamW without a disk.
struct OffloadBenchOptions {
  /// Size of one transfer, and of the master weights that AdamW updates.
  int64_t bytes = 256 << 20;
  Device::Type type = Device::Type::cpu;
  DeviceOptions device;  ///< threads, the directory on the disk and its requests
};

/// Highest measured rates in bytes per second: the best run of each.
struct OffloadLimits {
  double memory = 0.0;  ///< measure_memory_bandwidth(), cpu only
  /// Sequential disk rates of the faster engine; on an accelerator, of copies from and to pinned
  /// memory.
  double read = 0.0, write = 0.0;
};

struct OffloadRow {
  std::string name;   ///< "swap read"
  std::string shape;  ///< "256 MiB", "67108864"
  DType dtype;
  std::vector<double> seconds;  ///< one value for each run, sorted
  double bytes;                 ///< bytes that one run moves to or from the disk, or in memory
  double limit_s;  ///< time for `bytes` at the measured limits; 0: the row is itself a limit, or no
                   ///< limit was measured

  double quantile(double q) const { return bench::quantile(seconds, q); }
};

struct OffloadResult {
  std::string disk;  ///< "io_uring past the page cache"
  OffloadLimits limits;
  std::vector<OffloadRow> rows;  ///< the rows of limits come first
  /// How far computation and disk transfers overlap: (time of compute alone + time of disk alone -
  /// time of both together) / the shorter time alone, from the fastest run of each. 1: the shorter
  /// one is hidden completely. Below 0: together they are slower than one after the other.
  std::optional<double> overlap;
};

constexpr Effort effort{.warm_up = 1, .fewest = 5, .samples = 20, .seconds = 1.0};

std::string mebibytes(int64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

/// Sequential requests of one engine at its full queue depth: the upper limit for swap reads and
/// writes.
class RawDisk {
 public:
  RawDisk(const OffloadBenchOptions& options, bool io_uring) : bytes_(options.bytes) {
    SwapOptions swap = options.device.swap;
    swap.io_uring = io_uring;
    io_ = cpu::BlockIo::open(swap);
    io_->reserve(bytes_);
    // Random data, so that the disk cannot compress it.
    std::mt19937_64 random(1);
    for (int slot = 0; slot < io_->depth(); ++slot)
      for (int64_t at = 0; at < io_->request_bytes(); at += 8) {
        const uint64_t word = random();
        std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, io_->buffer(slot) + at);
      }
  }
  std::string engine() const { return io_->engine(); }
  void run(bool writes) {
    std::vector<int> free;
    for (int slot = io_->depth(); slot-- > 0;) free.push_back(slot);
    int under_way = 0;
    const auto finish_one = [&] {
      const auto [slot, error] = io_->wait();
      if (error != 0) io_->fail(writes ? "written" : "read", error);
      free.push_back(slot);
      --under_way;
    };
    for (int64_t offset = 0; offset < bytes_; offset += io_->request_bytes()) {
      if (free.empty()) finish_one();
      io_->submit(free.back(), {.offset = offset,
                                .memory = io_->buffer(free.back()),
                                .bytes = std::min(io_->request_bytes(), bytes_ - offset),
                                .writes = writes});
      free.pop_back();
      ++under_way;
    }
    while (under_way > 0) finish_one();
  }

 private:
  int64_t bytes_;
  std::unique_ptr<cpu::BlockIo> io_;
};

/// AdamW over masters and moments in one space, in chunks of the engine's size.
class Update {
 public:
  Update(const Device& device, Space space, int64_t numel)
      : device_(device),
        step_(space == Space::file ? std::min(numel, zero::OffloadOptions().sub_group_size)
                                   : numel) {
    const Space near = space == Space::file ? host_space(device) : space;
    for (Tensor& state : states_) {
      state = Tensor::empty({numel}, DType::f32, device, space);
      fill_zero(state, device.compute());
    }
    values_ = Tensor::empty({numel}, DType::bf16, device, space);
    fill_zero(values_, device.compute());
    constexpr float each = 1e-3f;
    gradient_ = near == Space::device ? Tensor::full({numel}, each, DType::f32, device)
                                      : Tensor::empty({numel}, DType::f32, device, near);
    if (near != Space::device) std::fill_n(gradient_.data<float>(), numel, each);
  }

  /// Updates all chunks. Without `computes` it only transfers the bytes to and from the disk.
  void run(bool computes) const {
    std::vector<zero::Streaming::Part> parts;
    for (int64_t begin = 0; begin < values_.numel(); begin += step_) parts.push_back(part(begin));
    zero::Streaming streaming(std::move(parts), device_);
    for (int64_t begin = 0; begin < values_.numel(); begin += step_) {
      const std::vector<Tensor>& memory = streaming.next();
      if (computes) update(memory);
      streaming.keep();
    }
    streaming.finish();
    device_.compute().synchronize();
  }

 private:
  zero::Streaming::Part part(int64_t begin) const {
    const int64_t count = std::min(step_, values_.numel() - begin);
    const auto of = [&](const Tensor& tensor) { return tensor.flat(begin, count); };
    return {{.tensor = of(states_[0])},
            {.tensor = of(states_[1])},
            {.tensor = of(states_[2])},
            {.tensor = of(values_), .loads = false},
            {.tensor = of(gradient_), .saves = false}};
  }
  void update(const std::vector<Tensor>& memory) const {
    kernels::optimizer_update({.tensors = {{.parameter = memory[0],
                                            .gradient = memory[4],
                                            .moment1 = memory[1],
                                            .moment2 = memory[2],
                                            .low_precision = memory[3]}}},
                              device_.compute());
  }

  const Device device_;
  const int64_t step_;
  Tensor states_[3], values_, gradient_;
};

/// Fills a result, limits first. Each group of rows uses its own device, which frees memory and
/// file at the end. `wanted` receives "name dtype" and returns whether to measure the row. Limits
/// are always measured, and so is AdamW on states in memory, with which AdamW on the disk is
/// compared. Takes 5 times options.bytes of memory and 4 times of disk space, in files without
/// names that leave nothing behind. Throws FileError when the directory does not exist or has too
/// little space.
class Measurement {
 public:
  Measurement(const OffloadBenchOptions& options,
              const std::function<bool(const std::string&)>& wanted)
      : options_(options), wanted_(wanted) {}

  OffloadResult run() {
    if (options_.type == Device::Type::cpu) {
      limits();
      swaps();
    } else {
      copies();
    }
    updates();
    return std::move(result_);
  }

 private:
  Device device() const { return device_of_rank(options_.type, 0, options_.device); }
  bool wants(const std::string& name, DType dtype) const {
    return wanted_(name + " " + name_of(dtype));
  }
  const OffloadRow& add(const std::string& name, const std::string& shape, DType dtype,
                        double bytes, double limit_s, const std::function<void()>& run) {
    return result_.rows.emplace_back(
        OffloadRow{name, shape, dtype, measure(run, effort), bytes, limit_s});
  }

  void limits() {
    OffloadLimits& limits = result_.limits;
    limits.memory = measure_memory_bandwidth(device());
    for (const bool io_uring : {true, false}) {
      RawDisk disk(options_, io_uring);
      if (io_uring && disk.engine() != "io_uring") continue;
      // Writes come first: reads of blocks that were never written do not reach the disk.
      for (const bool writes : {true, false}) {
        const OffloadRow& row =
            add(std::string("limit: drive ") + (writes ? "write, " : "read, ") + disk.engine(),
                mebibytes(options_.bytes), DType::u8, bytes_, 0.0, [&] { disk.run(writes); });
        double& limit = writes ? limits.write : limits.read;
        limit = std::max(limit, bytes_ / row.seconds[0]);
      }
    }
  }

  void copies() {
    const Device device = this->device();
    const Tensor here = Tensor::zeros({options_.bytes}, DType::u8, device);
    const Tensor host = Tensor::empty({options_.bytes}, DType::u8, device, host_space(device));
    for (const bool writes : {true, false}) {
      const OffloadRow& row =
          add(writes ? "limit: copy to the host" : "limit: copy to the device",
              mebibytes(options_.bytes), DType::u8, bytes_, 0.0, [&] {
                copy(writes ? here : host, writes ? host : here, device.compute());
                device.compute().synchronize();
              });
      (writes ? result_.limits.write : result_.limits.read) = bytes_ / row.seconds[0];
    }
  }

  void swaps() {
    const Device device = this->device();
    const Tensor file = Tensor::empty({options_.bytes}, DType::u8, device, Space::file);
    // One granule longer than the file. At an offset of one granule the memory is not
    // block-aligned, so the swap engine copies through its own buffers.
    const Tensor memory =
        Tensor::empty({options_.bytes + arena_granule}, DType::u8, device, Space::host);
    fill_zero(memory, device.compute());
    fill_zero(file, device.compute());
    result_.disk = swap_description(device);
    for (const bool aligned : {true, false})
      for (const bool writes : {true, false}) {
        const Tensor here = memory.flat(aligned ? 0 : arena_granule, options_.bytes);
        const std::string name =
            std::string(writes ? "swap write" : "swap read") + (aligned ? "" : ", through buffers");
        if (wants(name, DType::u8))
          add(name, mebibytes(options_.bytes), DType::u8, bytes_,
              bytes_ / (writes ? result_.limits.write : result_.limits.read), [&] {
                wait_for_swap(device, writes ? start_swap(here, file) : start_swap(file, here));
              });
      }
  }

  void updates() {
    const int64_t numel = options_.bytes / 4;
    const auto elements = static_cast<double>(numel);
    const std::string shape = std::to_string(numel);
    // Masters, moments and gradients are read; masters, moments and bf16 values are written.
    const double read = 16.0 * elements, written = 14.0 * elements;
    const OffloadLimits& limits = result_.limits;
    const bool is_cpu = options_.type == Device::Type::cpu;
    const auto limit_of = [&](Space space) {
      if (is_cpu) return (read + written) / limits.memory;
      // Reads and writes overlap.
      return space == Space::device ? 0.0 : std::max(read / limits.read, written / limits.write);
    };
    const auto in_memory = [&](const std::string& name, Space space) {
      const Update update(device(), space, numel);
      return add(name, shape, DType::f32, read + written, limit_of(space),
                 [&] { update.run(true); })
          .seconds[0];
    };
    if (const std::string name = "adamw, states on the device"; wants(name, DType::f32))
      in_memory(name, Space::device);
    const std::string on_host = "adamw, states on the host", on_disk = "adamw, states on the drive";
    if (wants(on_host, DType::f32) || (is_cpu && wants(on_disk, DType::f32))) {
      const double compute = in_memory(on_host, is_cpu ? Space::host : Space::pinned);
      if (is_cpu && wants(on_disk, DType::f32)) streamed(on_disk, shape, numel, compute);
    }
  }

  void streamed(const std::string& name, const std::string& shape, int64_t numel, double compute) {
    // Gradients stay in memory, so they are not read from the disk.
    const double read = 12.0 * static_cast<double>(numel), written = read / 12.0 * 14.0;
    const double limit_s = read / result_.limits.read + written / result_.limits.write;
    const Update update(device(), Space::file, numel);
    const auto fastest = [&](const std::string& row, bool computes) {
      return add(row, shape, DType::f32, read + written, limit_s, [&] { update.run(computes); })
          .seconds[0];
    };
    const double disk = fastest("transfers only, states on the drive", false);
    const double both = fastest(name, true);
    result_.overlap = (compute + disk - both) / std::min(compute, disk);
  }

  const OffloadBenchOptions& options_;
  const std::function<bool(const std::string&)>& wanted_;
  const double bytes_ = static_cast<double>(options_.bytes);
  OffloadResult result_;
};

}  // namespace
}  // namespace zg::bench

namespace zg::tools {
namespace {

using bench::OffloadResult;
using bench::OffloadRow;

double percent_of_limit(const OffloadRow& row) { return 100.0 * row.limit_s / row.quantile(0.5); }
double rate(const OffloadRow& row) { return row.bytes / row.quantile(0.5); }

void print(const OffloadResult& result) {
  if (!result.disk.empty()) print_line(stdout, "drive: {}\n", result.disk);
  std::printf(
      "| case | shape | dtype | median ms | p10 - p90 | GB/s | %% of limit |\n"
      "|---|---|---|---:|---:|---:|---:|\n");
  if (result.limits.memory > 0.0)
    std::printf("| limit: memory, y += x | 128 MiB | f32 | | | %.2f | |\n",
                1e-9 * result.limits.memory);
  for (const OffloadRow& row : result.rows) {
    const std::string percent =
        row.limit_s > 0.0 ? fmt::format("{:.0f} %", percent_of_limit(row)) : std::string();
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
  for (const OffloadRow& row : result.rows)
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
  bench::OffloadBenchOptions options;
  SwapOptions& swap = options.device.swap;
  swap.directory = ".";
  std::string filter, json;
  int64_t threads = 0;
  const CommandLine line = {
      .usage = "zerograd bench offload [flags]",
      .summary =
          "Measures the rates of a disk and of memory, then transfers between them, AdamW with\n"
          "its states in memory or on the disk, and how far AdamW overlaps with the transfers.\n"
          "Takes 5 times --size of memory, 4 times --size of disk, and half a minute; leaves no\n"
          "file. For an accelerator it measures copies to and from pinned memory, and AdamW with\n"
          "its states on the device or on the host.",
      .groups = {
          {"flags",
           {path_flag({"--nvme-path"}, "DIR", swap.directory, PathUse::watches,
                      "a directory on the disk"),
            size_flag({"--size"}, options.bytes,
                      "bytes of a transfer, and of the masters that AdamW updates"),
            integer_flag({"--threads"}, threads, "threads to compute with; 0: every core"),
            device_flag(options.type),
            text_flag({"--filter"}, "RE", filter,
                      "only cases whose \"case dtype\" matches this regular expression"),
            path_flag({"--json"}, "F", json, PathUse::writes, "writes the results as JSON, too")}},
          unsupported_flags(/*one_rank=*/true)}};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  refuse_emulator(options.type);
  constexpr int64_t min_bytes = 1 << 20;
  if (options.bytes < min_bytes || options.bytes % min_bytes != 0)
    raise<ConfigError>("--size: expected a multiple of 1MiB, got {}", options.bytes);
  if (!is_directory(swap.directory))
    raise<FileError>("--nvme-path: {} is not a directory; expected one on the disk to measure",
                     swap.directory);
  check_writable("--json", json);
  const std::regex pattern = pattern_of(filter);
  options.device.threads = static_cast<int>(threads);
  const std::function<bool(const std::string&)> wanted = [&](const std::string& row) {
    return std::regex_search(row, pattern);
  };
  const OffloadResult result = bench::Measurement(options, wanted).run();
  print(result);
  if (!json.empty())
    replace_text(json, json_of(result, device_of_rank(options.type, 0, options.device)));
  return 0;
}

}  // namespace zg::tools
