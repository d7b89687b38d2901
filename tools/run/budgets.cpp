#include "tools/run/planner.h"

#include <limits>

#include "tools/run/advise.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

int64_t ranks_here(const Run& run) {
  return run.options.process ? run.options.process->local_size : run.options.ranks;
}

// A lower bound, so that no run that fits is refused. A few steps are enough, because later steps
// need no more memory.
Needs needs_of_rank(const Run& run) {
  Run candidate = largest_steps(run);
  candidate.options.eval_interval = candidate.options.sample_interval = 0;
  candidate.options.save_interval = 0;
  candidate.options.dump_gradients_step.reset();
  return needs_of(dry_run(candidate, 0));
}

int64_t capped(int64_t bytes, int64_t limit) { return limit ? std::min(bytes, limit) : bytes; }

std::string ranks_text(int64_t ranks) {
  return fmt::format("{} rank{}", ranks, ranks == 1 ? "" : "s");
}

void check_threads(const Run& run) {
  // The rank's own thread, its collectives thread, and the threads that help with kernels.
  const int64_t threads = ranks_here(run) * (1 + run.options.device_flags.device.threads);
  if (threads > thread_limit())
    raise<OutOfMemory>(
        "--ranks: {} ranks take {} threads; this system allows {}; try fewer --ranks",
        ranks_here(run), threads, thread_limit());
}

void check_host_cap(const Run& run, const Needs& each) {
  const int64_t limit = run.options.device_flags.device.host_limit;
  if (limit == 0 || each.host <= limit) return;
  const SmallestSetting smallest = smallest_fitting(run);
  raise<OutOfMemory>(
      "--host-memory: a rank takes {} of host memory by plan; expected at most the cap of {}; try "
      "{}",
      size_text(each.host), size_text(limit),
      smallest.flags ? *smallest.flags + ": the smallest setting that fits"
                     : "more --ranks or a higher cap");
}

void check_disk(const Run& run, const Needs& each) {
  const DiskBudget budget = disk_budget(run, each);
  if (!budget.suffices())
    raise<FileError>(
        "--nvme-path: {} has too little room: {}; try another --nvme-path, or host instead of nvme",
        run.options.offload.nvme_path, budget.str());
}

// The bytes of this machine's memory that a rank takes. A GPU checks its own memory.
int64_t memory_of_rank(const Run& run, const Needs& needs) {
  const DeviceOptions& limits = run.options.device_flags.device;
  const bool is_cpu = run.options.device_flags.type == Device::Type::cpu;
  return (is_cpu ? capped(needs.device, limits.memory_limit) : 0) +
         capped(needs.host, limits.host_limit);
}

// `ulimit -v` limits a process: all ranks that are threads share it.
void check_addresses(const Run& run, const Needs& needs) {
  const int64_t left = addresses_left_bytes();
  const int64_t ranks = run.options.process ? 1 : run.options.ranks;
  const int64_t threads = ranks * (1 + run.options.device_flags.device.threads);
  const double together =
      static_cast<double>(ranks) * static_cast<double>(memory_of_rank(run, needs)) +
      static_cast<double>(threads) * static_cast<double>(thread_stack_bytes());
  if (together <= static_cast<double>(left)) return;
  raise<OutOfMemory>(
      "train: {} of addresses for the memory of {} and the stacks of {} threads, by plan; `ulimit "
      "-v` leaves this process {}; try `ulimit -v unlimited`, fewer --ranks or a smaller "
      "--batch-size",
      size_text(static_cast<int64_t>(together)), ranks_text(ranks), threads, size_text(left));
}

void check_memory(const Run& run, const Needs& needs) {
  const int64_t ranks = ranks_here(run), machine = memory_limit_bytes();
  const int64_t each = memory_of_rank(run, needs);
  const double together = static_cast<double>(each) * static_cast<double>(ranks);
  const double available = static_cast<double>(available_memory_bytes());
  if (together <= static_cast<double>(machine)) {
    if (together > available)
      print_line(stderr, "warning: all ranks together take {} by plan, and {} are free now",
                 gib(together), gib(available));
    return;
  }
  const std::string demand = fmt::format(
      "{} of memory for {} of {} each, by plan; this machine has {}", gib(together),
      ranks_text(ranks), gib(static_cast<double>(each)), gib(static_cast<double>(machine)));
  if (each <= machine)
    raise<OutOfMemory>(
        "train: {}; at most {} such ranks fit; try fewer --ranks or a higher --zero-stage", demand,
        machine / each);
  Run limited = run;
  limited.options.device_flags.device.memory_limit = machine / ranks;
  const SmallestSetting smallest = smallest_fitting(limited);
  raise<OutOfMemory>(
      "train: {}; try {}", demand,
      smallest.flags ? *smallest.flags + ": the smallest setting that fits" : "a smaller model");
}

}  // namespace

DiskBudget disk_budget(const Run& run, const Needs& each) {
  const int64_t ranks = ranks_here(run);
  DiskBudget budget{.ranks = ranks, .needed = each.file * ranks};
  if (each.file > 0)
    budget.free =
        free_bytes(run.options.offload.nvme_path).value_or(std::numeric_limits<int64_t>::max());
  return budget;
}

std::string DiskBudget::str() const {
  return fmt::format("{} take{} {} by plan, and {} are free", ranks_text(ranks),
                     ranks == 1 ? "s" : "", size_text(needed), size_text(free));
}

void check_budgets(const Run& run) {
  check_threads(run);
  const Needs each = needs_of_rank(run);
  check_host_cap(run, each);
  check_disk(run, each);
  check_addresses(run, each);
  check_memory(run, each);
}

}  // namespace zg::tools
