#include "tools/planner.h"

#include <algorithm>
#include <cstdio>

#include "runtime/error.h"
#include "tools/machine.h"
#include "tools/setup.h"
#include "tools/stepper.h"
#include "tools/text.h"

namespace zg::tools {

RankMemory walk(const Run& run, int rank) {
  Device::Options options = run.options.place.device;
  options.memory_limit = options.host_limit = 0;
  const auto ranks = counting_communicator(rank, static_cast<int>(run.options.ranks));
  Stepper stepper(run, *ranks, Device::meta(rank, options), MemoryRows::Keep::all_steps);
  stepper.load();
  while (stepper.engine().steps() < run.steps) {
    stepper.step();
    const int64_t steps = stepper.engine().steps();
    if (is_due(steps, run.options.eval_interval)) stepper.validation_loss();
    if (is_due(steps, run.options.sample_interval)) stepper.sample();
    stepper.agreed(0);
  }
  return stepper.rank_memory();
}

MemoryRecord memory_record(const Run& run, std::vector<RankMemory> ranks) {
  ParameterStore store;
  const models::GPT model(store, run.settings.model);
  const zero::Config& engine = run.settings.optimisation.engine;
  const DeviceOptions& device = run.options.place.device;
  return {.parameters = store.numel(),
          .world = static_cast<int>(run.options.ranks),
          .stage = engine.stage,
          .precision = run.settings.optimisation.precision(),
          .steps = run.steps,
          .machine = {.isa = device.isa.value_or(best_isa()), .threads = device.threads},
          .ranks = std::move(ranks)};
}

bool fits(const Run& run, const RankMemory& memory) {
  const auto within = [](int64_t bytes, int64_t limit) { return limit == 0 || bytes <= limit; };
  const DeviceOptions& limits = run.options.place.device;
  return std::all_of(memory.rows.begin(), memory.rows.end(), [&](const MemoryRow& row) {
    return within(row.reserved, limits.memory_limit) && within(row.host_max, limits.host_limit);
  });
}

namespace {

// What --cpu-offload adds; a run that offloads something already has said where things go.
bool may_offload(const Run& run) {
  const zero::OffloadOptions& offload = run.settings.optimisation.engine.offload;
  return run.options.place.device.memory_limit > 0 && offload.optimizer == Space::device &&
         offload.parameter == Space::device;
}

void set_offload(zero::Config& engine) {
  engine.offload.optimizer = engine.offload.gradient = Space::host;
  engine.offload.parameter = engine.stage == 3 ? Space::host : Space::device;
}

}  // namespace

std::optional<std::string> smallest_fitting(const Run& run) {
  Run candidate = run;
  candidate.trace = nullptr;
  // Every later step is like the third.
  candidate.steps = std::min<int64_t>(run.steps, run.steps_done + 3);
  const bool always = run.options.activation_checkpoint;
  zero::Config& engine = candidate.settings.optimisation.engine;
  const zero::OffloadOptions places = engine.offload;
  for (const auto& [offload, checkpointing] : {std::pair(false, false), std::pair(false, true),
                                               std::pair(true, false), std::pair(true, true)}) {
    if ((always && !checkpointing) || (offload && !may_offload(run))) continue;
    candidate.options.activation_checkpoint = checkpointing;
    for (int stage = 0; stage <= 3; ++stage) {
      const bool moves = offload || places.parameter != Space::device;
      const bool shares = run.options.ranks > 1 || (moves && stage == 3);
      if ((stage > 0 && !shares) || (stage > 1 && engine.reduce_at_boundary)) continue;
      if (stage < 3 && places.parameter != Space::device) continue;
      engine.stage = stage;
      engine.offload = places;
      if (offload) set_offload(engine);
      if (fits(candidate, walk(candidate, 0)))
        return text("--zero-stage %d%s%s", stage, offload ? " --cpu-offload" : "",
                    checkpointing && !always ? " --activation-checkpoint" : "");
    }
  }
  return std::nullopt;
}

namespace {

int64_t ranks_here(const Run& run) {
  return run.options.process ? run.options.process->local_size : run.options.ranks;
}

// Its own thread, the one of its collectives, and those that help with kernels.
int64_t threads_of(const Run& run) {
  return ranks_here(run) * (1 + run.options.place.device.threads);
}

int64_t capped(int64_t bytes, int64_t limit) { return limit ? std::min(bytes, limit) : bytes; }

// From below, for no run that fits shall be refused, and at once, however long a step is: what
// comes again takes nothing more.
int64_t peak_of_rank(const Run& run) {
  Run candidate = run;
  candidate.trace = nullptr;
  candidate.settings.accumulation = std::min<int64_t>(run.settings.accumulation, 3);
  candidate.options.eval_interval = candidate.options.sample_interval = 0;
  candidate.options.dump_gradients_step.reset();
  candidate.steps = std::min<int64_t>(run.steps, run.steps_done + 3);
  const DeviceOptions& limits = run.options.place.device;
  int64_t device = 0, host = 0;
  for (const MemoryRow& row : walk(candidate, 0).rows) {
    device = std::max(device, row.reserved);
    host = std::max(host, row.host_max);
  }
  return capped(device, limits.memory_limit) + capped(host, limits.host_limit);
}

std::string gib(double bytes) { return text("%.1f GiB", bytes / 0x1p30); }

}  // namespace

void check_machine(const Run& run) {
  const int64_t ranks = ranks_here(run), threads = threads_of(run);
  if (threads > thread_limit())
    throw OutOfMemory(
        text("--ranks: %lld ranks take %lld threads; this system allows %lld; try "
             "fewer --ranks",
             (long long)ranks, (long long)threads, (long long)thread_limit()));
  const int64_t machine = memory_limit_bytes(), each = peak_of_rank(run);
  const double together = static_cast<double>(each) * static_cast<double>(ranks);
  const double available = static_cast<double>(available_memory_bytes());
  if (together <= static_cast<double>(machine)) {
    if (together > available)
      std::fprintf(stderr, "warning: all ranks together take %s by plan, and %s are free now\n",
                   gib(together).c_str(), gib(available).c_str());
    return;
  }
  const std::string demand =
      text("%s of memory for %lld rank%s of %s each, by plan; this machine has %s",
           gib(together).c_str(), (long long)ranks, ranks == 1 ? "" : "s",
           gib(static_cast<double>(each)).c_str(), gib(static_cast<double>(machine)).c_str());
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

}  // namespace zg::tools
