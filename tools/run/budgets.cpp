#include "tools/run/budgets.h"

#include <algorithm>
#include <cstdio>
#include <limits>

#include "zerograd/runtime/error.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

int64_t ranks_here(const Run& run) {
  return run.options.process ? run.options.process->local_size : run.options.ranks;
}

// The rank's own thread, its collectives thread, and the threads that help with kernels.
int64_t threads_of(const Run& run) {
  return ranks_here(run) * (1 + run.options.place.device.threads);
}

// A lower bound, so that no run that fits is refused. A few steps are enough, because later steps
// need no more memory.
Needs needs_of_rank(const Run& run) {
  Run candidate = largest_steps(run);
  candidate.options.eval_interval = candidate.options.sample_interval = 0;
  candidate.options.save_interval = 0;
  candidate.options.dump_gradients_step.reset();
  return needs_of(walk(candidate, 0));
}

int64_t capped(int64_t bytes, int64_t limit) { return limit ? std::min(bytes, limit) : bytes; }

std::string gib(double bytes) { return text("%.1f GiB", bytes / 0x1p30); }

std::string size(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  const bool large = value >= 0x1p30;
  return text("%.2f %s (%lld bytes)", value / (large ? 0x1p30 : 0x1p20), large ? "GiB" : "MiB",
              (long long)bytes);
}

std::string ranks_text(int64_t ranks) {
  return text("%lld rank%s", (long long)ranks, ranks == 1 ? "" : "s");
}

void check_threads(const Run& run) {
  const int64_t threads = threads_of(run);
  if (threads > thread_limit())
    throw OutOfMemory(
        text("--ranks: %lld ranks take %lld threads; this system allows %lld; try "
             "fewer --ranks",
             (long long)ranks_here(run), (long long)threads, (long long)thread_limit()));
}

void check_host_cap(const Run& run, const Needs& each) {
  const int64_t limit = run.options.place.device.host_limit;
  if (limit == 0 || each.host <= limit) return;
  const std::optional<std::string> smallest = smallest_fitting(run);
  throw OutOfMemory("--host-memory: a rank takes " + size(each.host) +
                    " of host memory by plan; expected at most the cap of " + size(limit) +
                    "; try " +
                    (smallest ? *smallest + ": the smallest setting that fits"
                              : "nvme instead of host, more --ranks or a higher cap"));
}

void check_disk(const Run& run, const Needs& each) {
  const DiskBudget budget = disk_budget(run, each);
  if (!budget.suffices())
    throw FileError("--nvme-path: " + run.options.offload.nvme_path + " has too little room: " +
                    budget.str() + "; try another --nvme-path, or host instead of nvme");
}

// The bytes of this machine's memory that a rank takes. A GPU checks its own memory.
int64_t memory_of_rank(const Run& run, const Needs& needs) {
  const DeviceOptions& limits = run.options.place.device;
  const bool is_cpu = run.options.place.type == Device::Type::cpu;
  return (is_cpu ? capped(needs.device, limits.memory_limit) : 0) +
         capped(needs.host, limits.host_limit);
}

// `ulimit -v` limits a process: all ranks that are threads share it.
void check_addresses(const Run& run, const Needs& needs) {
  const int64_t left = addresses_left_bytes();
  const int64_t ranks = run.options.process ? 1 : run.options.ranks;
  const int64_t threads = ranks * (1 + run.options.place.device.threads);
  const double together =
      static_cast<double>(ranks) * static_cast<double>(memory_of_rank(run, needs)) +
      static_cast<double>(threads) * static_cast<double>(thread_stack_bytes());
  if (together <= static_cast<double>(left)) return;
  throw OutOfMemory(
      text("train: %s of addresses for the memory of %s and the stacks of %lld threads, "
           "by plan; `ulimit -v` leaves this process %s; try `ulimit -v unlimited`, "
           "fewer --ranks or a smaller --batch-size",
           size(static_cast<int64_t>(together)).c_str(), ranks_text(ranks).c_str(),
           (long long)threads, size(left).c_str()));
}

void check_memory(const Run& run, const Needs& needs) {
  const int64_t ranks = ranks_here(run), machine = memory_limit_bytes();
  const int64_t each = memory_of_rank(run, needs);
  const double together = static_cast<double>(each) * static_cast<double>(ranks);
  const double available = static_cast<double>(available_memory_bytes());
  if (together <= static_cast<double>(machine)) {
    if (together > available)
      std::fprintf(stderr, "warning: all ranks together take %s by plan, and %s are free now\n",
                   gib(together).c_str(), gib(available).c_str());
    return;
  }
  const std::string demand =
      text("%s of memory for %s of %s each, by plan; this machine has %s", gib(together).c_str(),
           ranks_text(ranks).c_str(), gib(static_cast<double>(each)).c_str(),
           gib(static_cast<double>(machine)).c_str());
  if (each <= machine)
    throw OutOfMemory("train: " + demand +
                      text("; at most %lld such ranks fit; try fewer --ranks or a higher "
                           "--zero-stage",
                           (long long)(machine / each)));
  Run limited = run;
  limited.options.place.device.memory_limit = machine / ranks;
  const std::optional<std::string> smallest = smallest_fitting(limited);
  throw OutOfMemory("train: " + demand + "; try " +
                    (smallest ? *smallest + ": the smallest setting that fits"
                              : "a smaller --batch-size or a smaller model"));
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
  return text("%s take%s %s by plan, and %s are free", ranks_text(ranks).c_str(),
              ranks == 1 ? "s" : "", size(needed).c_str(), size(free).c_str());
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
