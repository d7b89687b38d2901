#include "tools/tune_search.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "zerograd/runtime/text.h"

namespace zg::tools {
namespace {

constexpr size_t most_families = 6, most_trials = 14;

// Stages 1 and 2 do the same work here.
bool same_family(const Tuning& a, const Tuning& b) {
  const auto work = [](int stage) { return stage == 2 ? 1 : stage; };
  return work(a.stage) == work(b.stage) && a.offload.optimizer == b.offload.optimizer &&
         a.offload.parameter == b.offload.parameter &&
         a.activation_checkpoint == b.activation_checkpoint;
}

}  // namespace

Search::Search(const Run& run, std::vector<std::string> words, Clock::time_point begin,
               double time_s)
    : run_(run), words_(std::move(words)), begin_(begin), time_s_(time_s) {}

double Search::left() const {
  return time_s_ - std::chrono::duration<double>(Clock::now() - begin_).count();
}

const Trial* Search::fastest() const {
  const auto found =
      std::max_element(trials_.begin(), trials_.end(), [&](const Trial& a, const Trial& b) {
        return a.samples_per_s(run_) < b.samples_per_s(run_);
      });
  return found == trials_.end() || !found->failure.empty() ? nullptr : &*found;
}

const Trial* Search::best() const {
  std::vector<Measured> measured;
  std::vector<const Trial*> trials;
  for (const Trial& trial : trials_) {
    if (!trial.failure.empty()) continue;
    const double samples = trial.samples_per_s(run_) * trial.seconds;
    measured.push_back({.fast = trial.fast_s / samples,
                        .median = trial.seconds / samples,
                        .slow = trial.slow_s / samples,
                        .deviations = deviations_of(trial.plan.tuning, run_)});
    trials.push_back(&trial);
  }
  return trials.empty() ? nullptr : trials[simplest_within_noise(measured)];
}

void Search::try_plan(const std::vector<Planned>& plans, size_t index) {
  constexpr double start_s = 1.0;
  const Planned& plan = plans[index];
  const auto rank = static_cast<int64_t>(index) + 1;
  const bool tried = std::any_of(trials_.begin(), trials_.end(),
                                 [&](const Trial& trial) { return trial.predicted_rank == rank; });
  const double least_s = start_s + 5.0 * correction_ * plan.seconds;
  if (tried || signal_ != 0 || (!trials_.empty() && left() < least_s)) return;
  const double share_s = time_s_ / 40.0;
  const double most_s = time_s_ / static_cast<double>(std::min<size_t>(4, plans.size()));
  const std::vector<std::string> flags = flags_of(plan.tuning, run_);
  std::vector<std::string> words = words_;
  words.insert(words.end(), flags.begin(), flags.end());
  Trial trial = try_out(plan, std::move(words), share_s / correction_,
                        std::max(0.1, std::min(left(), most_s)));
  signal_ = trial.signal;
  if (signal_ != 0) return;
  trial.predicted_rank = rank;
  if (trial.failure.empty()) correction_ = trial.seconds / plan.seconds;
  std::fprintf(stderr, "%s: %s\n", described(plan.tuning, run_).c_str(),
               trial.failure.empty() ? text("%.1f samples/s", trial.samples_per_s(run_)).c_str()
                                     : trial.failure.c_str());
  trials_.push_back(std::move(trial));
}

void Search::try_each(const std::vector<Planned>& plans) {
  for (size_t i = 0; i < plans.size(); ++i) try_plan(plans, i);
}

// Tries the neighbours of the fastest setting. False: there was none left to try.
bool Search::try_neighbours(const std::vector<Planned>& plans) {
  const Tuning tuning = fastest()->plan.tuning;
  size_t below = plans.size(), above = plans.size();
  for (size_t i = 0; i < plans.size(); ++i) {
    const Tuning& other = plans[i].tuning;
    if (other.stage != tuning.stage || !same_family(other, tuning)) continue;
    const auto nearer = [&](size_t so_far) {
      const auto distance = [&](int64_t size) { return std::abs(size - tuning.micro_batch); };
      return so_far == plans.size() ||
             distance(other.micro_batch) < distance(plans[so_far].tuning.micro_batch);
    };
    if (other.micro_batch < tuning.micro_batch && nearer(below)) below = i;
    if (other.micro_batch > tuning.micro_batch && nearer(above)) above = i;
  }
  const size_t before = trials_.size();
  for (size_t i : {below, above})
    if (i < plans.size()) try_plan(plans, i);
  return trials_.size() > before;
}

void Search::find_fastest(const std::vector<Planned>& plans) {
  std::vector<Tuning> seen;
  for (size_t i = 0; i < plans.size() && seen.size() < most_families; ++i) {
    const Tuning& tuning = plans[i].tuning;
    if (std::any_of(seen.begin(), seen.end(),
                    [&](const Tuning& other) { return same_family(other, tuning); }))
      continue;
    seen.push_back(tuning);
    try_plan(plans, i);
  }
  const auto own = flags_of(tuning_of(run_), run_);
  for (size_t i = 0; i < plans.size(); ++i)
    if (flags_of(plans[i].tuning, run_) == own) try_plan(plans, i);
  while (fastest() && trials_.size() < most_trials && try_neighbours(plans)) {
  }
}

}  // namespace zg::tools
