#include "tools/tune_plan.h"

#include <algorithm>
#include <chrono>

#include "tools/budgets.h"
#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/machine.h"

namespace zg::tools {
namespace {

using Clock = std::chrono::steady_clock;

// Later steps need no more memory than the third.
constexpr int64_t walked_steps = 3;

struct Load {
  const char* what;
  int64_t bytes, limit;  // limit 0: none
};

}  // namespace

double Planned::samples_per_s(const Run& run) const {
  return static_cast<double>(tuning.micro_batch * tuning.accumulation * run.options.ranks) /
         seconds;
}

Planned planned(const Run& run, const Tuning& tuning, const Rates& rates) {
  Run candidate = tuned(run, tuning);
  candidate.steps = walked_steps;
  candidate.settings.accumulation = std::min(tuning.accumulation, walked_micro_batches);
  const RankMemory memory = walk(candidate, 0);
  Planned plan{.tuning = tuning, .needs = needs_of(memory)};
  candidate.settings.accumulation = tuning.accumulation;
  plan.seconds = predicted_seconds(candidate, memory, rates);
  const DeviceOptions& limits = run.options.place.device;
  const DriveBudget drive = drive_budget(run, plan.needs);
  const int64_t together = run.options.ranks * (plan.needs.device + plan.needs.host);
  for (const Load& load :
       {Load{"--device-memory", plan.needs.device, limits.memory_limit},
        Load{"--host-memory", plan.needs.host, limits.host_limit},
        Load{"the machine's free memory", together, available_memory_bytes()},
        Load{"--nvme-path's free space", drive.needed, std::max<int64_t>(1, drive.free)}}) {
    const double share = static_cast<double>(load.bytes) / static_cast<double>(load.limit);
    if (load.limit == 0 || share <= plan.load) continue;
    plan.load = share;
    plan.tight = load.what;
  }
  plan.fits = plan.load <= 1.0 && fits(run, memory);
  return plan;
}

Plans plan_all(const Run& run, const Rates& rates, double seconds, double longest_step_s) {
  const Clock::time_point begin = Clock::now();
  Plans plans;
  const std::vector<int64_t> sizes = micro_batches_of(run);
  const bool free = is_open(run.options, "--train-batch-size");
  for (const Tuning& family : families_of(run))
    for (int64_t size : sizes) {
      plans.whole = std::chrono::duration<double>(Clock::now() - begin).count() < seconds;
      if (!plans.whole && !plans.fitting.empty()) break;
      std::vector<Planned>& fitting = plans.fitting;
      const size_t before = fitting.size();
      for (const Tuning& one : smaller_ones(with_micro_batch(family, size, run), run)) {
        const Planned plan = planned(run, one, rates);
        (plan.fits ? fitting : plans.rest).push_back(plan);
        if (plan.fits) break;
      }
      if (fitting.size() == before || (free && fitting.back().seconds > longest_step_s)) break;
    }
  std::stable_sort(plans.fitting.begin(), plans.fitting.end(),
                   [&](const Planned& a, const Planned& b) {
                     return a.samples_per_s(run) > b.samples_per_s(run);
                   });
  std::stable_sort(plans.rest.begin(), plans.rest.end(),
                   [](const Planned& a, const Planned& b) { return a.load < b.load; });
  return plans;
}

namespace {

// How many of sizes 1 to `count` fit, if all sizes up to some size fit.
template <class Fits>
int64_t count_fitting(int64_t count, const Fits& fits) {
  int64_t fitting = 0, beyond = 1;  // beyond: the smallest size known not to fit
  for (; beyond <= count && fits(beyond - 1); beyond *= 2) fitting = beyond;
  beyond = std::min(beyond, count + 1);
  while (beyond - fitting > 1) {
    const int64_t middle = fitting + (beyond - fitting) / 2;
    (fits(middle - 1) ? fitting : beyond) = middle;
  }
  return fitting;
}

}  // namespace

Plans plan_largest(const Run& run, const Rates& rates) {
  const bool solved = !is_open(run.options, "--train-batch-size");
  const std::vector<int64_t> divisors = solved ? micro_batches_of(run) : std::vector<int64_t>{};
  Plans plans;
  std::vector<int> stages = stages_of(run);
  for (int stage : stages) {
    Tuning tuning = tuning_of(run);
    tuning.stage = stage;
    if (stage == 3 && run.options.offload.cpu_offload && is_open(run.options, "--offload-param"))
      tuning.offload.parameter = Space::host;
    const auto of_size = [&](int64_t index) {
      const int64_t size = solved ? divisors[static_cast<size_t>(index)] : index + 1;
      return planned(run, with_micro_batch(tuning, size, run), rates);
    };
    const int64_t count =
        count_fitting(solved ? static_cast<int64_t>(divisors.size()) : largest_count,
                      [&](int64_t index) { return of_size(index).fits; });
    (count > 0 ? plans.fitting : plans.rest).push_back(of_size(std::max<int64_t>(0, count - 1)));
  }
  return plans;
}

}  // namespace zg::tools
