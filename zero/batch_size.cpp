#include "zerograd/zero/batch_size.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "zerograd/runtime/text/format.h"

namespace zg::zero {
namespace {

// Lists the divisors up to 4096, at most twelve.
std::string divisors_of(int64_t number) {
  std::vector<std::string> divisors;
  for (int64_t divisor = 1; divisor <= std::min<int64_t>(number, 4096) && divisors.size() < 12;
       ++divisor)
    if (number % divisor == 0) divisors.push_back(std::to_string(divisor));
  return join(divisors, ", ");
}

// Each suggestion changes one number so that the product fits.
std::string choices(const BatchRequest& request, int64_t ranks) {
  const int64_t W = ranks, train = request.train.value_or(0);
  const int64_t micro = request.micro.value_or(1), accumulation = request.accumulation.value_or(1);
  const BatchRequest::Names& names = request.names;
  // While one of these is not above 0, a change of another number does not help.
  if (micro <= 0 || accumulation <= 0)
    return (micro <= 0 ? names.micro : names.accumulation) + " 1 or more";
  std::vector<std::string> ways;
  // Offers values for one factor, given the value `other` of the second one.
  const auto offer = [&](const std::string& name, bool other_given, int64_t other) {
    if (train <= 0 || train % (W * other) != 0) return;
    const int64_t left = train / (W * other);
    ways.push_back(name + " " + (other_given ? std::to_string(left) : divisors_of(left)));
  };
  if (request.micro) offer(names.micro, request.accumulation.has_value(), accumulation);
  if (request.accumulation) offer(names.accumulation, request.micro.has_value(), micro);
  const int64_t unit = W * micro * accumulation, below = train / unit * unit;
  std::string trains = std::to_string(unit);
  if (!request.micro || !request.accumulation)
    trains = (below > 0 ? std::to_string(below) + ", " : "") + std::to_string(below + unit);
  ways.push_back(names.train + " " + trains);
  return join(ways, ", or ");
}

[[noreturn]] void refuse(const BatchRequest& request, int64_t ranks,
                         const std::string& of_deepspeed) {
  const BatchRequest::Names& names = request.names;
  std::vector<std::string> given;
  for (const auto& [name, value] : {std::pair{names.train, request.train},
                                    {names.micro, request.micro},
                                    {names.accumulation, request.accumulation}})
    if (value) given.push_back(fmt::format("{} {}", name, *value));
  const std::string product = fmt::format("{} x {} x ranks", names.micro, names.accumulation);
  const bool is_named = request.place == names.train + ": ";
  raise<ConfigError>("{}expected {}{}, got {} on {} rank{}; try {} (DeepSpeed: {})", request.place,
                     is_named ? "" : names.train + " = ", product, join(given, " "), ranks,
                     ranks == 1 ? "" : "s", choices(request, ranks), of_deepspeed);
}

}  // namespace

int64_t largest_divisor(int64_t number, int64_t limit) {
  if (limit >= number) return number;
  int64_t largest = 1;
  for (int64_t small = 1; small <= std::min(number / small, limit); ++small) {
    if (number % small != 0) continue;
    if (number / small <= limit) return number / small;
    largest = small;
  }
  return largest;
}

BatchSize solve_batch_size(const BatchRequest& request, int64_t ranks) {
  const int64_t W = ranks;
  BatchSize size{};
  if (!request.train && !request.micro)
    throw ConfigError(request.place +
                      "Either train_batch_size or train_micro_batch_size_per_gpu needs to be "
                      "provided; expected one of them, got neither; try "
                      "\"train_micro_batch_size_per_gpu\": 64, or --batch-size 64");
  const auto check_positive = [&](const char* what, int64_t value) {
    if (value <= 0) refuse(request, W, fmt::format("{}: {} has to be greater than 0", what, value));
  };
  // Both are checked here because the code below divides by them.
  check_positive("Micro batch size per gpu", request.micro.value_or(1));
  check_positive("Gradient accumulation steps", request.accumulation.value_or(1));
  const bool has_micro = request.micro.has_value();
  const bool has_accumulation = request.accumulation.has_value();
  if (request.train) {
    size.train = *request.train;
    size.micro = has_micro          ? *request.micro
                 : has_accumulation ? size.train / W / *request.accumulation
                                    : size.train / W;
    size.accumulation = has_accumulation ? *request.accumulation
                        : has_micro      ? size.train / size.micro / W
                                         : 1;
  } else {
    size.micro = *request.micro;
    size.accumulation = request.accumulation.value_or(1);
  }
  if (size.micro > 0 && size.accumulation > INT64_MAX / W / size.micro)
    raise<ConfigError>("{}{} x {} x ranks: expected a product below 2^63", request.place,
                       request.names.micro, request.names.accumulation);
  if (!request.train) size.train = size.micro * size.accumulation * W;
  check_positive("Train batch size", size.train);
  check_positive("Micro batch size per gpu", size.micro);
  check_positive("Gradient accumulation steps", size.accumulation);
  if (size.micro * size.accumulation * W != size.train)
    refuse(request, W,
           fmt::format("Check batch related parameters. train_batch_size is not equal to "
                       "micro_batch_per_gpu * gradient_acc_step * world_size {} != {} * {} * {}",
                       size.train, size.micro, size.accumulation, W));
  return size;
}

// --- Ramp-up ---

namespace {

double samples_per_increment(const BatchRampup& rampup, int64_t whole) {
  const int64_t increments = (whole - rampup.start) / rampup.increment;
  return static_cast<double>(rampup.samples) / static_cast<double>(increments);
}

// A lower bound, at least 1, of the number of steps after `consumed` samples that all have the
// batch `batch`. advanced() calls it again for the remaining ones.
int64_t steps_alike(const BatchRampup& rampup, int64_t whole, int64_t consumed, int64_t batch) {
  if (batch == whole) return std::numeric_limits<int64_t>::max();
  const int64_t number = (batch - rampup.start) / rampup.increment + 1;
  const auto increments = static_cast<double>(number);
  const double left =
      increments * samples_per_increment(rampup, whole) - static_cast<double>(consumed);
  return std::max<int64_t>(1, static_cast<int64_t>(left / static_cast<double>(batch)) - 1);
}

}  // namespace

// Rounds as Megatron does, which computes both quotients in floating point.
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
