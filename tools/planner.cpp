#include "tools/planner.h"

#include <algorithm>

#include "runtime/error.h"
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

std::optional<std::string> smallest_fitting(const Run& run) {
  Run candidate = run;
  candidate.trace = nullptr;
  // Every later step is like the third.
  candidate.steps = std::min<int64_t>(run.steps, run.steps_done + 3);
  const bool always = run.options.activation_checkpoint;
  for (bool checkpointing : {false, true}) {
    if (always && !checkpointing) continue;
    candidate.options.activation_checkpoint = checkpointing;
    for (int stage = 0; stage <= 3; ++stage) {
      if (stage > 0 && run.options.ranks == 1) break;  // nobody to share with
      if (stage > 1 && run.settings.optimisation.engine.reduce_at_boundary) break;
      candidate.settings.optimisation.engine.stage = stage;
      if (fits(candidate, walk(candidate, 0)))
        return text("--zero-stage %d%s", stage,
                    checkpointing && !always ? " --activation-checkpoint" : "");
    }
  }
  return std::nullopt;
}

}  // namespace zg::tools
