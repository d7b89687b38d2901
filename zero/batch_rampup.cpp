#include "zerograd/zero/batch_rampup.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace zg::zero {
namespace {

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

}  // namespace zg::zero
