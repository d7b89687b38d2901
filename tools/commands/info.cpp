#include <cstdio>

#include "bench/measure.h"
#include "tools/commands/subcommands.h"
#include "tools/run/run.h"
#include "zerograd/kernels/matmul/peak.h"
#include "zerograd/models/tokenizer/tokenizer.h"
#include "zerograd/runtime/comm/processes.h"
#include "zerograd/runtime/command_line/command_line.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/device.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/storage/swap.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

constexpr Device::Type accelerators[] = {Device::Type::cuda, Device::Type::hpu};

void row(const char* what, const std::string& value) {
  print_line(stdout, "{:<18} {}", what, value);
}

std::string matmul_peak(const Device& device, DType dtype) {
  try {
    return fmt::format("{:.1f} GFLOP/s", measure_matmul_peak(device, dtype) * 1e-9);
  } catch (const Unsupported& error) {
    return std::string("absent: ") + error.what();
  }
}

void print_limits(const Device& device) {
  const std::string threads = fmt::format(" on {} threads", device.traits().threads);
  row("matmul peak f32", matmul_peak(device, DType::f32) + threads);
  row("matmul peak bf16", matmul_peak(device, DType::bf16) + threads);
  row("memory bandwidth",
      fmt::format("{:.1f} GB/s", measure_memory_bandwidth(device) * 1e-9) + threads);
}

}  // namespace

int info(const std::vector<std::string>& arguments) {
  bool measure = false;
  int64_t threads = 0;
  std::string peaks;
  const CommandLine line = {
      .usage = "zerograd info [--measure [--threads N] [--peaks F]]",
      .summary = "Prints what this build and this machine can do.",
      .groups = {
          {"flags",
           {switch_flag({"--measure"}, measure, "measure matmul peak and memory bandwidth"),
            integer_flag({"--threads"}, threads, "threads to measure with; 0: every core"),
            path_flag({"--peaks"}, "F", peaks, PathUse::writes,
                      "with --measure: measures the rate of each op, too, in a few minutes,\n"
                      "and writes the rates of this CPU for plan --peaks")}}}};
  Given given;
  if (!parse(line, arguments, given)) return 0;
  if (!peaks.empty() && !measure)
    throw ConfigError("--peaks: expected --measure beside it, got --peaks alone");
  check_writable("--peaks", peaks);
  const Device device = Device::cpu(0, {.threads = static_cast<int>(threads)});
  row("version", ZG_VERSION);
  row("processor", bench::processor_name());
  row("instruction set",
      std::string(name_of(device.traits().isa)) +
          " (of portable, avx2, avx512, avx512_bf16, amx_bf16; ZG_CPU_ISA lowers it)");
  row("cores", std::to_string(available_cores()));
  row("memory", fmt::format("{}, {} available", gib(static_cast<double>(physical_memory_bytes())),
                            gib(static_cast<double>(available_memory_bytes()))));
  std::string devices = device.name();
  for (const Device::Type type : accelerators)
    for (int index = 0; index < Device::count(type); ++index)
      devices += fmt::format(", {}:{}", type, index);
  row("devices", devices);
  for (const Device::Type type : accelerators) {
    const std::string why = Device::absence(type);
    row(zg::name_of(type),
        why.empty() ? Device::parse(zg::name_of(type)).description() : "absent: " + why);
  }
  row("mpi", mpi_version().empty()
                 ? "absent: no MPI was found when this was built, or ZG_MPI is OFF"
                 : mpi_version());
  const std::string absence = io_uring_absence();
  row("io_uring", absence.empty() ? "used to read and write disks" : "absent: " + absence);
  row("unicode", models::unicode_tables());
  if (measure) print_limits(device);
  if (measure && !peaks.empty()) {
    replace_text(peaks, bench::measure_peaks(device).json());
    row("peaks", peaks);
  }
  return 0;
}

}  // namespace zg::tools
