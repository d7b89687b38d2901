#include "tools/deepspeed/deepspeed_log.h"

#include <string>
#include <vector>

namespace zg::testing {
namespace {

using tools::DeepSpeedLog;

constexpr int64_t GiB = int64_t{1} << 30;

DeepSpeedLog log_from(int64_t first, int64_t interval = 2) {
  return {interval, first, {}, {.beta1 = 0.8f, .beta2 = 0.999f}};
}

// Without "[2023-09-15 00:09:45,317] ".
std::vector<std::string> log_lines(DeepSpeedLog& log, const DeepSpeedLog::Step& step) {
  std::vector<std::string> lines = log.lines(step);
  for (std::string& line : lines) line.erase(0, 26);
  return lines;
}

}  // namespace

TEST_CASE(
    "DeepSpeed's lines: they have the next rate, samples per second and the peak memory of all "
    "steps") {
  DeepSpeedLog log = log_from(0);
  using Lines = std::vector<std::string>;
  const auto at = [&](int64_t steps, int64_t skipped, double seconds, int64_t peak) {
    return log_lines(log, {.steps = steps,
                           .skipped = skipped,
                           .micro_steps = 2 * steps,
                           .samples = 8,
                           .next_rate = static_cast<double>(steps - skipped) * 1.25e-4,
                           .seconds = seconds,
                           .live_bytes = GiB,
                           .peak_bytes = peak});
  };
  const std::string step = "[INFO] [logging.py:96:log_dist] [Rank 0] step=";
  CHECK(at(1, 0, 100.0, 3 * GiB).empty());
  // The first two steps are not timed: there is no second line.
  CHECK(at(2, 0, 100.0, GiB) == Lines{step + "2, skipped=0, lr=[0.00025], mom=[[0.8, 0.999]]"});
  CHECK(at(3, 0, 0.5, GiB).empty());
  // Samples: 2 * 8 in 0.75 s, 8 in 0.25 s.
  CHECK(at(4, 1, 0.25, 2 * GiB) ==
        Lines{step + "4, skipped=1, lr=[0.000375], mom=[[0.8, 0.999]]",
              "[INFO] [timer.py:260:stop] epoch=0/micro_step=8/global_step=4, "
              "RunningAvgSamplesPerSec=21.333333333333332, CurrSamplesPerSec=32.0, "
              "MemAllocated=1.0GB, MaxMemAllocated=3.0GB"});
}

TEST_CASE("DeepSpeed's lines: mom has SGD's momentum where other optimizers have betas") {
  DeepSpeedLog log(1, 0, {}, {.rule = OptimizerRule::sgd, .momentum = 0.75f});
  CHECK(log_lines(log, {.steps = 1, .micro_steps = 1, .samples = 4, .next_rate = 0.5}) ==
        std::vector<std::string>{
            "[INFO] [logging.py:96:log_dist] [Rank 0] step=1, skipped=0, lr=[0.5], mom=[0.75]"});
}

TEST_CASE("DeepSpeed's lines: a resumed process prints its speed from its own third step on") {
  DeepSpeedLog log = log_from(10, 1), none = log_from(0, 0);
  const auto step = [](int64_t steps, double seconds) {
    return DeepSpeedLog::Step{
        .steps = steps, .micro_steps = steps, .samples = 4, .seconds = seconds};
  };
  CHECK(log.lines(step(11, 9.0)).size() == 1);
  CHECK(log.lines(step(12, 9.0)).size() == 1);
  const std::vector<std::string> third = log.lines(step(13, 0.5));
  REQUIRE(third.size() == 2);
  CHECK(third[1].find("RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=8.0, ") != std::string::npos);
  CHECK(none.lines(step(4, 1.0)).empty());
}

TEST_CASE(
    "DeepSpeed's lines: samples per second use each step's own batch size when the batch grows") {
  DeepSpeedLog log = log_from(0, 1);
  for (int64_t steps = 1; steps < 4; ++steps)
    log.lines({.steps = steps, .samples = 4, .seconds = 1.0});
  const std::vector<std::string> last = log.lines({.steps = 4, .samples = 12, .seconds = 1.0});
  REQUIRE(last.size() == 2);
  CHECK(last[1].find("RunningAvgSamplesPerSec=8.0, CurrSamplesPerSec=12.0, ") != std::string::npos);
}

TEST_CASE("DeepSpeed's lines: memory is rounded as Python's round(x, 2), a tie to even") {
  const struct {
    int64_t eighths;
    const char* written;
  } cases[] = {{0, "0.0"},  {1, "0.12"}, {2, "0.25"}, {3, "0.38"},     {4, "0.5"},
               {5, "0.62"}, {7, "0.88"}, {8, "1.0"},  {1001, "125.12"}};
  for (const auto& [eighths, written] : cases) {
    DeepSpeedLog log = log_from(0, 1);
    const auto found = log.lines({.steps = 3,
                                  .samples = 1,
                                  .seconds = 1.0,
                                  .live_bytes = eighths * GiB / 8,
                                  .peak_bytes = eighths * GiB / 8});
    REQUIRE(found.size() == 2);
    CAPTURE(found[1]);
    CHECK(found[1].ends_with(std::string("MemAllocated=") + written +
                             "GB, MaxMemAllocated=" + written + "GB"));
  }
}

TEST_CASE(
    "epoch_lines has minGPT's three lines, with means in MiB and host memory rounded as psutil "
    "does") {
  // The tutorial's own numbers of 45 billion parameters.
  const auto bytes = [](double gigabytes) { return static_cast<int64_t>(gigabytes * 0x1p30); };
  CHECK(tools::epoch_lines({.seconds = 3039.974,
                            .peak_bytes = 14186.86 * 0x1p20,
                            .memory_bytes = bytes(945.09),
                            .available_bytes = bytes(945.09 - 867.61)}) ==
        std::vector<std::string>{"Average Epoch time: 3039.97 seconds",
                                 "Average Peak CUDA memory: 14186.86MiB",
                                 "CPU Virtual Memory:  used = 867.61 GB, percent = 91.8%"});
  CHECK(tools::epoch_lines({.seconds = 0.0,
                            .peak_bytes = 0.0,
                            .memory_bytes = 8 * GiB,
                            .available_bytes = 4 * GiB})[2] ==
        "CPU Virtual Memory:  used = 4.0 GB, percent = 50.0%");
}

}  // namespace zg::testing
