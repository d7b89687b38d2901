#include "tools/run/planner.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <limits>
#include <system_error>
#include <thread>

#include "tools/run/inputs.h"
#include "tools/run/rank.h"
#include "zerograd/runtime/machine.h"
#include "zerograd/runtime/plan.h"
#include "zerograd/runtime/recorder.h"
#include "zerograd/runtime/storage/file_io.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/zero/checkpoint/checkpoint_directory.h"

namespace zg::tools {
RankMemory dry_run(const Run& run, int rank) {
  zg::PlanOptions options{.device = run.options.device_flags.device,
                          .type = run.options.device_flags.type,
                          .ranks = {rank},
                          .max_steps = std::numeric_limits<int64_t>::max(),
                          .max_reads = std::numeric_limits<int64_t>::max()};
  options.device.memory_limit = options.device.host_limit = 0;
  RankMemory memory;
  plan_ranks(
      static_cast<int>(run.options.ranks),
      [&](Communicator& ranks, const Device& device) { memory = Rank(run, ranks, device).plan(); },
      options);
  return memory;
}

// Three steps with three micro-batches each are enough, because later ones need the same memory as
// the third.
Run largest_steps(const Run& run) {
  Run largest = run;
  largest.traced = nullptr;
  RunSpec& settings = largest.options;
  // If plan chose the number of steps itself, the run that it plans goes on after them.
  const bool ends = !run.options.only_planned || run.options.has("--steps");
  constexpr int64_t never = std::numeric_limits<int64_t>::max();
  const Progress last =
      advanced(settings.rampup, settings.samples_per_step(),
               {.steps = run.steps_done, .samples = settings.samples},
               {.steps = ends ? run.options.steps - 1 : never, .samples = never / 2});
  const int64_t whole = settings.accumulation_after(last.samples);
  const bool backward_starts_early = run.options.axes.schedule == PipelineSchedule::one_f_one_b;
  settings.accumulation =
      backward_starts_early ? std::min(whole, settings.axes.pipeline + 2) : whole;
  settings.rampup = {};
  largest.options.steps = std::min<int64_t>(run.options.steps, run.steps_done + 3);
  return largest;
}

std::vector<RankMemory> plan_stages(const Run& run) {
  const auto stages = static_cast<size_t>(run.options.axes.pipeline);
  const auto stride = static_cast<size_t>(run.options.data_ranks * run.options.axes.tensor);
  std::vector<RankMemory> stage_memory(stages);
  std::atomic<size_t> next = 0;
  std::exception_ptr failure;
  std::atomic<bool> failed = false;
  const auto work = [&] {
    try {
      for (size_t stage = next++; stage < stages && !failed; stage = next++)
        stage_memory[stage] = dry_run(run, static_cast<int>(stage * stride));
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  const auto threads = std::min(stages, static_cast<size_t>(available_cores()));
  try {
    for (size_t i = 1; i < threads; ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {  // no more threads: those that were started do the work
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
  return stage_memory;
}

MemoryRecord memory_record(const Run& run) {
  ParameterStore store;
  const WholeModel model(store, run.options);
  const zero::Config& engine = run.options.engine;
  const DeviceOptions& device = run.options.device_flags.device;
  return {.parameters = store.numel(),
          .world = static_cast<int>(run.options.ranks),
          .stage = engine.stage,
          .precision = run.options.precision(),
          .reduction_groups = run.options.axes.reduction_groups,
          .steps = run.options.steps,
          .machine = {.backend = run.options.device_flags.type,
                      .isa = isa_of(device),
                      .threads = device.threads}};
}

std::string write_kernels(const Run& run, const RankMemory& first,
                          const std::optional<Peaks>& peaks) {
  const std::string& path = run.options.kernels;
  if (path.empty()) return {};
  const StepLaunches& launches = *first.launches;
  const auto text_of = [](const LaunchCounts& counts) {
    return fmt::format("{} launches, {:.4g} GB, {:.4g} operations", counts.launches(),
                       static_cast<double>(counts.bytes()) * 1e-9,
                       static_cast<double>(counts.operations()));
  };
  std::string lines = fmt::format("kernels {}: a micro-batch {}; once a step {}", printable(path),
                                  text_of(launches.per_micro_batch), text_of(launches.per_step));
  if (!peaks) {
    write_json("--kernels", path, launches.json());
    return lines;
  }
  const int64_t steps = run.options.steps - run.steps_done;
  StepShape shape{.micro_batches = first.counted_micro_batches,
                  .tokens = first.counted_tokens,
                  .received_bytes = received_bytes(first.wire) / steps};
  for (const WireCount& count : first.wire) shape.collectives += count.calls / steps;
  const StepTime time = predict(launches, *peaks, shape);
  write_json("--kernels", path, to_json(launches, time));
  const auto in_ms = [](double seconds) {
    return seconds < 1.0 ? fmt::format("{:.4g}", 1e3 * seconds)
                         : fmt::format("{:.0f}", 1e3 * seconds);
  };
  return lines +
         fmt::format("\npredicted on {}: a micro-batch {} ms, a step {} ms, {:.0f} tokens/s",
                     printable(peaks->name), in_ms(time.micro_batch_seconds), in_ms(time.seconds),
                     time.tokens_per_second);
}

namespace {

// Whether to suggest --cpu-offload. Not for a run that already offloads something.
bool may_offload(const Run& run) {
  const zero::OffloadOptions& offload = run.options.engine.offload;
  return run.options.device_flags.device.memory_limit > 0 && offload.optimizer == Space::device &&
         offload.parameter == Space::device;
}

std::string size_text(int64_t bytes) {
  const double value = static_cast<double>(bytes);
  const bool large = value >= 0x1p30;
  return fmt::format("{:.2f} {} ({} bytes)", value / (large ? 0x1p30 : 0x1p20),
                     large ? "GiB" : "MiB", bytes);
}

void set_offload(zero::Config& engine) {
  engine.offload.optimizer = engine.offload.gradient = Space::host;
  engine.offload.parameter = engine.stage == 3 ? Space::host : Space::device;
}

}  // namespace

std::optional<std::string> smallest_fitting(const Run& run, LeastMemory* least) {
  Run candidate = largest_steps(run);
  const bool always = run.options.activation_checkpoint;
  zero::Config& engine = candidate.options.engine;
  const zero::OffloadOptions places = engine.offload;
  const DeviceOptions& limits = run.options.device_flags.device;
  for (const auto& [offload, checkpointing] : {std::pair(false, false), std::pair(false, true),
                                               std::pair(true, false), std::pair(true, true)}) {
    if ((always && !checkpointing) || (offload && !may_offload(run))) continue;
    candidate.options.activation_checkpoint = checkpointing;
    for (int stage = 0; stage <= 3; ++stage) {
      const bool moves = offload || places.parameter != Space::device;
      const bool shares = run.options.data_ranks > 1 || (moves && stage == 3);
      if ((stage > 0 && !shares) || (stage > 1 && engine.reduce_at_boundary)) continue;
      if (stage < 3 && places.parameter != Space::device) continue;
      engine.stage = stage;
      engine.offload = places;
      if (offload) set_offload(engine);
      const std::string flags =
          fmt::format("--zero-stage {}{}{}", stage, offload ? " --cpu-offload" : "",
                      checkpointing && !always ? " --activation-checkpoint" : "");
      bool fits = true;
      int64_t largest = 0;
      for (const RankMemory& memory : plan_stages(candidate)) {
        fits = fits && needs_of(memory).fit(limits);
        largest = std::max(largest, needs_of(memory).device);
      }
      if (fits) return flags;
      if (least && largest < least->bytes) *least = {largest, flags};
    }
  }
  return std::nullopt;
}

std::string advice_to_fit(const Run& run) {
  Run candidate = run;
  candidate.options.micro_batch = 1;
  LeastMemory least;
  if (smallest_fitting(candidate, &least)) return "try a smaller --batch-size or more --ranks";
  const int64_t limit = run.options.device_flags.device.memory_limit;
  const std::string needed =
      limit > 0 && least.bytes > limit
          ? fmt::format(": it takes at least {}, with {}", size_text(least.bytes), least.flags)
          : "";
  return "a batch of one sample does not fit either" + needed +
         "; try more --ranks or a smaller model";
}

namespace {

int64_t ranks_here(const Run& run) {
  return run.options.process ? run.options.process->local_size : run.options.ranks;
}

// The rank's own thread, its collectives thread, and the threads that help with kernels.
int64_t threads_of(const Run& run) {
  return ranks_here(run) * (1 + run.options.device_flags.device.threads);
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
  const int64_t threads = threads_of(run);
  if (threads > thread_limit())
    raise<OutOfMemory>(
        "--ranks: {} ranks take {} threads; this system allows {}; try fewer --ranks",
        ranks_here(run), threads, thread_limit());
}

void check_host_cap(const Run& run, const Needs& each) {
  const int64_t limit = run.options.device_flags.device.host_limit;
  if (limit == 0 || each.host <= limit) return;
  const std::optional<std::string> smallest = smallest_fitting(run);
  raise<OutOfMemory>(
      "--host-memory: a rank takes {} of host memory by plan; expected at most the cap of {}; try "
      "{}",
      size_text(each.host), size_text(limit),
      smallest ? *smallest + ": the smallest setting that fits"
               : "nvme instead of host, more --ranks or a higher cap");
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
  const std::optional<std::string> smallest = smallest_fitting(limited);
  raise<OutOfMemory>("train: {}; try {}", demand,
                     smallest ? *smallest + ": the smallest setting that fits"
                              : "a smaller --batch-size or a smaller model");
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
