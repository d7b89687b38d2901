#include "tools/tune_trial.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tools/child.h"
#include "zerograd/runtime/text.h"

namespace zg::tools {
namespace {

constexpr int64_t warm_up = 2;

std::string failure_of(const CapturedEnd& captured, double limit_s) {
  if (captured.timed_out) return text("no end after %.1f s", limit_s);
  std::istringstream lines(captured.output);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("error: ")) return printable(line.substr(std::strlen("error: ")), 100);
  const int status = captured.end.status;
  return status > 128 ? std::string(strsignal(status - 128)) : text("exit status %d", status);
}

// Reads the lines of metrics, which are mixed with other lines.
void read_steps(const std::string& output, Trial& trial) {
  std::istringstream lines(output);
  std::vector<double> seconds;
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("step_s")) continue;
    trial.peak_bytes = std::max<int64_t>(trial.peak_bytes, record["peak_bytes"]);
    if (record["step"] >= warm_up) seconds.push_back(record["step_s"]);
  }
  if (seconds.empty()) return void(trial.failure = "no steps came of it");
  std::sort(seconds.begin(), seconds.end());
  trial.fast_s = seconds[seconds.size() / 4];
  trial.seconds = seconds[seconds.size() / 2];
  trial.slow_s = seconds[seconds.size() * 3 / 4];
}

}  // namespace

double Trial::samples_per_s(const Run& run) const {
  return failure.empty() ? plan.samples_per_s(run) * plan.seconds / seconds : 0.0;
}

Trial try_out(const Planned& plan, std::vector<std::string> flags, double seconds, double limit_s) {
  const auto steps = std::clamp<int64_t>(static_cast<int64_t>(seconds / plan.seconds), 3, 50);
  flags.insert(flags.begin(), {this_program, "train"});
  for (const char* word : {"--score-samples", "0", "--eval-batches", "1", "--log-interval", "0",
                           "--progress", "off", "--metrics", "/dev/stdout", "--steps"})
    flags.push_back(word);
  flags.push_back(std::to_string(warm_up + steps));
  const CapturedEnd captured =
      capture_child(std::move(flags), "zerograd tune runs itself; is /proc mounted?", limit_s);
  Trial trial{.plan = plan, .signal = captured.end.signal};
  if (captured.timed_out || captured.end.status != 0)
    trial.failure = failure_of(captured, limit_s);
  else
    read_steps(captured.output, trial);
  return trial;
}

std::string table_of(std::vector<Trial> trials, const Run& run) {
  std::stable_sort(trials.begin(), trials.end(), [&](const Trial& a, const Trial& b) {
    return a.samples_per_s(run) > b.samples_per_s(run);
  });
  std::string table =
      "| rank | setting | predicted peak B | measured peak B | predicted rank | samples/s | step "
      "ms "
      "|\n| ---- | ---- | ---- | ---- | ---- | ---- | ---- |";
  int rank = 0;
  for (const Trial& trial : trials) {
    table += text("\n| %d | %s | %lld | ", ++rank, described(trial.plan.tuning, run).c_str(),
                  (long long)trial.plan.needs.device);
    if (!trial.failure.empty()) {
      table += text("- | %lld | - | %s |", (long long)trial.predicted_rank, trial.failure.c_str());
      continue;
    }
    const char* differs = trial.peak_bytes == trial.plan.needs.device ? "" : " (differs)";
    table += text("%lld%s | %lld | %.1f | %.2f |", (long long)trial.peak_bytes, differs,
                  (long long)trial.predicted_rank, trial.samples_per_s(run), trial.seconds * 1e3);
  }
  return table;
}

}  // namespace zg::tools
