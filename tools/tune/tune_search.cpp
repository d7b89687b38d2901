#include "tools/tune/tune.h"

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/run/advise.h"
#include "tools/run/child.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/json.h"

namespace zg::tools {

namespace {

constexpr int64_t warm_up = 2;
constexpr double least_steps = warm_up + 3;  // fewest steps of a trial

std::string failure_of(const CapturedEnd& captured, double limit_s) {
  if (captured.timed_out) return fmt::format("no end after {:.1f} s", limit_s);
  std::istringstream lines(captured.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("error: ")) return printable(line.substr(std::strlen("error: ")), 100);
  const int status = captured.end.status;
  return status > 128 ? std::string(strsignal(status - 128))
                      : fmt::format("exit status {}", status);
}

// Reads the lines of metrics, which are mixed with other lines.
void read_steps(const std::string& output, Trial& trial) {
  std::istringstream lines(output);
  std::vector<double> seconds;
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json record;
    try {
      record = parse_json_object(line, "metrics");
    } catch (const FileError&) {
      continue;
    }
    if (!record.contains("step_s")) continue;
    trial.peak_bytes = std::max<int64_t>(trial.peak_bytes, record["peak_bytes"]);
    if (record["step"] >= warm_up) seconds.push_back(record["step_s"]);
  }
  if (seconds.empty()) return void(trial.failure = "it reported no steps");
  std::ranges::sort(seconds);
  trial.fast_s = seconds[seconds.size() / 4];
  trial.seconds = seconds[seconds.size() / 2];
  trial.slow_s = seconds[seconds.size() * 3 / 4];
}

/// Trains with `flags` in a child. Its steps take about `seconds`; with start and end it may take
/// `limit_s`. The child writes nothing and is killed if this process dies.
Trial try_out(const zero::PlannedSetting& plan, std::vector<std::string> flags, double seconds,
              double limit_s) {
  const auto steps = std::clamp<int64_t>(static_cast<int64_t>(seconds / plan.seconds), 3, 50);
  flags.insert(flags.begin(), {this_program, "train"});
  for (const char* word : {"--score-samples", "0", "--eval-batches", "1", "--log-interval", "0",
                           "--progress", "off", "--metrics", "/dev/stdout", "--steps"})
    flags.emplace_back(word);
  flags.push_back(std::to_string(warm_up + steps));
  const CapturedEnd captured =
      capture_child(std::move(flags), "zerograd tune runs itself; is /proc mounted?", limit_s);
  Trial trial{.plan = plan, .signal = captured.end.signal};
  trial.timed_out = captured.timed_out;
  if (captured.timed_out || captured.end.status != 0)
    trial.failure = failure_of(captured, limit_s);
  else
    read_steps(captured.output, trial);
  return trial;
}

}  // namespace

double Trial::samples_per_s(const Run& run) const {
  return failure.empty() ? zg::tools::samples_per_s(plan, run) * plan.seconds / seconds : 0.0;
}

std::string table_of(std::vector<Trial> trials, const Run& run) {
  std::ranges::stable_sort(trials, [&](const Trial& a, const Trial& b) {
    return a.samples_per_s(run) > b.samples_per_s(run);
  });
  std::string table =
      "| rank | setting | predicted peak B | measured peak B | predicted rank | samples/s | step "
      "ms |\n| ---- | ---- | ---- | ---- | ---- | ---- | ---- |";
  int rank = 0;
  for (const Trial& trial : trials) {
    table += fmt::format("\n| {} | {} | {} | ", ++rank, description_of(trial.plan.setting, run),
                         trial.plan.bytes.device);
    if (!trial.failure.empty()) {
      table += fmt::format("- | {} | - | {} |", trial.predicted_rank, trial.failure);
      continue;
    }
    const char* differs = trial.peak_bytes == trial.plan.bytes.device ? "" : " (differs)";
    table += fmt::format("{}{} | {} | {:.1f} | {:.2f} |", trial.peak_bytes, differs,
                         trial.predicted_rank, trial.samples_per_s(run), trial.seconds * 1e3);
  }
  return table;
}

namespace {

constexpr size_t max_families = 6, max_trials = 14;

// Stages 1 and 2 do the same work here.
bool same_family(const zero::Setting& a, const zero::Setting& b) {
  const auto work = [](int stage) { return stage == 2 ? 1 : stage; };
  return work(a.engine.stage) == work(b.engine.stage) &&
         a.engine.offload.optimizer == b.engine.offload.optimizer &&
         a.engine.offload.parameter == b.engine.offload.parameter && a.recomputes == b.recomputes;
}

}  // namespace

Search::Search(const Run& run, std::vector<std::string> words, Clock::time_point begin,
               double time_s)
    : run_(run), words_(std::move(words)), begin_(begin), time_s_(time_s) {}

double Search::left() const {
  return time_s_ - std::chrono::duration<double>(Clock::now() - begin_).count();
}

const Trial* Search::fastest() const {
  const auto found = std::ranges::max_element(trials_, [&](const Trial& a, const Trial& b) {
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
                        .deviations = deviations_of(trial.plan.setting, run_)});
    trials.push_back(&trial);
  }
  return trials.empty() ? nullptr : trials[simplest_within_noise(measured)];
}

double Search::trial_limit_s(const std::vector<zero::PlannedSetting>& plans) const {
  return time_s_ / static_cast<double>(std::min<size_t>(4, plans.size()));
}

void Search::try_plan(const std::vector<zero::PlannedSetting>& plans, size_t index) {
  constexpr double start_s = 1.0;
  const zero::PlannedSetting& plan = plans[index];
  const auto rank = static_cast<int64_t>(index) + 1;
  const bool tried = std::ranges::any_of(
      trials_, [&](const Trial& trial) { return trial.predicted_rank == rank; });
  const double least_s = start_s + least_steps * correction_ * plan.seconds;
  if (tried || signal_ != 0 || (!trials_.empty() && left() < least_s)) return;
  const double share_s = time_s_ / 40.0;
  const double limit_s = std::max(0.1, std::min(left(), trial_limit_s(plans)));
  const std::vector<std::string> flags = tuned_flags(plan.setting, run_);
  std::vector<std::string> words = words_;
  words.insert(words.end(), flags.begin(), flags.end());
  Trial trial = try_out(plan, std::move(words), share_s / correction_, limit_s);
  signal_ = trial.signal;
  if (signal_ != 0) return;
  trial.predicted_rank = rank;
  if (trial.failure.empty())
    correction_ = trial.seconds / plan.seconds;
  else if (trial.timed_out)  // its steps took longer than this
    correction_ = std::max(correction_, limit_s / least_steps / plan.seconds);
  print_line(stderr, "{}: {}", description_of(plan.setting, run_),
             trial.failure.empty() ? fmt::format("{:.1f} samples/s", trial.samples_per_s(run_))
                                   : trial.failure);
  trials_.push_back(std::move(trial));
}

void Search::try_each(const std::vector<zero::PlannedSetting>& plans) {
  for (size_t i = 0; i < plans.size(); ++i) try_plan(plans, i);
}

// Tries the next smaller and larger micro-batch of the fastest setting. Returns false if none was
// left to try.
bool Search::try_neighbours(const std::vector<zero::PlannedSetting>& plans) {
  const zero::Setting setting = fastest()->plan.setting;
  size_t below = plans.size(), above = plans.size();
  for (size_t i = 0; i < plans.size(); ++i) {
    const zero::Setting& other = plans[i].setting;
    if (other.engine.stage != setting.engine.stage || !same_family(other, setting)) continue;
    const auto nearer = [&](size_t so_far) {
      const auto distance = [&](int64_t size) { return std::abs(size - setting.micro_batch); };
      return so_far == plans.size() ||
             distance(other.micro_batch) < distance(plans[so_far].setting.micro_batch);
    };
    if (other.micro_batch < setting.micro_batch && nearer(below)) below = i;
    if (other.micro_batch > setting.micro_batch && nearer(above)) above = i;
  }
  const size_t before = trials_.size();
  for (size_t i : {below, above})
    if (i < plans.size()) try_plan(plans, i);
  return trials_.size() > before;
}

void Search::find_fastest(const std::vector<zero::PlannedSetting>& plans) {
  std::vector<zero::Setting> seen;
  for (size_t i = 0; i < plans.size() && seen.size() < max_families; ++i) {
    const zero::Setting& setting = plans[i].setting;
    if (std::ranges::any_of(
            seen, [&](const zero::Setting& other) { return same_family(other, setting); }))
      continue;
    seen.push_back(setting);
    std::vector<Predicted> family;
    std::vector<size_t> indices;
    for (size_t j = i; j < plans.size(); ++j) {
      if (!same_family(plans[j].setting, setting)) continue;
      family.push_back(
          {samples_per_s(plans[j], run_), plans[j].seconds, plans[j].setting.micro_batch});
      indices.push_back(j);
    }
    const double longest_s = trial_limit_s(plans) / least_steps / correction_;
    try_plan(plans, indices[first_to_try(family, longest_s)]);
  }
  const auto own = tuned_flags(setting_of(run_), run_);
  for (size_t i = 0; i < plans.size(); ++i)
    if (tuned_flags(plans[i].setting, run_) == own) try_plan(plans, i);
  while (fastest() && trials_.size() < max_trials && try_neighbours(plans)) {
  }
}

}  // namespace zg::tools
