#include "tools/deepspeed/deepspeed_log.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <ctime>

#include "zerograd/runtime/text/format.h"

namespace zg::tools {
namespace {

constexpr int64_t untimed_steps = 2;  // DeepSpeed's start_step

// "[2023-09-15 00:09:45,317] [INFO] [timer.py:260:stop] "
std::string stamp(const char* where) {
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto since = now.time_since_epoch();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char day[32];
  std::strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &local);
  return fmt::format("[{},{:03d}] [INFO] [{}] ", day, static_cast<int>(ms), where);
}

// As Python's repr(): 0.001, 1e-05, 3.0.
std::string python_number(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  const double size = std::fabs(number);
  const bool fixed = number == 0.0 || (size >= 1e-4 && size < 1e16);
  char word[64];
  const auto end = std::to_chars(word, word + sizeof word, number,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string written(word, end);
  return fixed && written.find('.') == std::string::npos ? written + ".0" : written;
}

// As Python's round(bytes / 1024**3, 2), which rounds the exact value, ties to even.
std::string gigabytes(int64_t bytes) {
  return python_number(std::stod(fmt::format("{:.2f}", static_cast<double>(bytes) / 0x1p30)));
}

// The percentage of memory in use, as psutil formats it.
std::string percent(double share) {
  return python_number(std::stod(fmt::format("{:.1f}", 100.0 * share)));
}

}  // namespace

DeepSpeedLog::DeepSpeedLog(int64_t interval, int64_t first, const zero::ScheduleOptions& schedule,
                           const zero::UpdateOptions& update)
    : interval_(interval), first_(first), schedule_(schedule), update_(update) {}

std::vector<std::string> DeepSpeedLog::lines(const Step& step) {
  const int64_t timed = step.steps - first_ - untimed_steps;
  if (timed > 0) {
    seconds_ += step.seconds;
    samples_ += step.samples;
  }
  peak_bytes_ = std::max(peak_bytes_, step.peak_bytes);
  if (interval_ <= 0 || step.steps % interval_ != 0) return {};
  const int64_t taken = step.steps - step.skipped;
  const zero::Betas betas = schedule_.betas(taken).value_or(zero::betas_of(update_));
  // Betas are stored as f32; the shortest decimal number that gives the same f32 is the config's.
  const auto beta = [](float value) {
    return python_number(std::stod(fmt::format("{:.7g}", value)));
  };
  // As get_mom() of DeepSpeed's engine: of SGD the momentum, of others the betas.
  const std::string momentum = update_.rule == OptimizerRule::sgd
                                   ? beta(betas.beta1)
                                   : fmt::format("[{}, {}]", beta(betas.beta1), beta(betas.beta2));
  std::vector<std::string> lines = {stamp("logging.py:96:log_dist") +
                                    fmt::format("[Rank 0] step={}, skipped={}, lr=[{}], mom=[{}]",
                                                step.steps, step.skipped,
                                                python_number(step.next_rate), momentum)};
  if (timed <= 0) return lines;
  lines.push_back(stamp("timer.py:260:stop") +
                  fmt::format("epoch=0/micro_step={}/global_step={}, RunningAvgSamplesPerSec={}, "
                              "CurrSamplesPerSec={}, MemAllocated={}GB, MaxMemAllocated={}GB",
                              step.micro_steps, step.steps,
                              python_number(static_cast<double>(samples_) / seconds_),
                              python_number(static_cast<double>(step.samples) / step.seconds),
                              gigabytes(step.live_bytes), gigabytes(peak_bytes_)));
  return lines;
}

std::vector<std::string> epoch_lines(const EpochAverages& averages) {
  const int64_t used = averages.memory_bytes - averages.available_bytes;
  const double share = static_cast<double>(used) / static_cast<double>(averages.memory_bytes);
  const char* const device = averages.device == Device::Type::cuda  ? "CUDA"
                             : averages.device == Device::Type::hpu ? "HPU"
                                                                    : "CPU";
  return {fmt::format("Average Epoch time: {:.2f} seconds", averages.seconds),
          fmt::format("Average Peak {} memory: {:.2f}MiB", device, averages.peak_bytes / 0x1p20),
          fmt::format("CPU Virtual Memory:  used = {} GB, percent = {}%", gigabytes(used),
                      percent(share))};
}

}  // namespace zg::tools
