#include "tools/options/batch_rampup.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "zerograd/runtime/command_line/flags.h"
#include "zerograd/runtime/text/format.h"
#include "zerograd/runtime/text/text.h"

namespace zg::tools {
namespace {

constexpr int64_t max_count = std::numeric_limits<int32_t>::max();

std::string number(int64_t value) { return std::to_string(value); }

}  // namespace

BatchRampup parse_rampup(const std::string& flag, const std::string& value) {
  std::vector<int64_t> numbers;
  for (size_t begin = 0; begin <= value.size() && numbers.size() < 4;) {
    const size_t end = std::min(value.find(',', begin), value.size());
    numbers.push_back(parse_integer(flag, value.substr(begin, end - begin), 1, max_count));
    begin = end + 1;
  }
  if (numbers.size() != 3)
    raise<ConfigError>("{}: expected START INCREMENT SAMPLES, as 16 16 5000000, got '{}'", flag,
                       printable(value));
  return {.start = numbers[0], .increment = numbers[1], .samples = numbers[2]};
}

void check_rampup(const BatchRampup& rampup, const zero::BatchSize& size) {
  if (rampup.start == 0) return;
  const std::string flag = "--rampup-batch-size: ";
  if (rampup.start > size.train)
    throw ConfigError(flag + "expected a START of at most the batch that it grows to, " +
                      number(size.train) + ", got " + number(rampup.start) +
                      "; try a larger --train-batch-size");
  const int64_t growth = size.train - rampup.start;
  if (growth % rampup.increment != 0)
    raise<ConfigError>("{}expected an INCREMENT that divides the growth from {} to {}, {}, got {}",
                       flag, number(rampup.start), number(size.train), number(growth),
                       number(rampup.increment));
  // A limit, because the computation of the run's length visits every batch size.
  constexpr int64_t max_increments = int64_t{1} << 24;
  if (growth / rampup.increment > max_increments)
    raise<ConfigError>("{}expected at most {} steps of INCREMENT from {} to {}, got {}", flag,
                       number(max_increments), number(rampup.start), number(size.train),
                       number(growth / rampup.increment));
  // Samples of one micro-batch, over all ranks.
  const int64_t share = size.train / size.accumulation;
  const int64_t ranks = share / size.micro, common = rampup.common(size.train);
  if (common % share == 0) return;
  raise<ConfigError>(
      "{}expected START and INCREMENT that --batch-size x ranks, {} x {} = {}, divides, got {} and "
      "{}; try {}",
      flag, size.micro, ranks, share, rampup.start, rampup.increment,
      common % ranks == 0 ? "--batch-size " + number(std::gcd(common / ranks, size.micro))
                          : "numbers that " + number(ranks) + " ranks can share");
}

}  // namespace zg::tools
