#include "tools/batch_rampup.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/error.h"
#include "tools/text.h"
#include "tools/values.h"

namespace zg::tools {
namespace {

constexpr int64_t most = std::numeric_limits<int32_t>::max();

std::string number(int64_t value) { return std::to_string(value); }

double samples_per_increment(const BatchRampup& rampup, int64_t whole) {
  const int64_t increments = (whole - rampup.start) / rampup.increment;
  return static_cast<double>(rampup.samples) / static_cast<double>(increments);
}

// How many steps from there on surely have the same batch; the last of them are counted one by one.
int64_t steps_alike(const BatchRampup& rampup, int64_t whole, int64_t consumed, int64_t batch) {
  if (batch == whole) return std::numeric_limits<int64_t>::max();
  const auto increments = static_cast<double>((batch - rampup.start) / rampup.increment + 1);
  const double left =
      increments * samples_per_increment(rampup, whole) - static_cast<double>(consumed);
  return std::max<int64_t>(1, static_cast<int64_t>(left / static_cast<double>(batch)) - 1);
}

}  // namespace

// As Megatron rounds: both quotients are of floating point.
int64_t BatchRampup::batch_at(int64_t consumed, int64_t whole) const {
  if (start == 0 || start == whole || consumed > samples) return whole;
  const auto increments =
      static_cast<int64_t>(static_cast<double>(consumed) / samples_per_increment(*this, whole));
  return start + increments * increment;
}

int64_t BatchRampup::common(int64_t whole) const {
  return start == 0 || start == whole ? whole : std::gcd(start, std::gcd(increment, whole));
}

BatchRampup parse_rampup(const std::string& flag, const std::string& value) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= value.size() && numbers.size() < 4;) {
    const size_t end = std::min(value.find(',', begin), value.size());
    numbers.push_back(parse_integer(flag, value.substr(begin, end - begin), 1, most));
    begin = end + 1;
  }
  if (numbers.size() != 3)
    throw ConfigError(flag + ": expected START INCREMENT SAMPLES, as 16 16 5000000, got '" +
                      printable(value) + "'");
  return {.start = numbers[0], .increment = numbers[1], .samples = numbers[2]};
}

void check_rampup(const BatchRampup& rampup, const BatchSize& size) {
  if (rampup.start == 0) return;
  const std::string flag = "--rampup-batch-size: ";
  if (rampup.start > size.train)
    throw ConfigError(flag + "expected a START of at most the batch that it grows to, " +
                      number(size.train) + ", got " + number(rampup.start) +
                      "; try a larger --train-batch-size");
  const int64_t growth = size.train - rampup.start;
  if (growth % rampup.increment != 0)
    throw ConfigError(flag + "expected an INCREMENT that divides the growth from " +
                      number(rampup.start) + " to " + number(size.train) + ", " + number(growth) +
                      ", got " + number(rampup.increment));
  // Every size of a step is looked at when the run's length is counted.
  constexpr int64_t most_increments = int64_t{1} << 24;
  if (growth / rampup.increment > most_increments)
    throw ConfigError(flag + "expected at most " + number(most_increments) +
                      " steps of INCREMENT from " + number(rampup.start) + " to " +
                      number(size.train) + ", got " + number(growth / rampup.increment));
  const int64_t share = size.train / size.accumulation;  // of all ranks, in one micro-batch each
  const int64_t ranks = share / size.micro, common = rampup.common(size.train);
  if (common % share == 0) return;
  throw ConfigError(
      flag +
      text("expected START and INCREMENT that --batch-size x ranks, %lld x %lld = %lld, "
           "divides, got %lld and %lld; try ",
           (long long)size.micro, (long long)ranks, (long long)share, (long long)rampup.start,
           (long long)rampup.increment) +
      (common % ranks == 0 ? "--batch-size " + number(std::gcd(common / ranks, size.micro))
                           : "numbers that " + number(ranks) + " ranks can share"));
}

Progress advanced(const BatchRampup& rampup, int64_t whole, Progress now, Progress end) {
  while (now.steps < end.steps) {
    const int64_t batch = rampup.batch_at(now.samples, whole);
    const int64_t steps = std::min({steps_alike(rampup, whole, now.samples, batch),
                                    end.steps - now.steps, (end.samples - now.samples) / batch});
    if (steps <= 0) break;
    now.steps += steps;
    now.samples += steps * batch;
  }
  return now;
}

}  // namespace zg::tools
