#include <algorithm>
#include <set>

#include "tests/tools/command.h"

namespace zg::testing {
namespace {

const std::string small_advised = "--n-layer 4 --n-head 4 --n-embd 96 ";

/// The settings that plan may suggest for several data ranks, in the order in which plan tries
/// them: the smallest change of the run first.
std::vector<std::string> settings_in_order() {
  std::vector<std::string> settings;
  for (const char* more :
       {"", " --activation-checkpoint", " --cpu-offload", " --cpu-offload --activation-checkpoint"})
    for (const char* stage : {"0", "1", "2", "3"})
      settings.push_back(std::string("--zero-stage ") + stage + more);
  return settings;
}

int64_t measured_peak(const std::string& flags) {
  const TemporaryFolder folder;
  checked(zerograd("train " + flags + " --memory-json " + folder / "memory"));
  int64_t peak = 0;
  const nlohmann::json record = json_lines(folder / "memory").at(0);
  for (const nlohmann::json& rank : record.at("ranks"))
    peak = std::max(peak, rank.at("peak").at("reserved").get<int64_t>());
  return peak;
}

/// For several memory limits: a run with the setting that plan suggests succeeds, a run with the
/// setting before it in settings_in_order() fails with OutOfMemory, and plan predicts whether the
/// unchanged run fits.
void check_suggestion(const std::string& run) {
  const std::string flags = run + " --score-samples 0 --log-interval 0 --progress off";
  CAPTURE(flags);
  const std::vector<std::string> settings = settings_in_order();
  const int64_t peak = measured_peak(flags);
  std::set<std::string> suggestions;
  for (const int percent : {100, 90, 80, 70, 60, 50, 40, 30, 20}) {
    const std::string limit = std::to_string(peak * percent / 100 >> 20) + "MiB";
    const std::string limited_flags = flags + " --device-memory " + limit + " ";
    const Outcome plan = zerograd("plan " + limited_flags);
    const std::string line = line_after(plan.out, "fits " + limit + ": ");
    INFO("limit ", limit, ", line ", line, ", error ", plan.error);
    const std::string words = "; smallest setting that fits: ";
    REQUIRE(contains(line, words));
    const std::string suggestion = line.substr(line.find(words) + words.size());
    if (!suggestions.insert(suggestion).second) continue;
    const auto status_of = [&](const std::string& setting) {
      return zerograd("train " + limited_flags + setting).status;
    };
    const bool fits = line.starts_with("yes");
    CHECK(plan.status == (fits ? 0 : 3));
    CHECK(status_of("") == (fits ? 0 : 3));
    if (suggestion.starts_with("none") || suggestion.starts_with("not found")) {
      CHECK(status_of(settings.back()) == 3);
      continue;
    }
    const auto place = std::ranges::find(settings, suggestion);
    const size_t disk = suggestion.find("--nvme-path DIR");
    CHECK(status_of(disk == std::string::npos ? suggestion
                                              : suggestion.substr(0, disk) + "--nvme-path .") == 0);
    if (place == settings.begin()) continue;
    CAPTURE(*(place - 1));
    CHECK(status_of(*(place - 1)) == 3);
  }
  CAPTURE(suggestions);
  CHECK(suggestions.size() >= 4);
}

}  // namespace

TEST_CASE(
    "the setting that plan suggests for a GPipe pipeline trains, and the next smaller one does "
    "not") {
  check_suggestion(small_advised +
                   "--data sort --ranks 4 --pipeline-parallel 2 --schedule-pipeline gpipe "
                   "--grad-accum 4 --batch-size 8 --steps 3");
}

TEST_CASE(
    "the setting that plan suggests for a batch-size ramp-up trains, and the next smaller one does "
    "not") {
  // Steps of 4, 8, 16, 16, 16 and 16 samples. To choose a setting, plan dry-runs three steps of 16.
  check_suggestion(small_advised +
                   "--data sort --ranks 2 --batch-size 2 --train-batch-size 16 "
                   "--rampup-batch-size 4 4 12 --steps 6");
}

TEST_CASE(
    "the setting that plan suggests for a run with evaluations trains, and the next smaller one "
    "does not") {
  const TemporaryFolder folder;
  std::string characters;
  for (int i = 0; i < 4000; ++i) characters += static_cast<char>('a' + i * i % 23);
  write_file(folder / "text.txt", characters);
  // The first evaluation comes after step 4. To choose a setting, plan dry-runs three steps.
  check_suggestion(small_advised + "--data " + (folder / "text.txt") +
                   " --block-size 32 --ranks 2 --batch-size 4 --eval-interval 4 "
                   "--eval-batches 2 --sample-interval 4 --steps 5");
}

}  // namespace zg::testing
