#include "tools/batch_size.h"

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/error.h"
#include "tools/text.h"
#include "tools/values.h"

namespace zg::tools {
namespace {

constexpr int64_t default_micro_batch = 64;

// The first of them: nobody picks from more.
std::string divisors_of(int64_t number) {
  std::vector<std::string> divisors;
  for (int64_t divisor = 1; divisor <= std::min<int64_t>(number, 4096) && divisors.size() < 12;
       ++divisor)
    if (number % divisor == 0) divisors.push_back(std::to_string(divisor));
  return join(divisors, ", ");
}

// Each choice solves the equation with the other flags as they were given.
std::string choices(const BatchRequest& request) {
  const int64_t W = request.ranks, train = request.train.value_or(0);
  const int64_t micro = request.micro.value_or(1), accumulation = request.accumulation.value_or(1);
  std::vector<std::string> ways;
  // The divisors of what is left for one flag; `other` is the value of the second.
  const auto offer = [&](const char* flag, bool other_given, int64_t other) {
    if (train <= 0 || train % (W * other) != 0) return;
    const int64_t left = train / (W * other);
    ways.push_back(std::string(flag) + " " +
                   (other_given ? std::to_string(left) : divisors_of(left)));
  };
  if (request.micro) offer("--batch-size", request.accumulation.has_value(), accumulation);
  if (request.accumulation) offer("--grad-accum", request.micro.has_value(), micro);
  const int64_t unit = W * micro * accumulation, below = train / unit * unit;
  std::string trains = std::to_string(unit);
  if (!request.micro || !request.accumulation)
    trains = (below > 0 ? std::to_string(below) + ", " : "") + std::to_string(below + unit);
  ways.push_back("--train-batch-size " + trains);
  return join(ways, ", or ");
}

[[noreturn]] void refuse(const BatchRequest& request, const std::string& of_deepspeed) {
  std::string given = "--train-batch-size " + std::to_string(request.train.value_or(0));
  if (request.micro) given += " --batch-size " + std::to_string(*request.micro);
  if (request.accumulation) given += " --grad-accum " + std::to_string(*request.accumulation);
  throw ConfigError(
      "--train-batch-size: expected --batch-size x --grad-accum x ranks, got " + given +
      text(" on %lld rank%s; try ", (long long)request.ranks, request.ranks == 1 ? "" : "s") +
      choices(request) + " (DeepSpeed: " + of_deepspeed + ")");
}

}  // namespace

BatchSize solve_batch_size(const BatchRequest& request) {
  const int64_t W = request.ranks;
  BatchSize size{};
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
    size.micro = request.micro.value_or(default_micro_batch);
    size.accumulation = request.accumulation.value_or(1);
  }
  if (size.micro > 0 && size.accumulation > INT64_MAX / W / size.micro)
    throw ConfigError("--batch-size x --grad-accum x ranks: expected a product below 2^63");
  if (!request.train) size.train = size.micro * size.accumulation * W;
  const auto check_positive = [&](const char* what, int64_t value) {
    if (value <= 0)
      refuse(request, text("%s: %lld has to be greater than 0", what, (long long)value));
  };
  check_positive("Train batch size", size.train);
  check_positive("Micro batch size per gpu", size.micro);
  check_positive("Gradient accumulation steps", size.accumulation);
  if (size.micro * size.accumulation * W != size.train)
    refuse(request,
           text("Check batch related parameters. train_batch_size is not equal to "
                "micro_batch_per_gpu * gradient_acc_step * world_size %lld != %lld * %lld * %lld",
                (long long)size.train, (long long)size.micro, (long long)size.accumulation,
                (long long)W));
  return size;
}

}  // namespace zg::tools
